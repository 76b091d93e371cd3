// SPDX-License-Identifier: Apache-2.0
// Limits of one key: counts their use, and decides if a request may start.
//
// Requests and tokens drain from leaky buckets. With tokens_per_minute=6000 the use falls by 100 a second, and a
// request may start while the use is below 6000. So a key may use a whole minute's tokens in one burst, and afterwards
// 100 a second. Once a message is read, its prompts are charged and the maximum tokens of its answers are reserved, if
// enough tokens are left for both. At the end of a request the generated tokens replace its reservation. A request that
// needs more tokens than are left may still run if at least one is left and no other request has a reservation. So no
// request is refused for ever. At most one request exceeds a limit, and the next request waits longer. A day is 24
// hours, not a calendar day.
//
// The caller serialises calls. Times are clock_now_us().
#pragma once

#include "lib/identity/key_file.h"

struct limits_bucket {
    double used;
    int64_t at_us; // time of `used`
};

// Use of a key's limits. Starts as zeros.
struct limits_use {
    struct limits_bucket requests, tokens_of_minute, tokens_of_day;
    double reserved; // tokens reserved for the answers of running requests
    int64_t running;
};

// Requests of one message.
struct limits_need {
    int n;
    double prompts, answers; // tokens of all prompts; maximum tokens of all answers
};

// Starts a request. If a limit is used up, returns KEY_LIMIT and changes nothing; the error message names the limit.
// *retry_us_p is the time in us until a request may start, or 0 if unknown.
enum status limits_start(struct limits_use *use, const struct key_limits *limits, int64_t now_us, int64_t *retry_us_p);
// Counts a call that runs no model as a request that has ended. It uses no tokens.
enum status limits_count_call(struct limits_use *use, const struct key_limits *limits, int64_t now_us,
                              int64_t *retry_us_p);
// Starts the remaining requests of a message that was started as one request, charges the prompts and reserves the
// answers. On failure nothing changes. Returns DENIED if the requests together exceed a limit even of an idle key, else
// KEY_LIMIT as above.
enum status limits_reserve(struct limits_use *use, const struct key_limits *limits, const struct limits_need *need,
                           int64_t now_us, int64_t *retry_us_p);
// Returns the tokens of the last day.
double limits_day_used(struct limits_use *use, const struct key_limits *limits, int64_t now_us);
// Sets the tokens of the day that an earlier process counted `age_us` ago.
void limits_day_restore(struct limits_use *use, double used, int64_t age_us, int64_t now_us);
// Ends a request that was started: `tokens` of its `reserved` tokens were generated. Negative `tokens` refund the
// charge for the prompt.
void limits_end(struct limits_use *use, const struct key_limits *limits, double reserved, double tokens,
                int64_t now_us);
