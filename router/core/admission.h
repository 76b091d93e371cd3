// SPDX-License-Identifier: Apache-2.0
// Says which requests may join the queue: within its bounds for their class and tenant, and able to end in time. A
// refusal is a status with a sentence for the client. Reads the core and changes nothing. Use on the core's thread
// only.
#pragma once

#include "router/core/core_state.h"

// Checks a request that has arrived, except the time that its first token would take.
enum status admission_check(const struct core *c, const struct request *r, int64_t now_us);

// Refuses a request that is predicted to miss its deadline, so that it takes no capacity from other requests. `scored`:
// a speculator reads the prompt first.
enum status admission_check_deadline(const struct core *c, const struct request *r, bool scored, int64_t now_us);

// Returns the tenant name that the request counts for in the bounds of the queue.
const char *admission_queue_tenant(const struct core *c, const struct request *r);

// Returns the part of a bound of the queue that a class may fill.
int64_t admission_class_bound(const struct core *c, int64_t whole, enum queue_class queue_class);
