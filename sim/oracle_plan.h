// SPDX-License-Identifier: Apache-2.0
// Fills each bin a second time, from plain lists of what waits (the rules stand in router/sched/bin_planner.h), and
// compares it with the router's. Takes the place of plan_bin() at link time, which it calls. Whether a request fits a
// node without the others of its bin is the router's own (see oracle_view.h).
#pragma once

#include <stdbool.h>

void oracle_plan_watch(bool watch); // from now on; off at first
// What was wrong with a bin since the last call; NULL: nothing.
const char *oracle_plan_problem(void);
