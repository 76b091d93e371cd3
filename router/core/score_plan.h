// SPDX-License-Identifier: Apache-2.0
// Decides how a request that has arrived gets its kept tokens. No other file makes this decision;
// core_submit() acts on it. The core's thread only.
#pragma once

#include "router/core/core_state.h"

enum score_action {
    SCORE_SKIP,  // no speculator reads the prompt: it is kept whole, or the request ends if it requires a score
    SCORE_REUSE, // a selection of the same prompt and options is held
    SCORE_SHARE, // another choice of the same prompt is being scored
    SCORE_RUN,   // a speculator scores it
};

struct score_plan {
    enum score_action action;
    enum skip_reason skip;  // of SCORE_SKIP
    struct request *scored; // of SCORE_SHARE: the request whose score it is given
};

// Drops the quality of a request that also has a keep rate, if no calibration covers it: the keep rate applies then.
// Call it before score_plan_make().
void score_plan_settle_quality(const struct core *c, struct request *r);

// Makes the plan of a request that admission_check() passed. With SCORE_REUSE the request has its kept tokens
// afterwards. Writes `predicted` of a request that the router may keep whole.
struct score_plan score_plan_make(struct core *c, struct request *r, int64_t now_us);
