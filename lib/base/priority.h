// SPDX-License-Identifier: Apache-2.0
// Priorities of requests: larger ones go first. Values beyond PRIORITY_MAX or below -PRIORITY_MAX count as the nearest
// limit.
#pragma once

#include <stdint.h>

enum { PRIORITY_MAX = 8 };

static inline int priority_clamp(int64_t priority)
{
    return priority > PRIORITY_MAX ? PRIORITY_MAX : priority < -PRIORITY_MAX ? -PRIORITY_MAX : (int)priority;
}
