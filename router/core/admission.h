// SPDX-License-Identifier: Apache-2.0
// Decides which requests may join the queue. A request must fit the queue's bounds for its class and tenant, and an
// attached worker group. Its first token must be expected before its deadline. status_message() tells the client why a
// request is refused. Reads the core and does not change it. Use on the core's thread only.
#pragma once

#include "router/core/core_state.h"

// Reduces max_tokens of a new request to what the attached worker groups have room for, if the request allows it
// (context_policy.reduces). A worker group that was lost and may come back counts as attached.
void admission_reduce_output(const struct core *c, struct request *r, int64_t now_us);

// Checks everything about a new request, except the expected time of its first token.
enum status admission_check(const struct core *c, const struct request *r, int64_t now_us);

// Refuses a request that is predicted to miss its deadline, so that it takes no capacity from other requests. `scored`
// is true if a speculator scores the prompt first.
enum status admission_check_deadline(const struct core *c, const struct request *r, bool scored, int64_t now_us);

// Returns the tenant name under which the request counts in the bounds of the queue. If the operator gives tenant
// weights, all tenants without a weight count together, as "".
const char *admission_queue_tenant(const struct core *c, const struct request *r);

// Returns how much of the queue bound `whole` requests of the class may fill.
int64_t admission_class_bound(const struct core *c, int64_t whole, enum queue_class queue_class);
