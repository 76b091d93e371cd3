// SPDX-License-Identifier: Apache-2.0
// Dispatches the shadows (shadow.h) to idle worker groups, and cancels them when requests arrive. Use on the core's
// thread only.
#pragma once

#include "router/core/core_state.h"

// Cancels the running shadows, which then wait again, unless there is an idle worker group for each request that waits
// for one and for `arriving` requests more.
void shadows_make_room(struct core *c, int arriving, int64_t now_us);
// Drops shadows that waited too long, or all shadows if the router drains. If may_dispatch is true, dispatches at most
// one shadow to a worker group that has no requests.
void shadows_tick(struct core *c, bool may_dispatch, int64_t now_us);
int64_t shadows_next_us(const struct core *c); // time of the next shadows_tick() that has work; INT64_MAX: none
