// SPDX-License-Identifier: Apache-2.0
// Sets the scheduler's data about the request's next pass on a node: the prefix chain (sched/prefix_chain.h), the
// number of tokens, and the rows of the conversation's earlier turns. Use on the core's thread only.
#pragma once

#include "router/core/core_state.h"

// Sets the prefix chain of the request's next pass, which computes the tokens in `kept`.
void core_request_set_prefix(const struct core *c, struct request *r, const struct token_range *kept, int n_kept);

// Sets sched.frozen: the rows of the turns whose selections are already added to the conversation.
void core_request_set_frozen(const struct core *c, struct request *r);

// Sets the size of the prompt that is sent to a speculator next: the prompt of a turn, or the whole prompt.
void core_request_set_score_prompt(const struct core *c, struct request *r);
