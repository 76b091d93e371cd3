// SPDX-License-Identifier: Apache-2.0
// Pacing (worker/pace.h) written again, from whole passes: what is learned from a pass, and how much prompt work the
// next one may contain. The group's own numbers must be the same.
#pragma once

#include "worker/scheduler_state.h"

// Costs that follow from the shape: of a row, of a pair, and of reading an entry, in work.
struct shape_work {
    double row, pair, entry;
};
struct shape_work pace_shape_work(const struct model_config *config, double balance);

// Whether the time of `decodes` decode rows is to be measured.
bool pace_is_stale(double decode_us, int decode_rows, int mixed, int decodes);
// From the measured time of decode_rows rows. `row_us`: of a prompt row.
double pace_decodes_us_expected(double decode_us, int decode_rows, double row_us, int decodes);

struct pace_model {
    double decode_us, balance, most; // time of decodes alone; rows that take as long; most work of rows beside decodes
    double us_per_work[2];           // without and with decodes
    int decode_rows, alone, mixed;   // decodes of decode_us; passes since with decodes alone, and with prompt rows
    bool balance_is_known, is_started;
    double saved;     // for the next pass, by the group
    double sample_us; // of a row on the host
};

// After a pass that took `us`, of which the host sampled for `sampling_us`. NULL, or what the group did wrong.
const char *pace_model_step(struct pace_model *m, const struct scheduler *s, int64_t us, int64_t sampling_us);
