// SPDX-License-Identifier: Apache-2.0
// A router as a child process of a benchmark.
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/status.h"

struct router_process_options {
    const char *model, *shape; // shape NULL: the model's
    const char *log;           // file for its log
    int core, n_cores;         // it may use n_cores cores from `core` on; core -1: any
    int64_t tokenise_threads;  // 0: its default
    int64_t queue_requests;    // that may wait; 0: 10,000
    bool http;                 // with the HTTP API
};

struct router_process {
    pid_t pid;
    char *server, *nodes; // HOST:PORT for clients and for nodes; owned
    int http_port;        // -1 without the HTTP API
};

// On free ports. Before rpc_init(), because a fork must not copy gRPC's threads.
enum status router_process_start(const struct router_process_options *options, struct router_process *router);
// Until it answers; with `serving`, until it would serve a request.
enum status router_process_wait(const struct router_process *router, bool serving);
double router_process_cpu_s(const struct router_process *router);
void router_process_stop(struct router_process *router);
