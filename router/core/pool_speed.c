// SPDX-License-Identifier: Apache-2.0
#include "router/core/pool_speed.h"

#include <math.h>

#define MEMORY_US 30e6
#define KNOWN_US  1e6

void pool_speed_update(struct pool_speed *speed, uint64_t dispatched, bool waits, int64_t now_us)
{
    double us = (double)(now_us - speed->updated_us), fade = us > 0 ? exp(-us / MEMORY_US) : 1;
    speed->rows *= fade;
    speed->backlog_us *= fade;
    if (speed->waits) { // rows of requests that did not have to wait say nothing about the speed
        speed->rows += (double)(dispatched - speed->dispatched);
        speed->backlog_us += us;
    }
    speed->dispatched = dispatched;
    speed->updated_us = now_us;
    speed->waits = waits;
}

double pool_speed_queue_us(const struct pool_speed *speed, int64_t rows)
{
    if (speed->backlog_us < KNOWN_US || speed->rows <= 0) return INFINITY;
    return (double)rows * speed->backlog_us / speed->rows;
}
