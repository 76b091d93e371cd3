// SPDX-License-Identifier: Apache-2.0
// The limits of one key: how much of them is used up, and whether a request may start.
//
// Requests and tokens drain from leaky buckets: with tokens_per_minute=6000 what is used falls by 100 a second, and a
// request may start while less than 6000 are used. So a key may use a whole minute's tokens at once and then its rate.
// The prompt is charged once it is known, generated tokens when the request ends. That may take the bucket over its
// size, and the next request waits for that much longer: nothing is reserved for tokens that may never be generated,
// long prompts are not refused for ever, and over time the rate is kept. `concurrency` bounds how far it can be
// exceeded meanwhile. A day is 24 hours, not a calendar day.
//
// The caller serialises calls. Times are clock_now_us().
#pragma once

#include "identity/key_file.h"

struct limits_bucket {
    double used;
    int64_t at_us; // `used` is of this time
};

// Zeros: nothing is used.
struct limits_use {
    struct limits_bucket requests, tokens_of_minute, tokens_of_day;
    int64_t running;
};

// A request starts, or nothing changes: EXHAUSTED, with the limit in the sentence and the time after which a request
// may start. *retry_us_p is 0 where that is unknown.
enum status limits_start(struct limits_use *use, const struct key_limits *limits, int64_t now_us, int64_t *retry_us_p);
// A call without a model's work: counts as a request that has ended, and needs no tokens.
enum status limits_count_call(struct limits_use *use, const struct key_limits *limits, int64_t now_us,
                              int64_t *retry_us_p);
// Starts n more requests of a message that was started as one, all or none. Only `concurrency` can refuse them: DENIED
// if n is over the limit itself, else EXHAUSTED.
enum status limits_join(struct limits_use *use, const struct key_limits *limits, int n, int64_t now_us);
void limits_charge(struct limits_use *use, const struct key_limits *limits, double tokens, int64_t now_us); // or back
void limits_end(struct limits_use *use); // of each request that started or joined
