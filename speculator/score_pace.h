// SPDX-License-Identifier: Apache-2.0
// How a scorer shares its passes between prompts that are read and prompts in look-ahead.
//
// A look-ahead row costs little in a pass of its own kind (a look-ahead pass: one row for each prompt in look-ahead),
// but inside a full pass it waits for thousands of prompt rows: with seven further steps a prompt would wait for seven
// full passes. So look-ahead passes go first, as long as they take at most an eighth of the time that passes with
// prompt rows take. Beyond that share, which only short passes with prompt rows reach, look-ahead rows ride on passes
// with prompt rows: prompts are read at eight ninths of the full rate at least.
//
// The room of a pass is counted in work rather than rows: a row behind many KV entries takes longer, so the deep chunks
// of a long prompt have fewer rows, and no pass takes much longer than a full one without cached entries.
//
// Decides when rows are computed, never their result. Plain data without a clock; one thread.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "lib/text/config.h"

struct score_pace {
    double pair_rows; // rows without attention that take as long as one attention pair
    double step_us;   // time of a look-ahead pass; 0: not known
    double credit_us; // that look-ahead passes may take before the next pass with prompt rows
};

void score_pace_init(struct score_pace *p, const struct model_config *config);

// Whether the next pass is a look-ahead pass although prompts wait to be read.
bool score_pace_look_ahead_first(const struct score_pace *p);

// Ends a pass of `us`. `others_waited`: a look-ahead pass kept prompts waiting.
void score_pace_look_ahead_done(struct score_pace *p, bool others_waited, int64_t us);
void score_pace_prompts_done(struct score_pace *p, int64_t us);

double score_pace_work(const struct score_pace *p, int entries, int rows); // of `rows` rows behind `entries` entries
int score_pace_rows(const struct score_pace *p, int entries, double work); // rows that fit `work`
