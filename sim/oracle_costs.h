// SPDX-License-Identifier: Apache-2.0
// Checks the cost model of a node with the passes that the node reports.
#pragma once

#include "proto/forepack/cluster/v1/cluster.pb-c.h"
#include "sim/world.h"

struct core_node;

// Counts of one stream.
struct cost_watch {
    int passes, misses;
};

// Call before the router learns from the message. `node`: NULL if it is not attached. `index`: index of the simulated
// node.
void oracle_costs(struct world *w, struct cost_watch *watch, const struct core_node *node, int index,
                  const Forepack__Cluster__V1__NodeMessage *message);
