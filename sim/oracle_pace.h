// SPDX-License-Identifier: Apache-2.0
// Checks pacing of a worker group: on average, passes with decode rows and prompt rows keep to the target.
#pragma once

#include "sim/engine.h"
#include "worker/scheduler_state.h"

// Sums over the passes with both decode rows and prompt rows.
struct pace_watch {
    int passes;
    double us;        // times of the passes, without noise
    double target_us; // times that the target allows
};

// Call after a step. Returns NULL, or what is wrong.
const char *pace_watch_step(struct pace_watch *watch, const struct scheduler *s, const struct engine *engine);
