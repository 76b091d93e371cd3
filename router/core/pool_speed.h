// SPDX-License-Identifier: Apache-2.0
// How fast a pool empties its queue: rows dispatched per time during which requests waited, over about the last half
// minute. Unlike an estimate from the costs of passes, this speed includes whatever else makes requests wait: KV blocks
// and sequence slots of running answers, for example. For autoscalers; no decision rests on it. One thread.
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct pool_speed {
    double rows, backlog_us; // dispatched from a queue that did not get empty, and the time of that; both fade
    uint64_t dispatched;     // of the last update
    int64_t updated_us;
    bool waits;
};

// After dispatching: `dispatched` rows in all since the start of the pool; `waits`: requests are left in the queue.
void pool_speed_update(struct pool_speed *speed, uint64_t dispatched, bool waits, int64_t now_us);

// Until `rows` waiting rows are dispatched. Infinite: requests have waited for less than a second lately.
double pool_speed_queue_us(const struct pool_speed *speed, int64_t rows);
