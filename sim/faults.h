// SPDX-License-Identifier: Apache-2.0
// Applies the actions of a scenario at their times.
#pragma once

#include "sim/world.h"

void action_apply(struct world *w, int action);
