// SPDX-License-Identifier: Apache-2.0
// Ends the process when one pass takes too long. MPI does not notice a cut link or a stuck peer: the collective never
// returns, so a thread outside MPI watches the clock. A roll call (roll_call.h) names the rank that is missing.
#pragma once

#include "engine/roll_call.h"

struct watchdog;

struct watchdog *watchdog_start(struct roll_call *roll_call, int timeout_ms); // borrows it; 0: no limit
void watchdog_stop(struct watchdog *w);
void watchdog_set_timeout(struct watchdog *w, int timeout_ms);

// Called by the working thread around every pass. When watchdog_leave() does not follow within the timeout, the
// watchdog logs one line and calls _exit(1). rows 0 stands for work without a time limit: then the ranks are asked to
// answer a roll call after every timeout, and the process ends only when a rank does not answer.
void watchdog_enter(struct watchdog *w, int rows);
void watchdog_leave(struct watchdog *w);
