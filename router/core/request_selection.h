// SPDX-License-Identifier: Apache-2.0
// Gives a request its kept tokens, from a selection that is held or from a new score. Its sharers are given the new
// score too. In a conversation each turn has a selection. Use on the core's thread only.
#pragma once

#include "router/core/core_state.h"

// Looks for a selection of the same prompt and options by the attached speculators. Returns true if the request has its
// kept tokens, and its prefix is made of these.
bool core_request_find_selection(struct core *c, struct request *r);

// Sends a request whose selection was found to the worker groups.
void core_request_reuse_score(struct core *c, struct request *r, int64_t now_us);

// Takes a speculator's answer. The request goes to the worker groups, waits for the score of its next turn, or goes on
// without a score if the answer is wrong.
void core_request_scored(struct core *c, struct request *r, const struct score_result *result, int64_t now_us);
