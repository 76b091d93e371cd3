// SPDX-License-Identifier: Apache-2.0
// Choices of one prompt share its score. The first of them is scored. The other choices, its sharers, are SCORING
// without waiting for a speculator, and get its kept tokens and its draft. If the scored request ends without a score,
// its first sharer is scored instead.
//
// Only requests of one exchange share a score, because they have the same prompt, options, tenant and priority; the
// front marks them (request.score_with). Use on the core's thread only.
#pragma once

#include "router/core/core_state.h"

// Returns the request whose score a request would share that is not admitted yet. NULL: it is scored by itself.
struct request *score_sharing_find(const struct core *c, const struct request *r);
void score_sharing_join(struct request *scored, struct request *r);
// Removes a sharer that ends. Has no effect on other requests.
void score_sharing_leave(struct request *r);
// Removes and returns the first of its sharers; NULL: there is none.
struct request *score_sharing_take(struct request *scored);
// Returns the first of its sharers, with which the other sharers then share; NULL: there is none.
struct request *score_sharing_hand_over(struct request *scored);
