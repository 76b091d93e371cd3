// SPDX-License-Identifier: Apache-2.0
#include "identity/limits.h"

#include <math.h>

#define MINUTE_US INT64_C(60000000)
#define DAY_US    (1440 * MINUTE_US)

// A limit of `size` per `period_us`; size 0: none.
struct limit {
    const char *what;
    struct limits_bucket *bucket;
    int64_t size, period_us, taken; // taken: by the request that starts
};
enum { LIMITS = 3 };

static void list(struct limits_use *use, const struct key_limits *limits, int64_t tokens, struct limit list[LIMITS])
{
    list[0] = (struct limit){"requests per minute", &use->requests, limits->requests_per_minute, MINUTE_US, 1};
    list[1] = (struct limit){"tokens per minute", &use->tokens_of_minute, limits->tokens_per_minute, MINUTE_US, tokens};
    list[2] = (struct limit){"tokens per day", &use->tokens_of_day, limits->tokens_per_day, DAY_US, tokens};
}

static void drain(const struct limit *l, int64_t now_us)
{
    double drained = (double)(now_us - l->bucket->at_us) * (double)l->size / (double)l->period_us;
    l->bucket->used = l->size ? fmax(0, l->bucket->used - drained) : 0;
    l->bucket->at_us = now_us;
}

// Time until there is room for one more.
static int64_t wait_us(const struct limit *l)
{
    double over = l->bucket->used + 1 - (double)l->size;
    return l->size && over > 0 ? (int64_t)ceil(over * (double)l->period_us / (double)l->size) : 0;
}

static enum status refuse(const struct limit *l, int64_t us)
{
    return status_fail(STATUS_EXHAUSTED, "the %lld %s of this API key are used up: try again in %.1f s",
                       (long long)l->size, l->what, ceil((double)us / 1e5) / 10);
}

enum status limits_start(struct limits_use *use, const struct key_limits *limits, int64_t tokens, int64_t now_us,
                         int64_t *retry_us_p)
{
    struct limit all[LIMITS];
    list(use, limits, tokens, all);
    *retry_us_p = 0;
    if (limits->concurrency && use->running >= limits->concurrency)
        return status_fail(STATUS_EXHAUSTED,
                           "%lld requests of this API key run, as many as it may: wait for one to end",
                           (long long)use->running);
    const struct limit *longest = NULL;
    for (int i = 0; i < LIMITS; i++) {
        drain(&all[i], now_us);
        if (wait_us(&all[i]) <= *retry_us_p) continue;
        longest = &all[i];
        *retry_us_p = wait_us(longest);
    }
    if (longest) return refuse(longest, *retry_us_p);
    for (int i = 0; i < LIMITS; i++)
        all[i].bucket->used += (double)all[i].taken;
    use->running++;
    return STATUS_OK;
}

void limits_end(struct limits_use *use, const struct key_limits *limits, int64_t tokens, int64_t now_us)
{
    struct limit all[LIMITS];
    list(use, limits, tokens, all);
    for (int i = 1; i < LIMITS; i++) { // those of tokens
        drain(&all[i], now_us);
        all[i].bucket->used = fmax(0, all[i].bucket->used + (double)tokens);
    }
    use->running--;
}
