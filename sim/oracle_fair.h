// SPDX-License-Identifier: Apache-2.0
// Checks that tenants of one priority share the worker groups by their weights: while two tenants have requests
// waiting, the service of these tenants differs by at most a bound (virtual token counter, arXiv 2401.00588, theorem
// 1). Counts the bins that leave the router and the tokens that reach it. Does not use the router's counters.
#pragma once

#include "router/core/request.h"
#include "sim/world.h"

enum { OUTPUT_WEIGHT = 2 }; // weight of a generated token; a prompt row counts 1

struct oracle_fair *oracle_fair_create(const struct scenario *scenario);
void oracle_fair_free(struct oracle_fair *fair);

// Adds `tokens` to the service of the request's tenant: placed prompt rows, or OUTPUT_WEIGHT for a generated token.
void oracle_fair_served(struct oracle_fair *fair, const struct request *r, double tokens);
// Call after every event at the router.
struct core;
void oracle_fair_check(struct oracle_fair *fair, struct world *w, const struct core *c); // NULL: the router is down
