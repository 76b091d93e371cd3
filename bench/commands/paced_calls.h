// SPDX-License-Identifier: Apache-2.0
// Calls to a router at fixed times, from many threads. Latencies count from the time at which a call was due, so a slow
// router cannot delay the calls that follow. CPU time is the CPU time of the router process.
#pragma once

#include <jansson.h>

#include "bench/commands/router_process.h"

struct paced_calls {
    const char *rates; // calls per second, comma-separated, one row each
    double seconds;    // counted time of a row; an uncounted tenth of this time comes before it
    int threads;       // limit of concurrent calls
    bool json;         // print no table
    // Makes call number i in thread `thread`. Failures are counted, and the last error message is kept.
    enum status (*call)(void *user, int thread, int i);
    void *user;
};

// Appends a row for each rate, and prints a table.
enum status paced_calls_run(const struct paced_calls *calls, const struct router_process *router, json_t *rows);
