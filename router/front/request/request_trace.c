// SPDX-License-Identifier: Apache-2.0
#include "router/front/request/request_trace.h"

#include "lib/base/clock.h"
#include "lib/base/mem.h"
#include "lib/net/rpc.h"
#include "lib/tracing/tracer.h"

void client_trace_open(struct client *client, const char *traceparent, const char *tracestate, int server_port)
{
    if (!client->front->tracer) return;
    client->trace = trace_context_read(traceparent, tracestate);
    client->trace->server_port = server_port;
}

void client_trace_open_call(struct client *client, const struct rpc_call *call)
{
    const struct front *front = client->front;
    const struct rpc_server *server = __atomic_load_n(&front->server, __ATOMIC_ACQUIRE);
    if (!front->tracer) return;
    client_trace_open(client, rpc_call_metadata(call, "traceparent"), rpc_call_metadata(call, "tracestate"),
                      server ? rpc_server_port(server) : 0);
}

void client_trace_join(struct client *client)
{
    if (client->trace) tracer_begin(client->front->tracer, client->trace);
}

void answer_trace_begin(struct answer *a)
{
    if (!a->client->trace) return;
    a->trace = tracer_record(a->client->front->tracer, a->client->trace, a->request->spec.arrived_us);
    a->request->trace = a->trace;
}

// --- the end

static void set_request(struct trace_record *record, const struct request *r)
{
    const struct sampling *s = &r->spec.sampling;
    record->number = r->number;
    record->id = mem_string(r->id);
    record->tenant = mem_string(r->spec.tenant);
    record->request.priority = r->spec.priority;
    if (r->spec.score_only) return;
    record->request.max_tokens = s->max_tokens;
    record->request.top_k = s->top_k;
    record->request.temperature = s->temperature;
    record->request.top_p = s->top_p;
    record->request.presence_penalty = s->presence_penalty;
    record->request.frequency_penalty = s->frequency_penalty;
}

static void set_result(struct trace_record *record, const struct request *r)
{
    const struct request_usage *u = &r->usage;
    record->usage = (struct trace_usage){.input_tokens = u->prompt_tokens,
                                         .output_tokens = u->completion_tokens,
                                         .cached_tokens = u->cached_tokens,
                                         .kept_tokens = u->kept_tokens,
                                         .scored_tokens = u->scored_tokens,
                                         .score_cached_tokens = u->score_cached_tokens,
                                         .replays = u->replays,
                                         .frozen_tokens = u->frozen_tokens,
                                         .recalled_tokens = u->recalled_tokens};
    record->first_token_us = r->timing.ttft_us;
    if (!r->kept) return; // the request ended before its prefill was decided
    record->prefill = r->skip ? "whole" : "speculated";
    request_limit_format(r, record->prefill_limit);
    record->skip = r->skip ? skip_reason_name(r->skip) : NULL;
}

void answer_trace_end(struct answer *a, const struct request *r, enum finish_reason reason, enum status status)
{
    struct trace_record *record = a->trace;
    if (!record) return;
    a->trace = NULL;
    if (record->sampled) {
        set_request(record, r);
        set_result(record, r);
        record->response_model = a->client->front->model_names[0];
        record->finish = finish_reason_name(reason);
        record->error = reason == FINISH_REASON_ERROR ? status_name(status) : NULL;
    }
    record->end_us = r->timing.total_us ? r->spec.arrived_us + r->timing.total_us : clock_now_us();
    tracer_finish(a->client->front->tracer, record);
}

void client_trace_refused(const struct client *client, struct answer *first, enum status status, int64_t arrived_us)
{
    if (!client->trace) return;
    struct trace_record *record =
        first ? first->trace : tracer_record(client->front->tracer, client->trace, arrived_us);
    if (first) first->trace = NULL;
    if (!record) return;
    record->error = status_name(status);
    record->end_us = clock_now_us();
    tracer_finish(client->front->tracer, record);
}
