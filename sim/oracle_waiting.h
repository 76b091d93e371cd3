// SPDX-License-Identifier: Apache-2.0
// Checks of the waiting sets.
#pragma once

#include "router/core/core_state.h"
#include "sim/world.h"

#define HOLDS(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) world_fail(w, "%s:%d: does not hold: %s", __func__, __LINE__, #condition);                   \
    } while (0)

// Counts lists, indexes, sums and tenant queues of the set again. Adds the set's requests to *n_p.
void oracle_waiting(struct world *w, const struct core *c, const struct waiting_set *set, int *n_p);

// Returns true if a waiting request fits the idle node, and no other node with room has more of its prefix.
bool oracle_node_is_passed_over(const struct core *c, const struct sched_node *node);

// Checks each node that may take another bin. No overdue request that fits the node may wait. If the node has no bins,
// and no node has a prefix cache, no request that fits it may wait.
void oracle_waiting_with_room(struct world *w, const struct core *c);
