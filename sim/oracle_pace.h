// SPDX-License-Identifier: Apache-2.0
// Pacing of a worker group: whether passes with decode rows and prompt rows keep to the target on average.
#pragma once

#include "sim/engine.h"
#include "worker/scheduler_state.h"

// Of the passes with both kinds of rows: sums of their times without noise, and of the times that the target allows.
struct pace_watch {
    int passes;
    double us, target_us;
};

// After a step. NULL, or what is wrong.
const char *pace_watch_step(struct pace_watch *watch, const struct scheduler *s, const struct engine *engine);
