// SPDX-License-Identifier: Apache-2.0
// Decides which requests may join the queue. A request must fit the queue's bounds for its class and tenant, and must
// be able to end in time. status_message() tells the client why a request is refused. Reads the core and changes
// nothing. Use on the core's thread only.
#pragma once

#include "router/core/core_state.h"

// Checks a request that has arrived, except the time that its first token would take.
enum status admission_check(const struct core *c, const struct request *r, int64_t now_us);

// Refuses a request that is predicted to miss its deadline, so that it takes no capacity from other requests. `scored`
// is true if a speculator scores the prompt first.
enum status admission_check_deadline(const struct core *c, const struct request *r, bool scored, int64_t now_us);

// Returns the tenant name under which the request counts in the bounds of the queue. If tenant weights are given, every
// tenant with no weight counts as "".
const char *admission_queue_tenant(const struct core *c, const struct request *r);

// Returns the part of a bound of the queue that a class may fill.
int64_t admission_class_bound(const struct core *c, int64_t whole, enum queue_class queue_class);
