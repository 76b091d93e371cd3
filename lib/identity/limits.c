// SPDX-License-Identifier: Apache-2.0
#include "lib/identity/limits.h"

#include <math.h>
#include <stdio.h>

#define MINUTE_US INT64_C(60000000)
#define DAY_US    (1440 * MINUTE_US)
// Largest wait that is reported. After a limit was lowered, the earlier use may take even longer to drain.
#define WAIT_MAX_US (366.0 * (double)DAY_US)

// A limit of `size` per `period_us`. Size 0 means no limit.
struct limit {
    const char *what;
    struct limits_bucket *bucket;
    int64_t size, period_us;
    double reserved;
};
enum { TOKENS = 1, LIMITS = 3 }; // TOKENS is the first limit of tokens

// Lists the limits with their use at this time.
static void list(struct limits_use *use, const struct key_limits *limits, int64_t now_us, struct limit list[LIMITS])
{
    list[0] = (struct limit){"requests per minute", &use->requests, limits->requests_per_minute, MINUTE_US, 0};
    list[1] = (struct limit){"tokens per minute", &use->tokens_of_minute, limits->tokens_per_minute, MINUTE_US,
                             use->reserved};
    list[2] = (struct limit){"tokens per day", &use->tokens_of_day, limits->tokens_per_day, DAY_US, use->reserved};
    for (int i = 0; i < LIMITS; i++) {
        struct limits_bucket *bucket = list[i].bucket;
        double drained = (double)(now_us - bucket->at_us) * (double)list[i].size / (double)list[i].period_us;
        *bucket = (struct limits_bucket){list[i].size ? fmax(0, bucket->used - drained) : 0, now_us};
    }
}

// Returns how many tokens or requests are missing for `more`. A result of 0 or less means that there is room.
static double missing(const struct limit *l, double more)
{
    return l->size ? l->bucket->used + l->reserved + more - (double)l->size : 0;
}

// Returns the time until there is room, or 0 if it is not known because running requests have to end first.
static int64_t wait_us(const struct limit *l, double more)
{
    double over = missing(l, more);
    double us = ceil(over * (double)l->period_us / (double)l->size);
    return over <= l->bucket->used ? (int64_t)fmin(us, WAIT_MAX_US) : 0;
}

static enum status refuse(const struct limit *l, double more, int64_t us)
{
    char when[64] = "when running requests have ended";
    if (us) snprintf(when, sizeof when, "in %.1f s", ceil((double)us / 1e5) / 10);
    if (more <= 1)
        return status_fail(STATUS_KEY_LIMIT, "this API key has %lld %s, which are used up: try again %s",
                           (long long)l->size, l->what, when);
    return status_fail(STATUS_KEY_LIMIT,
                       "this API key has %lld %s, of which %.0f are left, and %.0f may be needed: lower max_tokens, or "
                       "try again %s",
                       (long long)l->size, l->what, more - missing(l, more), more, when);
}

// Checks that the n limits have room for `more`. If not, the error message names the limit with the longest wait.
static enum status check(const struct limit *limits, int n, double more, int64_t *retry_us_p)
{
    const struct limit *longest = NULL;
    *retry_us_p = 0;
    for (int i = 0; i < n; i++) {
        if (missing(&limits[i], more) <= 0 || (longest && wait_us(&limits[i], more) <= *retry_us_p)) continue;
        longest = &limits[i];
        *retry_us_p = wait_us(longest, more);
    }
    return longest ? refuse(longest, more, *retry_us_p) : STATUS_OK;
}

enum status limits_count_call(struct limits_use *use, const struct key_limits *limits, int64_t now_us,
                              int64_t *retry_us_p)
{
    struct limit all[LIMITS];
    list(use, limits, now_us, all);
    TRY(check(all, TOKENS, 1, retry_us_p));
    use->requests.used++;
    return STATUS_OK;
}

enum status limits_start(struct limits_use *use, const struct key_limits *limits, int64_t now_us, int64_t *retry_us_p)
{
    struct limit all[LIMITS];
    list(use, limits, now_us, all);
    TRY(check(all, LIMITS, 1, retry_us_p));
    if (limits->concurrency && use->running >= limits->concurrency)
        return status_fail(STATUS_KEY_LIMIT, "this API key runs %lld requests, which is its limit: wait for one to end",
                           (long long)use->running);
    use->requests.used++;
    use->running++;
    return STATUS_OK;
}

static enum status check_concurrency(const struct limits_use *use, const struct key_limits *limits, int more)
{
    if (!limits->concurrency || use->running + more <= limits->concurrency) return STATUS_OK;
    if (more >= limits->concurrency)
        return status_fail(STATUS_DENIED,
                           "n: the request has %d choices, and this API key may run at most %lld at the same time",
                           more + 1, (long long)limits->concurrency);
    return status_fail(STATUS_KEY_LIMIT,
                       "this API key runs %lld requests, %d more are over its limit of %lld: "
                       "wait for some to end",
                       (long long)use->running, more, (long long)limits->concurrency);
}

static enum status check_tokens(const struct limits_use *use, const struct limit limits[LIMITS],
                                const struct limits_need *need, int64_t *retry_us_p)
{
    double tokens = need->prompts + need->answers;
    if (need->n == 1 && !(use->reserved > 0)) return check(limits + TOKENS, LIMITS - TOKENS, 1, retry_us_p);
    for (int i = TOKENS; i < LIMITS && need->n > 1; i++) {
        if (limits[i].size && tokens > (double)limits[i].size)
            return status_fail(
                STATUS_DENIED,
                "n: the prompts and answers of %d choices may have %.0f tokens, this API key has %lld %s: "
                "ask for fewer choices, or lower max_tokens",
                need->n, tokens, (long long)limits[i].size, limits[i].what);
    }
    return check(limits + TOKENS, LIMITS - TOKENS, tokens, retry_us_p);
}

static void charge(struct limit limits[LIMITS], double tokens)
{
    for (int i = TOKENS; i < LIMITS; i++)
        limits[i].bucket->used = fmax(0, limits[i].bucket->used + tokens);
}

enum status limits_reserve(struct limits_use *use, const struct key_limits *limits, const struct limits_need *need,
                           int64_t now_us, int64_t *retry_us_p)
{
    struct limit all[LIMITS];
    list(use, limits, now_us, all);
    *retry_us_p = 0;
    TRY(check_concurrency(use, limits, need->n - 1));
    TRY(check_tokens(use, all, need, retry_us_p));
    charge(all, need->prompts);
    use->requests.used += need->n - 1;
    use->running += need->n - 1;
    use->reserved += need->answers;
    return STATUS_OK;
}

double limits_day_used(struct limits_use *use, const struct key_limits *limits, int64_t now_us)
{
    struct limit all[LIMITS];
    list(use, limits, now_us, all);
    return use->tokens_of_day.used;
}

void limits_day_restore(struct limits_use *use, double used, int64_t age_us, int64_t now_us)
{
    use->tokens_of_day = (struct limits_bucket){used, now_us - age_us};
}

void limits_end(struct limits_use *use, const struct key_limits *limits, double reserved, double tokens, int64_t now_us)
{
    struct limit all[LIMITS];
    list(use, limits, now_us, all);
    charge(all, tokens);
    use->running--;
    use->reserved = use->running ? fmax(0, use->reserved - reserved) : 0; // resets rounding errors when no request runs
}
