// SPDX-License-Identifier: Apache-2.0
// A timing wheel (Varghese and Lauck, SOSP 1987): one timer for each connection, all operations in constant time.
// Extending a timer only stores the new time; the wheel checks the timer again at the old time. Zero a timer to
// initialise it. One thread.
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct http_timer {
    struct http_timer *next, **link; // in the list of a slot; link NULL: in no list
    int64_t due_us;                  // INT64_MAX: not set
    int64_t tick;                    // tick of its slot
};

enum { HTTP_TIMER_SLOTS = 512, HTTP_TIMER_TICK_US = 10000 };

struct http_timers {
    struct http_timer *slot[HTTP_TIMER_SLOTS];
    uint64_t used[HTTP_TIMER_SLOTS / 64]; // one bit per slot that may hold timers
    int64_t tick;                         // all earlier ticks have passed
};

void http_timers_init(struct http_timers *timers, int64_t now_us);
void http_timer_set(struct http_timers *timers, struct http_timer *timer, int64_t due_us); // INT64_MAX: clears it
void http_timer_remove(struct http_timer *timer);
// Clears and returns a timer that is due, or returns NULL.
struct http_timer *http_timers_expire(struct http_timers *timers, int64_t now_us);
int64_t http_timers_next_us(struct http_timers *timers); // when to call expire next; INT64_MAX: no timer is set
