// SPDX-License-Identifier: Apache-2.0
// Sets what the scheduler knows of a request's next pass: its prefix, its size, and the rows that earlier turns of its
// conversation have. The core's thread only.
#pragma once

#include "router/core/core_state.h"

// Sets the prefix of the request's next pass, by the tokens that it computes.
void core_request_set_prefix(const struct core *c, struct request *r, const struct token_range *kept, int n_kept);

// Sets the rows of earlier turns. Turns whose selections are added already have no part in what is still to be scored
// and computed.
void core_request_set_frozen(const struct core *c, struct request *r);

// Sets what the speculator is sent next: the prompt of a turn, or the whole.
void core_request_set_score_prompt(const struct core *c, struct request *r);
