// SPDX-License-Identifier: Apache-2.0
// Inference.GetDiagnostics: settings, slow requests and metrics of the router, for `forepack debug bundle` of an
// operator.
#include <stdlib.h>

#include "lib/base/mem.h"
#include "lib/base/version.h"
#include "proto/forepack/v1/inference.pb-c.h"
#include "router/front/front.h"
#include "router/front/grpc/grpc_access.h"
#include "router/front/http/http_metrics.h"
#include "router/front/request/intake.h"
#include "router/front/request/reply.h"

enum { DIAGNOSTICS_BYTES_MAX = 64 };

struct diagnostics_job {
    struct rpc_call *call; // with a reference
    char *settings;        // owned
    struct slow_requests slow;
    int64_t now_us; // time of `slow`
};

static void slow_fill(const struct slow_request *r, int64_t now_us, Forepack__V1__SlowRequest *m)
{
    forepack__v1__slow_request__init(m);
    m->number = r->number;
    m->request_id = (char *)r->id;
    m->finish_reason = (char *)finish_reason_name(r->reason);
    m->ended_s_ago = (double)(now_us - r->ended_us) / 1e6;
    m->prompt_tokens = (uint32_t)r->usage.prompt_tokens;
    m->kept_tokens = (uint32_t)r->usage.kept_tokens;
    m->completion_tokens = (uint32_t)r->usage.completion_tokens;
    m->queue_ms = (double)r->timing.queue_us / 1e3;
    m->score_ms = (double)r->timing.score_us / 1e3;
    m->pack_wait_ms = (double)r->timing.pack_wait_us / 1e3;
    m->prefill_ms = (double)r->timing.prefill_us / 1e3;
    m->ttft_ms = (double)r->timing.ttft_us / 1e3;
    m->total_ms = (double)r->timing.total_us / 1e3;
}

// Answers the call and frees the job. `metrics` is empty if the router has no HTTP API.
static void job_answer(struct diagnostics_job *job, const char *metrics)
{
    Forepack__V1__Diagnostics m = FOREPACK__V1__DIAGNOSTICS__INIT;
    Forepack__V1__SlowRequest slow[SLOW_REQUESTS], *list[SLOW_REQUESTS];
    for (int i = 0; i < job->slow.n; i++) {
        list[i] = &slow[i];
        slow_fill(&job->slow.requests[i], job->now_us, &slow[i]);
    }
    m.version = FOREPACK_VERSION;
    m.settings = job->settings;
    m.slow_requests = list;
    m.n_slow_requests = (size_t)job->slow.n;
    m.metrics = (char *)metrics;
    reply_unary(job->call, &m.base);
    rpc_call_unref(job->call);
    free(job->settings);
    free(job);
}

static void metrics_answer(void *arg, enum metrics_format format, const char *text, size_t size)
{
    job_answer(arg, text);
}

static void event_diagnostics(struct core *c, void *arg, int64_t now_us)
{
    struct diagnostics_job *job = arg;
    const struct front *front = rpc_call_context(job->call);
    job->settings = mem_string(front->settings ? front->settings : "");
    job->slow = *core_get_slow_requests(c);
    job->now_us = now_us;
    struct http_service *http = __atomic_load_n(&front->http, __ATOMIC_ACQUIRE);
    if (!http || !http_metrics_ask(http, METRICS_TEXT, metrics_answer, job)) job_answer(job, "");
}

static void diagnostics_on_message(struct rpc_call *call, const uint8_t *bytes, size_t size)
{
    const struct front *front = rpc_call_context(call);
    enum status status = intake_check_backlog(front);
    if (!grpc_is_operator(call))
        status = status_fail(STATUS_DENIED, "diagnostics are for an operator's API key only (forepack keys add "
                                            "--operator)");
    if (status != STATUS_OK) {
        reply_refuse(call, status);
        return;
    }
    struct diagnostics_job *job = mem_alloc(sizeof *job);
    rpc_call_ref(call);
    job->call = call;
    loop_post(front->loop, event_diagnostics, job);
}

const struct rpc_method front_diagnostics = {.path = "/forepack.v1.Inference/GetDiagnostics",
                                             .on_message = diagnostics_on_message,
                                             .max_message_bytes = DIAGNOSTICS_BYTES_MAX};
