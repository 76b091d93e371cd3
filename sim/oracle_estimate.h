// SPDX-License-Identifier: Apache-2.0
// Computes the estimates of router/sched/estimate.h again by plain rules. Pools with so many nodes that the router
// looks at a sample are skipped. The inputs are the router's own: costs of passes, states of nodes, and sums of the
// waiting work, which oracle_waiting.h checks.
#pragma once

#include "router/core/core_state.h"
#include "sim/world.h"

// Checks the estimates for a request that waits, or waited a moment ago.
void oracle_estimate(struct world *w, const struct core *c, const struct sched_request *r);
// Checks the estimates for each node and pool.
void oracle_estimate_nodes(struct world *w, const struct core *c);
