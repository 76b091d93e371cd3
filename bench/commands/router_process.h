// SPDX-License-Identifier: Apache-2.0
// A router as a child process of a benchmark.
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "lib/base/options.h"
#include "lib/base/status.h"
#include "lib/net/rpc.h"

struct router_process_options {
    const char *model, *shape; // shape NULL: the shape of the model
    const char *config;        // the router's configuration file, for options that a benchmark does not set; NULL: none
    const char *log;           // file for the router's log
    int core, n_cores;         // the router may use n_cores cores from `core` on; core -1: any
    int64_t tokenise_threads;  // 0: the router's default
    int64_t queue_requests;    // 0: the router's default
    bool http;                 // with the HTTP API
    const struct rpc_tls *tls; // certificate, which clients trust, and key of the ports for clients; NULL: plain text
};

// clang-format off
// Rows of a benchmark's option table. `o` has core, cores, config and log; `first` is the default of --core, as text.
#define ROUTER_CORE_OPTION_ROWS(o, first)                                                                              \
    {.name = "core", .type = OPTION_INT, .value = &(o).core, .default_text = first, .min = -1, .max = CPU_SETSIZE / 2, \
     .help = "the first core that the router may use; -1: any"},                                                       \
    {.name = "cores", .type = OPTION_INT, .value = &(o).cores, .default_text = "1", .min = 1, .max = CPU_SETSIZE / 2,  \
     .help = "number of cores that the router may use"}
#define ROUTER_FILE_OPTION_ROWS(o)                                                                                     \
    {.name = "router-config", .type = OPTION_STRING, .value = &(o).config, .placeholder = "FILE",                      \
     .help = "configuration file of the router, for its other options"},                                               \
    {.name = "log", .type = OPTION_STRING, .value = &(o).log, .default_text = "/dev/null",                             \
     .help = "file for the router's log"}
// clang-format on

struct router_process {
    pid_t pid;
    char *server, *nodes;      // HOST:PORT for clients and for nodes; owned
    int http_port;             // -1 without the HTTP API
    const struct rpc_tls *tls; // borrowed
};

// Starts a router on free ports. Call it before rpc_init(), because a fork must not copy gRPC's threads.
enum status router_process_start(const struct router_process_options *options, struct router_process *router);
// Opens a channel to the router's gRPC port for clients.
enum status router_process_channel(const struct router_process *router, struct rpc_channel **channel_p);
// Waits until the router answers; with `serving`, until it would serve a request.
enum status router_process_wait(const struct router_process *router, bool serving);
double router_process_cpu_s(const struct router_process *router);
void router_process_stop(struct router_process *router);
