// SPDX-License-Identifier: Apache-2.0
// Keeps the slowest requests that ended lately, for `forepack debug bundle`. Only ids, numbers and times are kept: no
// prompt and no answer. One thread.
#pragma once

#include <stdint.h>

#include "router/core/request.h"

enum { SLOW_REQUESTS = 32, SLOW_ID_BYTES = 128 };
#define SLOW_REQUESTS_US INT64_C(900000000) // requests that ended longer ago are forgotten

struct slow_request {
    uint64_t number;
    char id[SLOW_ID_BYTES + 1]; // the client's id, cut after whole characters
    int64_t ended_us;
    enum finish_reason reason;
    struct request_usage usage;
    struct request_timing timing;
};

struct slow_requests {
    struct slow_request requests[SLOW_REQUESTS]; // [n] in no order
    int n;
};

// Adds a request that has ended, if it is slow enough.
void slow_requests_add(struct slow_requests *slow, const struct request *r, enum finish_reason reason, int64_t now_us);
