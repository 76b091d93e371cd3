// SPDX-License-Identifier: Apache-2.0
// The list of nodes: attaching, losing and draining them, and passing on what they report (the node functions of
// core.h). The core's thread only.
#pragma once

#include "router/core/core_state.h"

void core_nodes_check_silence(struct core *c, int64_t now_us); // at the start of a tick
void core_update_ready(struct core *c);                        // after `draining` has changed
void core_nodes_free(struct core *c);                          // none of them has requests any more
