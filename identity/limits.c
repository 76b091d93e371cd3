// SPDX-License-Identifier: Apache-2.0
#include "identity/limits.h"

#include <math.h>

#define MINUTE_US INT64_C(60000000)
#define DAY_US    (1440 * MINUTE_US)

// A limit of `size` per `period_us`; size 0: none.
struct limit {
    const char *what;
    struct limits_bucket *bucket;
    int64_t size, period_us;
};
enum { TOKENS = 1, LIMITS = 3 }; // TOKENS: the first of those of tokens

// What is used at this time.
static void list(struct limits_use *use, const struct key_limits *limits, int64_t now_us, struct limit list[LIMITS])
{
    list[0] = (struct limit){"requests per minute", &use->requests, limits->requests_per_minute, MINUTE_US};
    list[1] = (struct limit){"tokens per minute", &use->tokens_of_minute, limits->tokens_per_minute, MINUTE_US};
    list[2] = (struct limit){"tokens per day", &use->tokens_of_day, limits->tokens_per_day, DAY_US};
    for (int i = 0; i < LIMITS; i++) {
        struct limits_bucket *bucket = list[i].bucket;
        double drained = (double)(now_us - bucket->at_us) * (double)list[i].size / (double)list[i].period_us;
        *bucket = (struct limits_bucket){list[i].size ? fmax(0, bucket->used - drained) : 0, now_us};
    }
}

// Time until there is room for one more.
static int64_t wait_us(const struct limit *l)
{
    double over = l->bucket->used + 1 - (double)l->size;
    return l->size && over > 0 ? (int64_t)ceil(over * (double)l->period_us / (double)l->size) : 0;
}

static enum status refuse(const struct limit *l, int64_t us)
{
    return status_fail(STATUS_EXHAUSTED, "this API key has %lld %s, which are used up: try again in %.1f s",
                       (long long)l->size, l->what, ceil((double)us / 1e5) / 10);
}

// Whether the first n limits have room for one more.
static enum status check(const struct limit *limits, int n, int64_t *retry_us_p)
{
    const struct limit *longest = NULL;
    *retry_us_p = 0;
    for (int i = 0; i < n; i++) {
        if (wait_us(&limits[i]) <= *retry_us_p) continue;
        longest = &limits[i];
        *retry_us_p = wait_us(longest);
    }
    return longest ? refuse(longest, *retry_us_p) : STATUS_OK;
}

enum status limits_count_call(struct limits_use *use, const struct key_limits *limits, int64_t now_us,
                              int64_t *retry_us_p)
{
    struct limit all[LIMITS];
    list(use, limits, now_us, all);
    TRY(check(all, TOKENS, retry_us_p));
    use->requests.used++;
    return STATUS_OK;
}

static void add(struct limits_use *use, const struct key_limits *limits, int n, int64_t now_us)
{
    struct limit all[LIMITS];
    list(use, limits, now_us, all);
    use->requests.used += n;
    use->running += n;
}

enum status limits_start(struct limits_use *use, const struct key_limits *limits, int64_t now_us, int64_t *retry_us_p)
{
    struct limit all[LIMITS];
    list(use, limits, now_us, all);
    TRY(check(all, LIMITS, retry_us_p));
    if (limits->concurrency && use->running >= limits->concurrency)
        return status_fail(STATUS_EXHAUSTED, "this API key runs %lld requests, as many as it may: wait for one to end",
                           (long long)use->running);
    add(use, limits, 1, now_us);
    return STATUS_OK;
}

enum status limits_join(struct limits_use *use, const struct key_limits *limits, int n, int64_t now_us)
{
    if (limits->concurrency && n >= limits->concurrency)
        return status_fail(STATUS_DENIED, "n: %d answers are asked for, this API key runs at most %lld at once", n + 1,
                           (long long)limits->concurrency);
    if (limits->concurrency && use->running + n > limits->concurrency)
        return status_fail(STATUS_EXHAUSTED,
                           "this API key runs %lld requests, %d more are over its limit of %lld: "
                           "wait for some to end",
                           (long long)use->running, n, (long long)limits->concurrency);
    add(use, limits, n, now_us);
    return STATUS_OK;
}

void limits_charge(struct limits_use *use, const struct key_limits *limits, double tokens, int64_t now_us)
{
    struct limit all[LIMITS];
    list(use, limits, now_us, all);
    for (int i = TOKENS; i < LIMITS; i++)
        all[i].bucket->used = fmax(0, all[i].bucket->used + tokens);
}

void limits_end(struct limits_use *use)
{
    use->running--;
}
