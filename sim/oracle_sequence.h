// SPDX-License-Identifier: Apache-2.0
// Checks a worker group's sequences between two passes: the state of a running sequence, and that a waiting one keeps
// nothing but its tokens. Also checks what the group learns from drafts.
#pragma once

#include "worker/scheduler_state.h"

// Counts and weights after the last step.
struct draft_watch {
    double accepted, refused; // weights by which the group chooses draft lengths
    uint64_t drafted, draft_accepted;
};

// Call after a step. Return NULL, or what is wrong.
const char *oracle_sequences(const struct scheduler *s);
const char *draft_watch_step(struct draft_watch *watch, const struct scheduler *s);
