// SPDX-License-Identifier: Apache-2.0
// Ends the process when one pass takes too long. MPI does not notice a cut link or a stuck peer: the collective
// just never returns, so somebody outside it must look at the clock. Whom the others wait for, a roll call tells.
#pragma once

#include "engine/roll.h"

struct watchdog;

struct watchdog *watchdog_start(struct roll *roll, int limit_ms); // 0: no limit
void watchdog_stop(struct watchdog *dog);
void watchdog_set_timeout(struct watchdog *dog, int limit_ms);

// Around every pass, by the working thread. When `leave` has not come within the limit: one line in the log, _exit(1).
// 0 rows stand for what may take any time while all ranks answer, which they are asked to every time the limit is over.
void watchdog_enter(struct watchdog *dog, int rows);
void watchdog_leave(struct watchdog *dog);
