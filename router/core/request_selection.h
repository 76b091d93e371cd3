// SPDX-License-Identifier: Apache-2.0
// Gives a request its kept tokens, from a selection in the cache (a held selection) or from a new score. A new score
// also goes to the request's sharers (score_sharing.h). In a conversation, each turn has its own selection. Use on the
// core's thread only.
#pragma once

#include "router/core/core_state.h"

// Looks in the cache for a selection that the attached speculators would make for the request. Returns true if the
// request then has its kept tokens. The request's prefix chain is then the chain of the kept tokens.
bool core_request_find_selection(struct core *c, struct request *r);

// Lets a request whose selection was found wait for a worker group.
void core_request_reuse_score(struct core *c, struct request *r, int64_t now_us);

// Handles a speculator's answer. The request then waits for a worker group, or for the score of its conversation's next
// turn. If the answer is wrong, the request goes on without a score.
void core_request_scored(struct core *c, struct request *r, const struct score_result *result, int64_t now_us);
