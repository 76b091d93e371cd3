// SPDX-License-Identifier: Apache-2.0
#include "lib/http/timers.h"

#include <stddef.h>

void http_timers_init(struct http_timers *t, int64_t now_us)
{
    *t = (struct http_timers){.tick = now_us / HTTP_TIMER_TICK_US};
}

void http_timer_remove(struct http_timer *timer)
{
    if (!timer->link) return;
    *timer->link = timer->next;
    if (timer->next) timer->next->link = timer->link;
    timer->link = NULL;
}

static void insert(struct http_timers *t, struct http_timer *timer)
{
    int64_t tick = (timer->due_us + HTTP_TIMER_TICK_US - 1) / HTTP_TIMER_TICK_US; // never early
    if (tick < t->tick) tick = t->tick;
    if (tick > t->tick + HTTP_TIMER_SLOTS - 2) tick = t->tick + HTTP_TIMER_SLOTS - 2;
    int slot = (int)(tick % HTTP_TIMER_SLOTS);
    timer->tick = tick;
    timer->link = &t->slot[slot];
    timer->next = t->slot[slot];
    if (timer->next) timer->next->link = &timer->next;
    t->slot[slot] = timer;
    t->used[slot / 64] |= UINT64_C(1) << slot % 64;
}

void http_timer_set(struct http_timers *t, struct http_timer *timer, int64_t due_us)
{
    timer->due_us = due_us;
    if (due_us == INT64_MAX) return;
    if (timer->link && timer->tick * HTTP_TIMER_TICK_US <= due_us) return;
    http_timer_remove(timer);
    insert(t, timer);
}

// Returns the first tick from t->tick on whose slot is used, or -1.
static int64_t next_tick(struct http_timers *t)
{
    for (int i = 0; i < HTTP_TIMER_SLOTS;) {
        int slot = (int)((t->tick + i) % HTTP_TIMER_SLOTS);
        uint64_t word = t->used[slot / 64] >> slot % 64;
        if (!word)
            i += 64 - slot % 64;
        else if (t->slot[(slot + __builtin_ctzll(word)) % HTTP_TIMER_SLOTS])
            return t->tick + i + __builtin_ctzll(word);
        else
            t->used[slot / 64] &= ~(UINT64_C(1) << (slot + __builtin_ctzll(word)) % 64);
    }
    return -1;
}

struct http_timer *http_timers_expire(struct http_timers *t, int64_t now_us)
{
    int64_t now_tick = now_us / HTTP_TIMER_TICK_US, tick;
    while ((tick = next_tick(t)) >= 0 && tick <= now_tick) {
        t->tick = tick;
        struct http_timer *timer = t->slot[tick % HTTP_TIMER_SLOTS];
        http_timer_remove(timer);
        if (timer->due_us <= now_us) {
            timer->due_us = INT64_MAX;
            return timer;
        }
        if (timer->due_us == INT64_MAX) continue;
        t->tick = tick + 1; // so that the timer does not go back into this slot
        insert(t, timer);
        t->tick = tick;
    }
    t->tick = now_tick;
    return NULL;
}

int64_t http_timers_next_us(struct http_timers *t)
{
    int64_t tick = next_tick(t);
    return tick < 0 ? INT64_MAX : tick * HTTP_TIMER_TICK_US;
}
