// SPDX-License-Identifier: Apache-2.0
// The highest rates that a router serves over HTTP: requests on kept-alive connections and new connections.
#pragma once

#include <jansson.h>

#include "bench/commands/router_process.h"

struct router_limits {
    int connections; // number of open connections, each with one request
    double seconds;  // length of each measurement
    const char *request;
    bool new_connections; // also measure these
    bool json;
};

// Appends a row for each measurement, and prints it. A new connection has one request.
enum status router_limits_measure(const struct router_limits *limits, const struct router_process *router,
                                  json_t *rows);
