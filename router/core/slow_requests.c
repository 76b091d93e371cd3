// SPDX-License-Identifier: Apache-2.0
#include "router/core/slow_requests.h"

#include "lib/base/utf8.h"

static void forget_old(struct slow_requests *slow, int64_t now_us)
{
    int kept = 0;
    for (int i = 0; i < slow->n; i++)
        if (now_us - slow->requests[i].ended_us < SLOW_REQUESTS_US) slow->requests[kept++] = slow->requests[i];
    slow->n = kept;
}

static struct slow_request *find_fastest(struct slow_requests *slow)
{
    struct slow_request *fastest = &slow->requests[0];
    for (int i = 1; i < slow->n; i++)
        if (slow->requests[i].timing.total_us < fastest->timing.total_us) fastest = &slow->requests[i];
    return fastest;
}

void slow_requests_add(struct slow_requests *slow, const struct request *r, enum finish_reason reason, int64_t now_us)
{
    if (slow->n == SLOW_REQUESTS) forget_old(slow, now_us);
    struct slow_request *place = slow->n < SLOW_REQUESTS ? &slow->requests[slow->n++] : find_fastest(slow);
    if (place->number && place->timing.total_us >= r->timing.total_us) return;
    *place = (struct slow_request){
        .number = r->number, .ended_us = now_us, .reason = reason, .usage = r->usage, .timing = r->timing};
    utf8_format(place->id, sizeof place->id, "%s", r->id ? r->id : "");
}
