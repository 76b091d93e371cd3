// SPDX-License-Identifier: Apache-2.0
// Checks the numbers that the scheduler derives for a request on a node (router/sched/view.h), by plain formulas. Also
// checks them for other KV block sizes.
#pragma once

#include "lib/base/random.h"
#include "router/core/core_state.h"
#include "sim/world.h"

void oracle_view(struct world *w, const struct sched_node *node, const struct sched_request *r);
// Checks that the mean keep rate follows random rates, also after about ten minutes without a rate.
void oracle_rate_mean(struct world *w, struct random_source *random);
