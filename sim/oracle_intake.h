// SPDX-License-Identifier: Apache-2.0
// The requests that a worker group must accept and refuse, by plain rules, compared with what the group does.
#pragma once

#include "lib/base/random.h"
#include "worker/scheduler.h"

// Makes random requests near the limits of the group. Returns NULL, or what the group did wrong.
const char *oracle_intake(struct random_source *random, const struct scheduler_limits *limits, int vocab_size);
