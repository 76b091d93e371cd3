// SPDX-License-Identifier: Apache-2.0
// Measures how fast a pool empties its queue: rows dispatched while requests waited, divided by the time for which
// requests waited, over about the last 30 s. An estimate from pass costs covers passes only. This speed includes
// everything that makes requests wait, for example KV blocks and sequence slots of running answers. Autoscalers use
// this speed. No decision of the router depends on it. One thread.
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct pool_speed {
    double rows,         // decayed number of rows dispatched while requests waited
        backlog_us;      // decayed time for which requests waited
    uint64_t dispatched; // `dispatched` of the last update
    int64_t updated_us;  // time of the last update
    bool waits;          // true if requests were left in the queue at the last update
};

// Updates the speed after dispatching. `dispatched` counts all rows that were ever dispatched to the pool. `waits` is
// true if requests are left in the queue.
void pool_speed_update(struct pool_speed *speed, uint64_t dispatched, bool waits, int64_t now_us);

// Returns the time in microseconds until `rows` waiting rows are dispatched. Returns INFINITY while the speed is not
// known: in the last 30 s, requests waited for less than about a second in all.
double pool_speed_queue_us(const struct pool_speed *speed, int64_t rows);
