// SPDX-License-Identifier: Apache-2.0
// The requests of a bin against the order of admission (router/sched/bin_planner.h), by comparing each with all that
// still wait. Checked without prefix caches, where the rules alone determine the order. Also the prefix chains of the
// requests, and what the live page shows of the bin.
#pragma once

#include "router/core/core_state.h"
#include "sim/world.h"

// The bin was sent to the node, its requests [n] in the order in which they were picked.
void oracle_bin(struct world *w, const struct core *c, const struct core_node *node, uint64_t bin,
                const uint64_t *numbers, int n);
