// SPDX-License-Identifier: Apache-2.0
// The estimates of router/sched/estimate.h written again by plain rules, for pools of which every node is looked at.
// The costs of passes, and what waits by priority and due time, are the router's own.
#pragma once

#include "router/core/core_state.h"
#include "sim/world.h"

// For a request that waits, or waited a moment ago.
void oracle_estimate(struct world *w, const struct core *c, const struct sched_request *r);
// Of each node and pool.
void oracle_estimate_nodes(struct world *w, const struct core *c);
