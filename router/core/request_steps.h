// SPDX-License-Identifier: Apache-2.0
// Applies a worker group's report about a request: new tokens, log-probabilities of the prompt, the end. Checks the
// report first, because nodes are not trusted. Use on the core's thread only.
#pragma once

#include "router/core/core_state.h"

// Streams the new tokens to the client. This may end the request. The pointer is then no longer valid.
void core_request_step(struct core *c, struct request *r, const struct sequence_result *result, int64_t now_us);
