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

// Callbacks of a run. `begin` is called `from_us` after the start of the run, `end` before the world is freed.
struct run_watch {
    int64_t from_us;
    void (*begin)(struct world *w, void *arg), (*end)(struct world *w, void *arg);
    void *arg;
};

// Runs a scenario. The same scenario gives the same result in every new process, where requests are numbered from 1.
// `watch` may be NULL.
struct run_result run_scenario(const struct scenario *scenario, struct run_watch *watch);
