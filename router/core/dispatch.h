// SPDX-License-Identifier: Apache-2.0
// Dispatching: asks sched/ for plans and applies them, until no node wants a bin. The core's thread only.
#pragma once

#include "router/core/core_state.h"

void core_dispatch(struct core *c, int64_t now_us);
