// SPDX-License-Identifier: Apache-2.0
// Fills each bin a second time, from plain lists of the waiting requests (router/sched/bin_planner.h has the rules),
// and compares it with the router's bin. Replaces plan_bin() at link time and calls it. Asks the router whether one
// request fits a node (oracle_view.h checks this).
#pragma once

#include <stdbool.h>

void oracle_plan_watch(bool watch); // off at first
// Returns what was wrong with a bin since the last call, or NULL.
const char *oracle_plan_problem(void);
