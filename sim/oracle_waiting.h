// SPDX-License-Identifier: Apache-2.0
// The part of the oracles that looks into the waiting sets.
#pragma once

#include "router/core/core_state.h"
#include "sim/world.h"

#define HOLDS(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) world_fail(w, "%s:%d: does not hold: %s", __func__, __LINE__, #condition);                   \
    } while (0)

// Lists, indexes, sums and tenant queues of the set, counted again. Adds its requests to *n_p.
void oracle_waiting(struct world *w, const struct core *c, const struct waiting_set *set, int *n_p);

// Whether a request waits that the idle node has room for, and no other node with room has more of its prefix.
bool oracle_node_is_passed_over(const struct core *c, const struct sched_node *node);

// No request waits that is overdue or beside an idle node, while a node that may take it has room. (Others may wait for
// the node that has their prefix.)
void oracle_waiting_beside_room(struct world *w, const struct core *c);
