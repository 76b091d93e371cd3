// SPDX-License-Identifier: Apache-2.0
// A worker group without a model: it attaches to a router and answers every sequence of a bin at once, with all its
// tokens. It measures what a router adds.
#pragma once

#include "base/status.h"

struct fake_node;

// Attaches at `nodes`, the router's address for nodes, with the tokenizer and vocabulary that it reports to clients at
// `server`; returns before the router has it.
// node_block_signals() must have been called before the first thread started: closing the node uses SIGTERM.
enum status fake_node_open(const char *server, const char *nodes, struct fake_node **node_p);
void fake_node_close(struct fake_node *node); // NULL is allowed
