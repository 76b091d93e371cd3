// SPDX-License-Identifier: Apache-2.0
// A worker group without a model: it attaches to a router and answers every sequence of a bin with all its tokens. It
// measures what a router adds.
#pragma once

#include <stdint.h>

#include "bench/commands/router_process.h"

struct fake_node;

// Of a node that gives each sequence one token per interval. The ids of the tokens count up from FAKE_FIRST_TOKEN and
// start over after FAKE_TOKENS, one for each message to the router, which is sent at sent_us[id - FAKE_FIRST_TOKEN].
enum { FAKE_FIRST_TOKEN = 300, FAKE_TOKENS = 1000 };
struct fake_pace {
    int interval_ms;
    int max_seqs;                 // 0: as many as streams are ever measured
    int64_t sent_us[FAKE_TOKENS]; // atomic
};

// Attaches to the router with the tokenizer and vocabulary that the router reports to clients; returns before the
// router has it. `pace` is borrowed; NULL: every sequence gets all its tokens at once. One at a time.
// node_block_signals() must have been called before the first thread started: closing the node uses SIGTERM.
enum status fake_node_open(const struct router_process *router, struct fake_pace *pace, struct fake_node **node_p);
void fake_node_close(struct fake_node *node); // NULL is allowed
