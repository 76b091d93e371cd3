// SPDX-License-Identifier: Apache-2.0
// Asks sched/ for plans and applies them, until no node wants a bin. Use on the core's thread only.
#pragma once

#include "router/core/core_state.h"

void core_dispatch(struct core *c, int64_t now_us); // the work of one tick
// Sends a READY request that waits in no waiting set to the node, in a bin of its own.
void core_dispatch_alone(struct core *c, struct request *r, struct core_node *node, int64_t now_us);
bool core_dispatch_is_pending(const struct core *c); // true: the next tick has to go on dispatching
