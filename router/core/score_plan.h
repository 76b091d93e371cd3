// SPDX-License-Identifier: Apache-2.0
// Decides how a request that has arrived gets its kept tokens. No other file makes this decision; core_submit() acts on
// it. Use on the core's thread only.
#pragma once

#include "router/core/core_state.h"

enum score_action {
    SCORE_SKIP,  // no speculator reads the prompt: it is kept whole, or the request ends because it requires a score
    SCORE_REUSE, // a selection of the same prompt and options is held
    SCORE_SHARE, // another choice of the same prompt is being scored
    SCORE_RUN,   // a speculator scores it
};

struct score_plan {
    enum score_action action;
    enum skip_reason skip;  // with SCORE_SKIP
    struct request *scored; // with SCORE_SHARE: the request whose score is shared
};

// Drops the quality of a request that also has a keep rate, if no calibration covers its options. The keep rate then
// applies. Call before score_plan_make().
void score_plan_settle_quality(const struct core *c, struct request *r);

// Makes the plan of a request that passed admission_check(). With SCORE_REUSE, the request has its kept tokens
// afterwards. Writes r->predicted if the router may choose to keep the whole prompt, or if the client wants the stages.
struct score_plan score_plan_make(struct core *c, struct request *r, int64_t now_us);
