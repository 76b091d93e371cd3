// SPDX-License-Identifier: Apache-2.0
// Checks the index of a pool's nodes against the accounts of these nodes: their order, and the most room in each
// subtree.
#pragma once

#include "router/core/core_state.h"
#include "sim/world.h"

void oracle_index(struct world *w, const struct core *c, enum node_role role);
// Call right after a tick. While requests wait, nodes are compared by time as soon as the costs of all are known.
void oracle_index_tick(struct world *w, const struct core *c, enum node_role role);
