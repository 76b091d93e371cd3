// SPDX-License-Identifier: Apache-2.0
// Applies the actions of a scenario at their times.
#pragma once

#include "sim/world.h"

void action_apply(struct world *w, int action);
void fault_poison(struct world *w, struct sim_node *node, int64_t after_us); // the node's next pass then fails
