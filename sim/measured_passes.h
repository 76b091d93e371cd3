// SPDX-License-Identifier: Apache-2.0
// The time of a node's passes as a router measured it, by kind and size (router/core/pass_times.h). Keeps the mean time
// of each size and how much passes of a size deviate from it; interpolates between sizes.
#pragma once

#include <jansson.h>

#include "lib/base/random.h"
#include "router/core/pass_times.h"

struct measured_passes {
    double row_us, pair_us; // costs of the node's cost model
    struct measured_kind {
        struct measured_size {
            double rows;                // mean number of rows
            double us;                  // mean time, without the time of attention pairs
            struct histogram deviation; // measured over mean time; empty: unknown
        } sizes[COST_SIZES];            // by ascending rows
        int n;
    } kinds[PASS_KINDS];
};

// Reads the pass times of a node of forepack status --json. row_us and pair_us are the costs of the node's cost model.
// measured_passes_known() is false afterwards if the node has no classes of passes.
void measured_passes_read(struct measured_passes *m, const json_t *node, double row_us, double pair_us);

// Makes all passes of a size take the mean time.
void measured_passes_forget_deviations(struct measured_passes *m);

bool measured_passes_known(const struct measured_passes *m);
double measured_pass_us(const struct measured_passes *m, bool has_prompts, double rows, double pairs); // the mean

// Returns a random factor for the time of a pass of this kind and size. The factor has the mean 1 and varies like the
// measured passes.
double measured_pass_vary(const struct measured_passes *m, bool has_prompts, double rows, struct random_source *random);
