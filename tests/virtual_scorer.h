// SPDX-License-Identifier: Apache-2.0
// A scorer with a fake model. Its passes only advance the clock, by the time of an 8B model on one GPU. The file
// replaces libc's clock_gettime() in the program, so that lib/base/clock.h reads the fake clock.
#pragma once

#include <stdint.h>

#include "lib/text/generation.h"

enum { VIRTUAL_CONTEXT = 140000, VIRTUAL_BUDGET = 8192, VIRTUAL_SEQS = 64, VIRTUAL_KV_BLOCKS = 100000 };

struct pass_time {
    double fixed_us, row_us, pair_us;
};
double pass_time_us(const struct pass_time *t, double passes, double rows, double pairs);
extern const struct pass_time virtual_scorer_time;

extern int64_t virtual_now_us;

struct virtual_pass {
    int rows;
    int64_t pairs, us;
    uint64_t answered[VIRTUAL_SEQS]; // requests
    int n_answered;
};

void virtual_scorer_start(void);
void virtual_scorer_stop(void);
void virtual_scorer_add(uint64_t request, const int32_t *tokens, int n, const struct prefill *prefill);
const struct virtual_pass *virtual_scorer_step(void);
