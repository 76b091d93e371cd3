// SPDX-License-Identifier: Apache-2.0
// Checks a bin (the requests in one message to a node): the bin fits the node, the prefix chains of its requests are
// right, and the live page shows it. oracle_plan.h checks which requests it has.
#pragma once

#include "router/core/core_state.h"
#include "sim/world.h"

// Call when the bin was sent to the node. numbers [n] are its requests, in the order in which the router picked them.
void oracle_bin(struct world *w, const struct core *c, const struct core_node *node, uint64_t bin,
                const uint64_t *numbers, int n);
