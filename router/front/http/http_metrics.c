// SPDX-License-Identifier: Apache-2.0
#include "router/front/http/http_metrics.h"

#include "router/front/http/http_call.h"
#include "router/front/http/http_service.h"

static void metrics_answer(void *arg, enum metrics_format format, const char *text, size_t size)
{
    struct http_exchange *x = arg;
    http_answer_as(x, metrics_content_type(format), text, size);
    http_unref(x);
}

bool http_metrics_ask(struct http_service *service, enum metrics_format format, metrics_answer_fn answer, void *arg)
{
    struct http_server_status status;
    const struct batch_metrics batch = http_batching_metrics(service->batching);
    pthread_mutex_lock(&service->lock);
    bool open = !service->closing;
    if (open) {
        http_server_get_status(service->server, &status);
        metrics_reporter_ask(service->reporter, format, &status, &batch, answer, arg);
    }
    pthread_mutex_unlock(&service->lock);
    return open;
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
