// SPDX-License-Identifier: Apache-2.0
// Checks bins as the router sends them: the rows that the router expects a node to compute follow from the prefixes
// that it sent to this node earlier. Also checks the cached tokens that nodes report, against the prompts that they
// have computed.
#pragma once

#include "proto/forepack/cluster/v1/cluster.pb-c.h"
#include "sim/world.h"

struct client;

// Call when a bin leaves for the node. `prefixes`: prefixes sent to the node on this stream earlier. `n_bytes`: size of
// the message.
struct prefix_set;
void placement_sent(struct world *w, struct sim_node *node, struct prefix_set *prefixes,
                    const Forepack__Cluster__V1__RouterMessage *message, size_t n_bytes);

// Call when the first token of a request has come, before the client counts it.
void placement_answered(struct client *client);
