// SPDX-License-Identifier: Apache-2.0
// Applies a worker group's report of a request: tokens, log-probabilities of its prompt, its end. Counts of nodes are
// checked first. Use on the core's thread only.
#pragma once

#include "router/core/core_state.h"

// Streams the new tokens to the client. It may end the request: the pointer is then no longer valid.
void core_request_step(struct core *c, struct request *r, const struct sequence_result *result, int64_t now_us);
