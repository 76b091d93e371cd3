// SPDX-License-Identifier: Apache-2.0
// Measures a router under load while a stream runs. The load is either chat messages far over the context, which are
// refused, or many prompts sent together, which are answered. Reports the time until each is refused or answered, the
// growth of the router's peak memory, and the gaps between the stream's messages.
#pragma once

#include <jansson.h>

#include "bench/commands/router_process.h"

struct router_large {
    // Over 0: the load is `calls` messages of this many MiB, each sent after the previous message was refused. 0: the
    // load is `calls` prompts, all sent together.
    int64_t mb;
    int calls;
    struct rpc_bytes (*prompt)(struct rpc_channel *channel); // for mb 0: makes a prompt's message; the caller frees it
    bool json;
};

// The process that sends the load. It is separate, so that it does not delay the threads of the stream's client.
struct large_sender {
    pid_t pid; // 0: none
    int go, results;
};
enum status large_sender_start(const struct router_large *large, const struct router_process *router,
                               struct large_sender *sender); // call before rpc_init()
void large_sender_stop(struct large_sender *sender);

// Starts the sender's load and measures it while the node gives the stream one token per interval (fake_node.h).
// Appends one row, and prints it unless `json` is set.
enum status router_large_measure(const struct router_large *large, const struct router_process *router,
                                 const struct large_sender *sender, json_t *rows);
