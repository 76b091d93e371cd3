// SPDX-License-Identifier: Apache-2.0
// Load during a running stream: chat messages far over the context, or many long prompts together. Measures how soon
// they are refused or answered, how much memory the router takes, and how long the stream waits for its tokens.
#pragma once

#include <jansson.h>

#include "bench/commands/router_process.h"

struct router_large {
    int64_t mb; // size in MiB of the messages that are too large, sent one by one; 0: prompts, all sent together
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

// Measures the load while the node gives a stream one token per interval (fake_node.h). Appends one row and prints it.
enum status router_large_measure(const struct router_large *large, const struct router_process *router,
                                 const struct large_sender *sender, json_t *rows);
