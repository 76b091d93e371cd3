// SPDX-License-Identifier: Apache-2.0
// A worker group without a model: it attaches to a router and answers every sequence of a bin at once, with all its
// tokens. It measures what a router adds.
#pragma once

#include "net/rpc.h"

struct fake_node;

// Attaches over a connection of its own, with the tokenizer and vocabulary that the router at `server` reports.
enum status fake_node_open(const char *server, struct fake_node **node_p);
void fake_node_close(struct fake_node *node); // NULL is allowed
