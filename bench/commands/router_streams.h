// SPDX-License-Identifier: Apache-2.0
// Many server-sent streams through one router at the same time. A paced node (fake_node.h) gives each a token per
// interval. The delay of a token is the time from the node's message to the client's read.
#pragma once

#include <jansson.h>

#include "bench/commands/fake_node.h"
#include "bench/commands/router_process.h"

struct router_streams {
    int n;
    double seconds; // measured time, once all streams have begun
    struct fake_pace *pace;
    const char *request; // request of one stream, with token ids
    bool json;
};

// Appends one row, and prints it.
enum status router_streams_measure(const struct router_streams *streams, const struct router_process *router,
                                   json_t *rows);
