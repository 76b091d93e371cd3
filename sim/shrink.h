// SPDX-License-Identifier: Apache-2.0
// Makes a failing scenario small: delta debugging (Zeller, Hildebrandt: Simplifying and isolating failure-inducing
// input, TSE 2002) over its actions, then over nodes, values and options. What is left fails in the same way.
#pragma once

#include "sim/run.h"

// `s` fails with `result`; afterwards it is smaller and *result is its own. Runs at most `runs_max` scenarios.
void scenario_shrink(struct scenario *s, struct run_result *result, int runs_max);
