// SPDX-License-Identifier: Apache-2.0
// What the scheduler reads of a node for a request (router/sched/view.h), by plain formulas; also as if the node had KV
// blocks of other sizes.
#pragma once

#include "lib/base/random.h"
#include "router/core/core_state.h"
#include "sim/world.h"

void oracle_view(struct world *w, const struct sched_node *node, const struct sched_request *r);
// The mean of keep rates follows drawn ones, also where none came for about ten minutes.
void oracle_rate_mean(struct world *w, struct random_source *random);
