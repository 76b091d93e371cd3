// SPDX-License-Identifier: Apache-2.0
// Shares one score among the choices of a prompt (OpenAI's `n`: several answers to one prompt, each a request). The
// first choice is scored. The other choices are its sharers: they are SCORING without waiting for a speculator, and get
// the kept tokens and the draft of the first choice. If the scored request ends without a score, its first sharer is
// scored instead.
//
// Only choices of one call share a score, because they have the same prompt, options, tenant and priority. The front
// marks them (request.score_with). Use on the core's thread only.
#pragma once

#include "router/core/core_state.h"

// Returns the request whose score `r` can share, or NULL if `r` must be scored itself. Call before `r` is admitted.
struct request *score_sharing_find(const struct core *c, const struct request *r);
void score_sharing_join(struct request *scored, struct request *r);
// Removes a sharer that ends. Has no effect on a request that is no sharer.
void score_sharing_leave(struct request *r);
// Removes and returns the first sharer of `scored`, or NULL if it has none.
struct request *score_sharing_take(struct request *scored);
// Removes and returns the first sharer of `scored`, or NULL if it has none. The other sharers become sharers of the
// returned request.
struct request *score_sharing_hand_over(struct request *scored);
