// SPDX-License-Identifier: Apache-2.0
// Serves GRPCInferenceService.ModelInfer and ModelStreamInfer, the calls of KServe's and Triton's clients. They become
// requests of the core in the same way as calls of Generate (grpc_inference.c).
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/clock.h"
#include "lib/base/log.h"
#include "lib/base/mem.h"
#include "lib/messages/fields.h"
#include "router/front/grpc/grpc_access.h"
#include "router/front/grpc/grpc_intake.h"
#include "router/front/grpc/wire_request.h"
#include "router/front/kserve/kserve_request.h"
#include "router/front/kserve/kserve_response.h"
#include "router/front/request/answer.h"
#include "router/front/request/intake.h"
#include "router/front/request/reply.h"
#include "router/front/request/request_trace.h"

enum { FIELD_ID = 3, ID_ROOM = 257 }; // number of the field `id` of ModelInferRequest; room for an id
enum { STREAM_REQUESTS_MAX = 1024 };  // limit of the requests of one call that have not ended

// A call of ModelInfer (one request) or of ModelStreamInfer.
struct kserve_call {
    struct client client;  // first member: a pointer to the client is cast to the call
    struct rpc_call *call; // holds a reference
    bool stream;
    atomic_int requests; // requests that have not ended
    bool half_closed;    // core's thread only
};

static struct kserve_call *call_of(struct client *client)
{
    return (struct kserve_call *)client;
}

// --- core's thread

static void answer_fail(struct kserve_call *c, struct kserve_answer *k, enum status status, const char *message)
{
    if (k->ended) return;
    k->ended = true;
    if (c->stream)
        kserve_error_send(c->call, k->id, message);
    else
        reply_finish(c->call, status, message);
}

static void event_cancel(struct core *c, void *arg, int64_t now_us)
{
    core_cancel(c, *(uint64_t *)arg, now_us);
    free(arg);
}

// Ends an answer that is too large with the error message of status_message(), and cancels its request.
static void answer_exceeds(struct answer *a)
{
    answer_fail(call_of(a->client), a->data, STATUS_EXHAUSTED, status_message());
    loop_post(a->client->front->loop, event_cancel, mem_copy(&a->request->number, sizeof a->request->number));
}

static void call_submitted(struct client *client)
{
    struct answer *a = client->answers; // the latest answer, which is submitted now
    if (a->data && !kserve_answer_begin(a->data)) answer_exceeds(a);
}

static void call_chunk(struct answer *a, const struct answer_chunk *chunk)
{
    struct kserve_answer *k = a->data;
    if (!k->ended && !kserve_chunk(call_of(a->client)->call, k, chunk, a->request)) answer_exceeds(a);
}

static void call_done(struct answer *a, const struct request *r, enum finish_reason reason, enum status status,
                      const char *message)
{
    struct kserve_call *c = call_of(a->client);
    struct kserve_answer *k = a->data;
    struct answer_chunk rest = answer_rest(a);
    atomic_fetch_sub(&c->requests, 1);
    if (reason == FINISH_REASON_ERROR || reason == FINISH_REASON_CANCELLED)
        answer_fail(c, k, reason == FINISH_REASON_CANCELLED ? STATUS_CANCELLED : status, message);
    else if (!k->ended)
        kserve_end(c->call, k, r, &rest, reason);
}

// Ends a ModelStreamInfer call once the client sends no more requests and all its requests have ended.
static void call_idle(struct client *client)
{
    if (call_of(client)->half_closed) reply_finish(call_of(client)->call, STATUS_OK, "");
}

static void call_release(struct answer *a)
{
    kserve_answer_free(a->data);
}

static void call_free(struct client *client)
{
    rpc_call_unref(call_of(client)->call);
    free(client);
}

static const struct client_ops call_ops = {.submitted = call_submitted,
                                           .chunk = call_chunk,
                                           .done = call_done,
                                           .idle = call_idle,
                                           .release = call_release,
                                           .free = call_free};

static void event_half_close(struct core *c, void *arg, int64_t now_us)
{
    struct kserve_call *call = arg;
    call->half_closed = true;
    client_check_idle(&call->client);
}

// --- I/O threads and threads of the intake pool

// Answers a refused message with the error message of status_message(). Other requests of a stream go on.
static void call_answer_refused(struct kserve_call *c, const char *id, enum status status, int64_t retry_us)
{
    client_refused(&c->client, id, status);
    atomic_fetch_sub(&c->requests, 1);
    if (c->stream)
        kserve_error_send(c->call, id, status_message());
    else
        reply_refuse_until(c->call, status, retry_us);
}

// Refuses an admitted message. Frees `a`, the answer that was created for the message; NULL if there is none.
static void call_refuse(struct parsed_message *parsed, struct answer *a, const char *id, enum status status,
                        int64_t retry_us)
{
    client_trace_refused(parsed->client, a, status, clock_now_us());
    answers_free(a);
    call_answer_refused(call_of(parsed->client), id, status, retry_us);
    client_not_submitted(parsed);
}

static enum status request_check(const struct kserve_call *c, const struct kserve_request *q)
{
    if (q->stream && !c->stream) return status_fail(STATUS_INVALID, "stream: true needs a call of ModelStreamInfer");
    return client_check(&c->client, q->fields.message.tenant, q->fields.message.priority);
}

static enum status request_read(struct kserve_call *c, const Inference__ModelInferRequest *m,
                                const struct kserve_request *q, bool grammar_known, struct answer *a)
{
    const struct wire_options options = {
        .default_tokens = MAX_TOKENS_DEFAULT, .ids_field = "input_ids", .grammar_valid = grammar_known};
    TRY(request_check(c, q));
    TRY(wire_request_read(&c->client, &q->fields.message, &options, a->request, &a->text));
    a->data = kserve_answer_create(rpc_call_context(c->call), m, q, c->stream);
    return STATUS_OK;
}

// Submits the request. The request gets a unique id, because clients may send the same id again.
static void request_submit(struct kserve_call *c, const char *id, struct answer *a)
{
    if (*id) log_event(LOG_INFO, "request_named", LOG_FIELD("client_id", a->request->id), LOG_FIELD("kserve_id", id));
    grpc_bound_deadline(c->call, a->request);
    answers_submit(a, c->stream ? "kserve_stream" : "kserve");
}

// Submits or refuses a request. `status` is the result of kserve_request_read().
static void infer_submit(const struct grpc_message *message, const Inference__ModelInferRequest *m,
                         const struct kserve_request *q, bool grammar_known, enum status status)
{
    struct parsed_message *parsed = message->user;
    struct kserve_call *c = call_of(parsed->client);
    int64_t retry_us = 0;
    struct answer *a = answer_create(parsed, message->arrived_us);
    if (status == STATUS_OK) status = request_read(c, m, q, grammar_known, a);
    if (status == STATUS_OK) status = answers_reserve(a, &retry_us);
    if (status == STATUS_OK) {
        request_submit(c, m->id, a);
    } else {
        call_refuse(parsed, a, m->id, status, retry_us);
    }
}

static void infer_postpone(const struct grpc_message *message, const char *id)
{
    enum status status = grpc_message_postpone(message);
    if (status != STATUS_OK) call_refuse(message->user, NULL, id, status, 0);
}

static void infer_read(const struct grpc_message *message)
{
    struct parsed_message *parsed = message->user;
    if (message->dropped) { // the client is gone
        client_dropped(parsed, message->arrived_us);
        return;
    }
    Inference__ModelInferRequest *m =
        grpc_message_unpack(&inference__model_infer_request__descriptor, message->bytes, message->size);
    if (!m) {
        call_refuse(parsed, NULL, "", STATUS_INVALID, 0);
        return;
    }
    struct kserve_request q;
    enum status status = kserve_request_read(m, &q);
    bool grammar_known = status != STATUS_OK || wire_grammar_known(parsed->client->front, &q.fields.message);
    if (message->at_once && !grammar_known)
        infer_postpone(message, m->id);
    else
        infer_submit(message, m, &q, grammar_known, status);
    kserve_request_fini(&q);
    inference__model_infer_request__free_unpacked(m, NULL);
}

// --- I/O threads

static void call_on_open(struct rpc_call *call)
{
    struct kserve_call *c = mem_alloc(sizeof *c);
    rpc_call_ref(call);
    c->call = call;
    c->client.ops = &call_ops;
    c->client.front = rpc_call_context(call);
    c->client.principal = grpc_principal(call);
    client_trace_open_call(&c->client, call);
    c->stream = strcmp(rpc_call_path(call), front_model_stream_infer.path) == 0;
    rpc_call_set_user(call, c);
}

static void call_on_half_close(struct rpc_call *call)
{
    struct kserve_call *c = rpc_call_user(call);
    loop_post(c->client.front->loop, event_half_close, c);
}

static void call_on_close(struct rpc_call *call, bool cancelled)
{
    client_close(rpc_call_user(call));
}

// Admits a message that has just arrived. Returns NULL if the message was refused.
static struct parsed_message *call_admit(struct kserve_call *c, const char *id)
{
    struct principal *p = c->client.principal;
    int64_t retry_us = 0;
    enum status status = STATUS_OK;
    if (atomic_fetch_add(&c->requests, 1) >= STREAM_REQUESTS_MAX)
        status = status_fail(STATUS_EXHAUSTED,
                             "%d requests of this stream have not ended: wait for answers, or open "
                             "another stream",
                             STREAM_REQUESTS_MAX);
    if (status == STATUS_OK && p) status = identity_admit(p, &retry_us);
    if (status == STATUS_OK) return client_message_begin(&c->client, "");
    call_answer_refused(c, id, status, retry_us);
    return NULL;
}

static void infer_on_message(struct rpc_call *call, const uint8_t *bytes, size_t size)
{
    struct kserve_call *c = rpc_call_user(call);
    char id[ID_ROOM];
    proto_field_text(bytes, size, FIELD_ID, id, sizeof id); // the bytes are valid only now
    struct parsed_message *parsed = call_admit(c, id);
    if (!parsed) return;
    enum status status = grpc_message_read(call, bytes, size, 0, &parsed->waiting, infer_read, parsed);
    if (status != STATUS_OK) call_refuse(parsed, NULL, id, status, 0);
}

static void infer_on_oversized(struct rpc_call *call, size_t size, const uint8_t *head, size_t head_size)
{
    struct kserve_call *c = rpc_call_user(call);
    char id[ID_ROOM];
    proto_field_text(head, head_size, FIELD_ID, id, sizeof id);
    struct parsed_message *parsed = call_admit(c, id);
    if (parsed) call_refuse(parsed, NULL, id, intake_refuse_size(c->client.front, size), 0);
}

const struct rpc_method front_model_infer = {.path = "/inference.GRPCInferenceService/ModelInfer",
                                             .on_open = call_on_open,
                                             .on_message = infer_on_message,
                                             .on_oversized = infer_on_oversized,
                                             .on_close = call_on_close};
const struct rpc_method front_model_stream_infer = {.path = "/inference.GRPCInferenceService/ModelStreamInfer",
                                                    .on_open = call_on_open,
                                                    .on_message = infer_on_message,
                                                    .on_oversized = infer_on_oversized,
                                                    .on_half_close = call_on_half_close,
                                                    .on_close = call_on_close};
