// SPDX-License-Identifier: Apache-2.0
// The times of the passes that a node has reported since it attached, by kind and size. A plan of a cluster
// (docs/simulator.md) needs them in addition to the cost model, which is one line through all passes. Nothing here
// influences a decision. One thread.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "router/core/histogram.h"
#include "router/sched/cost.h"

enum { PASS_KINDS = 2 }; // passes without prompt rows, as all of a speculator's; passes with prompt rows

struct pass_class {
    uint64_t passes, rows, pairs, us; // sums over its passes
    struct histogram deviation;       // measured time divided by the predicted time, of passes that have one
};

struct pass_times {
    struct pass_class *classes[PASS_KINDS][COST_SIZES]; // by cost_size() of the rows; owned; NULL: no such pass
};

// Adds a pass. predicted_us 0: the cost model is not known yet.
void pass_times_add(struct pass_times *times, bool has_prompts, int64_t rows, int64_t pairs, int64_t us,
                    double predicted_us);
void pass_times_fini(struct pass_times *times);
