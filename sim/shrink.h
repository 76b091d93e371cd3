// SPDX-License-Identifier: Apache-2.0
// Makes a failing scenario smaller: delta debugging (Zeller, Hildebrandt: Simplifying and isolating failure-inducing
// input, TSE 2002) over its actions, then over nodes, values and options. The remaining scenario fails in the same way.
#pragma once

#include "sim/run.h"

// Makes the scenario `s`, which fails with `result`, smaller. *result becomes the result of the smaller scenario. Runs
// at most `runs_max` scenarios.
void scenario_shrink(struct scenario *s, struct run_result *result, int runs_max);
