// SPDX-License-Identifier: Apache-2.0
// Measures how fast a pool empties its queue: the rows dispatched per time during which requests waited, over about the
// last half minute. An estimate from the costs of passes covers passes only. This speed includes everything else that
// makes requests wait, for example KV blocks and sequence slots of running answers. It is for autoscalers; no decision
// depends on it. One thread.
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct pool_speed {
    double rows, backlog_us; // rows dispatched from a queue that did not get empty, and the time of this; both fade
    uint64_t dispatched;     // rows at the last update
    int64_t updated_us;
    bool waits;
};

// Updates the speed after dispatching. `dispatched`: rows in all since the start of the pool. `waits`: requests are
// left in the queue.
void pool_speed_update(struct pool_speed *speed, uint64_t dispatched, bool waits, int64_t now_us);

// Returns the time until `rows` waiting rows are dispatched. Infinite: requests have waited for less than a second
// lately.
double pool_speed_queue_us(const struct pool_speed *speed, int64_t rows);
