// SPDX-License-Identifier: Apache-2.0
// Checks bins as the router sends them: the rows that it expects to be computed, from the prefixes that it has sent to
// the node before; and what nodes report as found in their caches, from the prompts that they have computed.
#pragma once

#include "proto/forepack/cluster/v1/cluster.pb-c.h"
#include "sim/world.h"

struct client;

// A bin leaves for the node; `prefixes` is what was sent to it on this stream before. n_bytes: of the message.
struct prefix_set;
void placement_sent(struct world *w, struct sim_node *node, struct prefix_set *prefixes,
                    const Forepack__Cluster__V1__RouterMessage *message, size_t n_bytes);

// The first token of a request has come. (Called before it counts.)
void placement_answered(struct client *client);
