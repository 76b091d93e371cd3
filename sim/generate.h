// SPDX-License-Identifier: Apache-2.0
// Draws a scenario from a seed. Swarm testing (Groce et al., ISSTA 2012): each seed switches most features off and
// draws its own options, sizes, shapes of load and mix of faults, so that rare combinations come up and no feature
// hides another.
#pragma once

#include "sim/scenario.h"

// Generates a scenario from a seed. `events`: rough number of events of the run.
void scenario_generate(uint64_t seed, int64_t events, struct scenario *s);
