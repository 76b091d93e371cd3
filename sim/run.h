// SPDX-License-Identifier: Apache-2.0
// Runs a scenario from its first action until everything is idle again.
#pragma once

#include "sim/world.h"

struct run_result {
    uint64_t events, digest;
    int64_t simulated_us;
    bool failed;
    char violation[512];
};

typedef void run_report_fn(struct world *w, void *arg); // looks at the world before it is freed

// `report` may be NULL. The same scenario gives the same result in every new process: requests are numbered from 1
// there.
struct run_result run_scenario(const struct scenario *scenario, run_report_fn *report, void *arg);
