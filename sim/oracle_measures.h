// SPDX-License-Identifier: Apache-2.0
// Compares the numbers that metrics export with each other: ended, sent, computed and measured work.
#pragma once

#include "router/core/core_state.h"
#include "sim/world.h"

void oracle_measures(struct world *w, const struct core *c);
