// SPDX-License-Identifier: Apache-2.0
// The state of a worker group's sequences between two passes: what must hold of a running one, and that a waiting one
// is as if it had never run, apart from its tokens. Also what the group learns from drafts.
#pragma once

#include "worker/scheduler_state.h"

// After the last step.
struct draft_watch {
    double accepted, refused; // as choosing the length of drafts weighs them
    uint64_t drafted, draft_accepted;
};

// After a step. NULL, or what is wrong.
const char *oracle_sequences(const struct scheduler *s);
const char *draft_watch_step(struct draft_watch *watch, const struct scheduler *s);
