// SPDX-License-Identifier: Apache-2.0
// The limits of one key: how much of them is used up, and whether a request may start.
//
// Requests and tokens drain from leaky buckets: with tokens_per_minute=6000 what is used falls by 100 a second, and a
// request may start while less than 6000 are used. So a key may use a whole minute's tokens at once and then its rate.
// Once a message is read, its prompts are charged and the maximum tokens of its answers are reserved, if enough tokens
// are left for both. At the end of a request the generated tokens replace its reservation. A request that needs more
// tokens than are left runs if at least one is left and no other request has a reservation: so no request is refused
// for ever, at most one request exceeds a limit, and the next request waits longer. A day is 24 hours, not a calendar
// day.
//
// The caller serialises calls. Times are clock_now_us().
#pragma once

#include "lib/identity/key_file.h"

struct limits_bucket {
    double used;
    int64_t at_us; // `used` is of this time
};

// Zeros: nothing is used.
struct limits_use {
    struct limits_bucket requests, tokens_of_minute, tokens_of_day;
    double reserved; // tokens, for the answers of running requests
    int64_t running;
};

// Requests of one message.
struct limits_need {
    int n;
    double prompts, answers; // tokens of all prompts; maximum tokens of all answers
};

// A request starts, or nothing changes: KEY_LIMIT, with the limit in the sentence and the time after which a request
// may start. *retry_us_p is 0 where that is unknown.
enum status limits_start(struct limits_use *use, const struct key_limits *limits, int64_t now_us, int64_t *retry_us_p);
// A call without a model's work: counts as a request that has ended, and needs no tokens.
enum status limits_count_call(struct limits_use *use, const struct key_limits *limits, int64_t now_us,
                              int64_t *retry_us_p);
// For a message that was started as one request: starts its other requests, charges the prompts and reserves the
// answers, or nothing changes. DENIED if the requests together exceed a limit even of an idle key, else KEY_LIMIT as
// above.
enum status limits_reserve(struct limits_use *use, const struct key_limits *limits, const struct limits_need *need,
                           int64_t now_us, int64_t *retry_us_p);
// Ends a request that was started: `tokens` of its `reserved` ones were generated; negative: the charge for the prompt
// is taken back.
void limits_end(struct limits_use *use, const struct key_limits *limits, double reserved, double tokens,
                int64_t now_us);
