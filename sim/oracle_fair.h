// SPDX-License-Identifier: Apache-2.0
// Tenants of one priority share the worker groups by their weights: while two of them have requests waiting, what they
// are served differs by a bound (virtual token counter, arXiv 2401.00588, theorem 1). Counted here from the bins and
// tokens that pass the router's edge, not from the router's counters.
#pragma once

#include "router/core/request.h"
#include "sim/world.h"

enum { OUTPUT_WEIGHT = 2 }; // what a generated token counts, beside one for a row that is read

struct oracle_fair *oracle_fair_create(const struct scenario *scenario);
void oracle_fair_free(struct oracle_fair *fair);

// `tokens` of the request were placed as prompt rows, or generated.
void oracle_fair_served(struct oracle_fair *fair, const struct request *r, double tokens);
// After every event at the router.
struct core;
void oracle_fair_check(struct oracle_fair *fair, struct world *w, const struct core *c); // NULL: the router is down
