// SPDX-License-Identifier: Apache-2.0
// Pacing (worker/pace.h) written again, from whole passes: what is learned from a pass, and how much prompt work the
// next one may contain. The group's own numbers must be the same.
#pragma once

#include "worker/scheduler_state.h"

struct pace_model {
    double decode_us, balance, most; // time of decodes alone; rows that take as long; most work of rows beside decodes
    double us_per_work[2];           // without and with decodes
    int decode_rows, alone, mixed;   // decodes of decode_us; passes since with decodes alone, and with prompt rows
    bool balance_is_known, is_started;
    double saved; // for the next pass, by the group
};

// After a pass that took `us`. NULL, or what the group did wrong.
const char *pace_model_step(struct pace_model *m, const struct scheduler *s, int64_t us);
