// SPDX-License-Identifier: Apache-2.0
// Choices of one prompt share its score. One of them is scored, the first. The others, its sharers, are SCORING without
// waiting for a speculator, and get its kept tokens and its draft. If it ends without a score, the first sharer is
// scored instead.
//
// Only requests of one exchange share: the front says so (request.score_with), since they have the same prompt,
// options, tenant and priority. The core's thread only.
#pragma once

#include "router/core/core_state.h"

// The request whose score a request that is not admitted yet would share; NULL: it is scored by itself.
struct request *score_sharing_find(const struct core *c, const struct request *r);
void score_sharing_join(struct request *scored, struct request *r);
// Of a sharer that ends; others: no effect.
void score_sharing_leave(struct request *r);
// The first of its sharers, which is none from now on; NULL: there is none.
struct request *score_sharing_take(struct request *scored);
// The first of its sharers, which the others now share with; NULL: there is none.
struct request *score_sharing_hand_over(struct request *scored);
