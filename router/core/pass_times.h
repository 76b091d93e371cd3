// SPDX-License-Identifier: Apache-2.0
// Times of the passes that a node has reported since it attached, by kind and size. The simulator (docs/simulator.md)
// needs these times to plan a cluster. The cost model is too coarse for that: it fits one line through all passes.
// Nothing here influences a decision. One thread.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "router/core/histogram.h"
#include "router/sched/cost.h"

enum { PASS_KINDS = 2 }; // 0: passes with no prompt rows, and every pass of a speculator; 1: passes with prompt rows

struct pass_class {
    uint64_t passes, rows, pairs, us; // sums over the passes of the class
    struct histogram deviation;       // measured time divided by predicted time, if the pass has a predicted time
};

struct pass_times {
    struct pass_class *classes[PASS_KINDS][COST_SIZES]; // indexed by cost_size(rows); owned; NULL: no such pass yet
};

// Adds a pass. predicted_us is 0 while the cost model is not known.
void pass_times_add(struct pass_times *times, bool has_prompts, int64_t rows, int64_t pairs, int64_t us,
                    double predicted_us);
void pass_times_fini(struct pass_times *times);
