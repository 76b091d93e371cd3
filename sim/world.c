// SPDX-License-Identifier: Apache-2.0
#include "sim/world.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "lib/base/invariant.h"

void world_at(struct world *w, int64_t at_us, event_fn *fn, void *object, uint64_t tag, uint8_t *bytes, size_t n_bytes)
{
    INVARIANT(at_us >= w->now_us, "an event at %lld us, now is %lld us", (long long)at_us, (long long)w->now_us);
    event_queue_add(
        &w->queue,
        (struct event){.at_us = at_us, .fn = fn, .object = object, .tag = tag, .bytes = bytes, .n_bytes = n_bytes});
}

void world_fail(struct world *w, const char *format, ...)
{
    if (w->failed) return;
    w->failed = true;
    va_list args;
    va_start(args, format);
    vsnprintf(w->violation, sizeof w->violation, format, args);
    va_end(args);
}

void world_disturb(struct world *w, int64_t until_us)
{
    int64_t from_us = w->disturbed_until_us > w->now_us ? w->disturbed_until_us : w->now_us;
    if (until_us <= from_us) return;
    w->disturbed_us += until_us - from_us;
    w->disturbed_until_us = until_us;
}

void world_digest_bytes(struct world *w, const uint8_t *bytes, size_t n)
{
    for (uint64_t word; n; n -= n < sizeof word ? n : sizeof word, bytes += sizeof word) {
        word = 0;
        memcpy(&word, bytes, n < sizeof word ? n : sizeof word);
        world_digest(w, word);
    }
}
