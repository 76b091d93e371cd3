// SPDX-License-Identifier: Apache-2.0
// Ends the process if its work makes no progress for too long. MPI does not notice a cut link or a stuck peer, and a
// thread does not notice that its device hangs: the call never returns. So another thread watches a counter of
// completed stages (kernels/comm.h). It does not limit the duration of a pass, so a long pass on a slow machine is not
// ended. In a group, a roll call (roll_call.h) names the missing rank.
//
// The process ends 1 to 1.25 times the limit after the last progress, plus the time of the roll call (at most
// ROLL_CALL_TIMEOUT_MS).
#pragma once

#include <stdatomic.h>

#include "engine/roll_call.h"

struct watchdog;

// Borrows the first two arguments. `roll_call` is NULL for one rank. No limit is set at first. If `staged` is true, a
// rank may wait for a slow pipeline stage: a pass is ended only if two roll calls find the same progress of all ranks.
struct watchdog *watchdog_start(struct roll_call *roll_call, const atomic_uint_least64_t *progress, bool staged);
void watchdog_stop(struct watchdog *w);
void watchdog_set_timeout(struct watchdog *w, int timeout_ms); // longest time of a pass without progress; 0: no limit

// Called by the working thread around work that may hang. If neither progress nor watchdog_leave() follows in time, the
// watchdog logs one line and calls _exit(1).
void watchdog_enter_pass(struct watchdog *w, int rows);
void watchdog_enter_sampling(struct watchdog *w); // limits the time of the whole sampling
// Limits the time of a few small messages between the ranks.
void watchdog_enter_check(struct watchdog *w, int timeout_ms);
void watchdog_enter_close(struct watchdog *w, int timeout_ms); // limits the time to close the model
// Begins work that may take any time, such as opening a model or waiting for the next pass. After each timeout the
// ranks are asked to answer a roll call, and the process ends only if a rank does not answer.
void watchdog_enter_open_ended(struct watchdog *w);
void watchdog_leave(struct watchdog *w);
