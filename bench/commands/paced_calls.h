// SPDX-License-Identifier: Apache-2.0
// Calls to a router at fixed times, from many threads. Latencies count from the time at which a call was due, so that a
// slow router cannot delay the calls that follow. CPU time is that of the router's process.
#pragma once

#include <jansson.h>

#include "bench/commands/router_process.h"

struct paced_calls {
    const char *rates; // calls per second, comma-separated, a row each
    double seconds;    // over which the calls of a row are due; a tenth of it is sent before, uncounted
    int threads;       // calls at once at most
    bool json;         // print no table
    // Call number i, by thread `thread`. A failure counts, with the sentence of the last one.
    enum status (*call)(void *user, int thread, int i);
    void *user;
};

// Appends a row for each rate, and prints a table.
enum status paced_calls_run(const struct paced_calls *calls, const struct router_process *router, json_t *rows);
