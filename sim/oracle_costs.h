// SPDX-License-Identifier: Apache-2.0
// Checks the cost model of a node with the passes that the node reports.
#pragma once

#include "proto/forepack/cluster/v1/cluster.pb-c.h"
#include "sim/world.h"

struct core_node;

// Counts of one stream from a node.
struct cost_watch {
    int passes; // passes that were compared
    int misses; // passes whose time the cost model predicted badly
};

// Call before the router learns from the message. `node` is NULL if the node is not attached. `index` is the index of
// the simulated node.
void oracle_costs(struct world *w, struct cost_watch *watch, const struct core_node *node, int index,
                  const Forepack__Cluster__V1__NodeMessage *message);
