// SPDX-License-Identifier: Apache-2.0
// Checks that the exported counters and histograms of the router agree with each other, such as the counts of finish
// reasons with the number of requests that ended.
#pragma once

#include "router/core/core_state.h"
#include "sim/world.h"

void oracle_measures(struct world *w, const struct core *c);
