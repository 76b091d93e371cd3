// SPDX-License-Identifier: Apache-2.0
// Computes the estimates of router/sched/estimate.h again by plain rules, for pools so small that the router examines
// every node. The costs of passes, and the waiting work by priority and due time, come from the router.
#pragma once

#include "router/core/core_state.h"
#include "sim/world.h"

// Checks the estimates for a request that waits, or waited a moment ago.
void oracle_estimate(struct world *w, const struct core *c, const struct sched_request *r);
// Checks the estimates for each node and pool.
void oracle_estimate_nodes(struct world *w, const struct core *c);
