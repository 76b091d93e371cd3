// SPDX-License-Identifier: Apache-2.0
// Pacing (worker/pace.h) written again for whole passes: what the group learns from a pass, and how much prompt work
// the next pass may contain. The numbers of the group must agree.
#pragma once

#include "worker/scheduler_state.h"

// Costs derived from the shape, in work: one row, one pair, and reading one entry.
struct shape_work {
    double row, pair, entry;
};
struct shape_work pace_shape_work(const struct model_config *config, double balance);

// Returns true if the time of `decodes` decode rows must be measured again.
bool pace_is_stale(double decode_us, int decode_rows, int mixed, int decodes);
// Scales the measured time of decode_rows rows to `decodes`. `row_us`: time of one prompt row.
double pace_decodes_us_expected(double decode_us, int decode_rows, const double us_per_work[2], double row_work,
                                int decodes);

struct pace_model {
    double decode_us;      // time of a pass with only decode rows
    double balance;        // prompt rows that take as long as decode_us
    double most;           // most prompt work in a mixed pass so far
    double us_per_work[2]; // time per unit of prompt work, without and with decodes in the pass
    int decode_rows;       // decode rows of the pass that took decode_us
    int alone;             // passes with only decode rows since the last pass with prompt rows
    int mixed;             // mixed passes since decode_us was measured
    bool balance_is_known, is_started;
    double saved;     // prompt work that the group saved for the next pass
    double sample_us; // time to sample a row on the host
};

// Call after a pass that took `us`, including `sampling_us` of sampling on the host. Returns NULL, or what the group
// did wrong.
const char *pace_model_step(struct pace_model *m, const struct scheduler *s, int64_t us, int64_t sampling_us);
