// SPDX-License-Identifier: Apache-2.0
// The numbers that metrics export, against each other: what ended, was sent, was computed and was measured.
#pragma once

#include "router/core/core_state.h"
#include "sim/world.h"

void oracle_measures(struct world *w, const struct core *c);
