// SPDX-License-Identifier: Apache-2.0
// Shares the passes of a scorer between prompts being read (the rows of the prompt are computed) and prompts in
// look-ahead.
//
// A look-ahead pass has one row for each prompt in look-ahead and takes little time. In a full pass, a look-ahead row
// waits for thousands of prompt rows, so a prompt with seven more steps would wait for seven full passes. So look-ahead
// passes run first, as long as they take at most an eighth of the time of passes with prompt rows. This limit is
// reached only if passes with prompt rows are short. Beyond the limit, look-ahead rows join passes with prompt rows. So
// prompts are read at eight ninths of the full rate or faster.
//
// The room of a pass is counted in work instead of rows, because a row after many KV entries takes longer. The unit of
// work is a row without earlier KV entries. So the late chunks of a long prompt have fewer rows, and no pass takes much
// longer than a full pass without cached entries.
//
// These decisions change when rows are computed, never their results. Plain data without a clock; one thread.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "lib/text/config.h"

struct score_pace {
    double pair_rows; // work of one attention pair, in rows without attention
    double step_us;   // time of a look-ahead pass; 0 if not known
    double credit_us; // time that look-ahead passes may still take before the next pass with prompt rows
};

void score_pace_init(struct score_pace *p, const struct model_config *config);

// Returns true if the next pass has only look-ahead rows, even if prompts wait to be read.
bool score_pace_look_ahead_first(const struct score_pace *p);

// Records a pass of `us` microseconds. `others_waited` is true if prompts waited to be read during this look-ahead
// pass.
void score_pace_look_ahead_done(struct score_pace *p, bool others_waited, int64_t us);
void score_pace_prompts_done(struct score_pace *p, int64_t us);

// Returns the work of `rows` rows after `entries` entries.
double score_pace_work(const struct score_pace *p, int entries, int rows);
// Returns how many rows after `entries` entries fit `work`.
int score_pace_rows(const struct score_pace *p, int entries, double work);
