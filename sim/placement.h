// SPDX-License-Identifier: Apache-2.0
// Checks bins as the router sends them: the rows that it expects to be computed follow from the prefixes that it sent
// to the node earlier. Checks what nodes report as found in their caches with the prompts that they have computed.
#pragma once

#include "proto/forepack/cluster/v1/cluster.pb-c.h"
#include "sim/world.h"

struct client;

// Call when a bin leaves for the node. `prefixes`: prefixes sent to it on this stream earlier. n_bytes: size of the
// message.
struct prefix_set;
void placement_sent(struct world *w, struct sim_node *node, struct prefix_set *prefixes,
                    const Forepack__Cluster__V1__RouterMessage *message, size_t n_bytes);

// Call when the first token of a request has come, before it is counted.
void placement_answered(struct client *client);
