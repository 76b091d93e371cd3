// SPDX-License-Identifier: Apache-2.0
#include "router/front/http/http_metrics.h"

#include "router/front/http/http_call.h"
#include "router/front/http/http_service.h"
#include "router/front/live/metrics_reporter.h"

static void metrics_answer(void *arg, enum metrics_format format, const char *text, size_t size)
{
    struct http_exchange *x = arg;
    http_answer_as(x, metrics_content_type(format), text, size);
    http_unref(x);
}

void http_metrics_get(struct http_exchange *x)
{
    const struct http_service *service = http_context(x);
    struct http_server_status status;
    const struct batch_metrics batch = http_batching_metrics(service->batching);
    http_server_get_status(http_server_of(x), &status);
    http_ref(x);
    metrics_reporter_ask(service->reporter, metrics_format_for(http_header(x, "accept")), &status, &batch,
                         metrics_answer, x);
}
