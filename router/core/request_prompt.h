// SPDX-License-Identifier: Apache-2.0
// Sets the scheduler's data about a request's next pass: its prefix, its size, and the rows that earlier turns of its
// conversation have. Use on the core's thread only.
#pragma once

#include "router/core/core_state.h"

// Sets the prefix of the request's next pass, by the tokens that it computes.
void core_request_set_prefix(const struct core *c, struct request *r, const struct token_range *kept, int n_kept);

// Sets the rows of earlier turns. Turns whose selections are already added are not scored or computed again.
void core_request_set_frozen(const struct core *c, struct request *r);

// Sets the prompt that the speculator is sent next: the prompt of a turn, or the whole prompt.
void core_request_set_score_prompt(const struct core *c, struct request *r);
