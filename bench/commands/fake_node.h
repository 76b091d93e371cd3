// SPDX-License-Identifier: Apache-2.0
// A worker group without a model. It attaches to a router and answers every sequence of a bin with all its tokens.
// Benchmarks use it to measure what a router adds.
#pragma once

#include <stdint.h>

#include "bench/commands/router_process.h"

struct fake_node;

// A pace gives each sequence one token per interval. Token ids count up from FAKE_FIRST_TOKEN and start over after
// FAKE_TOKENS. Every token of a message has the same id. The message is sent at sent_us[id - FAKE_FIRST_TOKEN].
enum { FAKE_FIRST_TOKEN = 300, FAKE_TOKENS = 1000 };
struct fake_pace {
    int interval_ms;
    int max_seqs;                 // 0: the most that a benchmark streams
    int64_t sent_us[FAKE_TOKENS]; // atomic
};

// Attaches to the router with the tokenizer and vocabulary that the router reports to clients. Returns before the
// router has the node. `pace` is borrowed; NULL: every sequence gets all its tokens in one message. Then only one node
// may exist at a time, and closing it sends SIGTERM to this process. So node_block_signals() must have been called
// before the first thread started.
enum status fake_node_open(const struct router_process *router, struct fake_pace *pace, struct fake_node **node_p);
void fake_node_close(struct fake_node *node); // NULL is allowed
