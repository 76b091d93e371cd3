// SPDX-License-Identifier: Apache-2.0
// Runs each scenario in a separate process: a broken invariant ends one run, not the program, and every run begins with
// the same state.
#pragma once

#include "sim/run.h"

enum { ISOLATED_CPU_S = 120 }; // a run that takes more processor time counts as hung

// Runs a scenario. Also fills result->violation if the process died. `quiet`: discards the process's log.
void isolated_run(const struct scenario *scenario, bool quiet, struct run_result *result);

// Runs the scenarios of `n` seeds from `first` on, `jobs` at a time. Calls `on_end` for each in the order of seeds,
// until `on_end` returns false.
typedef bool isolated_end_fn(void *arg, uint64_t seed, const struct run_result *result);
void isolated_run_seeds(uint64_t first, uint64_t n, int64_t events, int jobs, isolated_end_fn *on_end, void *arg);
