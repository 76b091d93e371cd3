// SPDX-License-Identifier: Apache-2.0
// Preemption by plain rules: each preemption is allowed, bounded, and for a request that waits; and no request waits
// for a place that it may take.
#pragma once

#include "router/core/core_state.h"
#include "sim/world.h"

// Watches preemptions from now on, or no longer.
void oracle_preempt_watch(bool watch);
const char *oracle_preempt_problem(void); // the first problem since the last call, or NULL

// Checks, after a tick, that no tenant holds more than its share while a request of another tenant waits, and that
// every account of what tenants hold agrees with the requests on the worker groups.
void oracle_preempt_tick(struct world *w, const struct core *c);
