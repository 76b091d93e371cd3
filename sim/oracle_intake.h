// SPDX-License-Identifier: Apache-2.0
// Which requests a worker group must accept and which it must refuse, by plain rules, against what it does.
#pragma once

#include "lib/base/random.h"
#include "worker/scheduler.h"

// Draws some requests near the limits of the group. NULL, or what it did wrong with one.
const char *oracle_intake(struct random_source *random, const struct scheduler_limits *limits, int vocab_size);
