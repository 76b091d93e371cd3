// SPDX-License-Identifier: Apache-2.0
// Inference.Generate, GenerateMany, Abort, Score and Compress: the calls of clients. The thread that reads a message
// (grpc_intake.h) checks, tokenises and submits it (answer.h).
#include <stdlib.h>
#include <string.h>

#include "lib/base/clock.h"
#include "lib/base/mem.h"
#include "lib/messages/fields.h"
#include "proto/forepack/v1/inference.pb-c.h"
#include "router/front/grpc/grpc_access.h"
#include "router/front/grpc/grpc_intake.h"
#include "router/front/grpc/wire_request.h"
#include "router/front/grpc/wire_response.h"
#include "router/front/request/answer.h"
#include "router/front/request/answer_resume.h"
#include "router/front/request/compress_job.h"
#include "router/front/request/reply.h"
#include "router/front/request/request_trace.h"

// A call of Generate, Score or Compress (one request), or of GenerateMany (many requests).
struct client_call {
    struct client client;  // first member: a pointer to the client is cast to the call
    struct rpc_call *call; // holds a reference
    bool many, score, compress;
    bool half_closed; // core's thread only
};

static struct client_call *call_of(struct client *client)
{
    return (struct client_call *)client;
}

// --- core's thread

static void call_chunk(struct answer *a, const struct answer_chunk *chunk)
{
    bool is_first = chunk->n && a->n_tokens == a->n_resumed + chunk->n;
    wire_chunk_send(call_of(a->client)->call, a->request->id, chunk, is_first ? a->request->mark : 0);
}

static void call_send_end(struct answer *a, const struct request *r, enum finish_reason reason, enum status status,
                          const char *message)
{
    struct rpc_call *call = call_of(a->client)->call;
    struct answer_chunk rest = answer_rest(a);
    wire_chunk_send(call, r->id, &rest, 0);
    wire_completion_send(call, r, a->return_kept, reason, status, message);
}

static void call_done(struct answer *a, const struct request *r, enum finish_reason reason, enum status status,
                      const char *message)
{
    struct client_call *c = call_of(a->client);
    if (reason == FINISH_REASON_ERROR && !c->many) {
        reply_finish(c->call, status, message);
    } else if ((c->score || c->compress) && reason == FINISH_REASON_CANCELLED) {
        reply_finish(c->call, STATUS_CANCELLED, message);
    } else if (c->compress) {
        rpc_call_ref(c->call);
        compress_finish(a, r, wire_compression_send, c->call);
    } else if (c->score) {
        wire_score_send(c->call, r);
    } else {
        call_send_end(a, r, reason, status, message);
        if (!c->many) reply_finish(c->call, STATUS_OK, "");
    }
}

// Ends a GenerateMany call once the client sends no more requests and all its requests have ended.
static void call_idle(struct client *client)
{
    if (call_of(client)->half_closed) reply_finish(call_of(client)->call, STATUS_OK, "");
}

static void call_free(struct client *client)
{
    rpc_call_unref(call_of(client)->call);
    free(client);
}

static const struct client_ops call_ops = {
    .chunk = call_chunk, .done = call_done, .idle = call_idle, .release = compress_release, .free = call_free};

static void event_half_close(struct core *c, void *arg, int64_t now_us)
{
    struct client_call *call = arg;
    call->half_closed = true;
    client_check_idle(&call->client);
}

// --- I/O threads and threads of the intake pool

// Submits a checked request to the core's thread.
static void call_submit(struct client_call *c, struct answer *a)
{
    grpc_bound_deadline(c->call, a->request);
    answers_submit(a, c->score ? "score" : c->compress ? "compress" : "generate");
}

// Answers a refused message with the error message of status_message(). Other requests of a GenerateMany call go on.
static void call_answer_refused(struct client_call *c, const char *client_id, enum status status, int64_t retry_us)
{
    client_refused(&c->client, client_id, status);
    if (c->many)
        wire_refusal_send(c->call, client_id, status, status_message());
    else
        reply_refuse_until(c->call, status, retry_us);
}

// Refuses an admitted message. Frees `a`, the answer that was created for the message; NULL if there is none.
static void call_refuse(struct parsed_message *parsed, struct answer *a, const char *client_id, enum status status,
                        int64_t retry_us)
{
    client_trace_refused(parsed->client, a, status, clock_now_us());
    answers_free(a);
    call_answer_refused(call_of(parsed->client), client_id, status, retry_us);
    client_not_submitted(parsed);
}

// Admits a message that has just arrived. Returns NULL if the message was refused.
static struct parsed_message *call_admit(struct client_call *c, const char *client_id)
{
    struct principal *p = c->client.principal;
    int64_t retry_us = 0;
    enum status status = p ? identity_admit(p, &retry_us) : STATUS_OK;
    if (status != STATUS_OK) {
        call_answer_refused(c, client_id, status, retry_us);
        return NULL;
    }
    return client_message_begin(&c->client, client_id);
}

static void call_answer(struct answer *a, const char *client_id, enum status status)
{
    int64_t retry_us = 0;
    if (status == STATUS_OK) status = answers_reserve(a, &retry_us);
    if (status == STATUS_OK) {
        call_submit(call_of(a->client), a);
    } else {
        call_refuse(a->parsed, a, client_id, status, retry_us);
    }
}

// Unpacks a message. Returns NULL, with the message ended, if it was dropped or is malformed. A malformed message ends
// the whole call, because its request id is not known.
static void *message_unpack(const struct grpc_message *message, const ProtobufCMessageDescriptor *type)
{
    struct parsed_message *parsed = message->user;
    if (message->dropped) {
        client_dropped(parsed, message->arrived_us);
        return NULL;
    }
    void *m = grpc_message_unpack(type, message->bytes, message->size);
    if (m) return m;
    client_trace_refused(parsed->client, NULL, STATUS_INVALID, message->arrived_us);
    front_refused(parsed->client->front, STATUS_INVALID);
    reply_refuse(message->call, STATUS_INVALID);
    client_not_submitted(parsed);
    return NULL;
}

static void generate_postpone(const struct grpc_message *message, const char *client_id)
{
    enum status status = grpc_message_postpone(message);
    if (status != STATUS_OK) call_refuse(message->user, NULL, client_id, status, 0);
}

static void generate_submit(const struct grpc_message *message, const Forepack__V1__GenerateRequest *m,
                            bool grammar_known)
{
    const struct wire_options options = {.default_tokens = MAX_TOKENS_DEFAULT, .grammar_valid = grammar_known};
    struct client *client = rpc_call_user(message->call);
    struct answer *a = answer_create(message->user, message->arrived_us);
    a->return_kept = m->prefill && m->prefill->return_kept;
    enum status status = client_check(client, m->tenant, m->priority);
    if (status == STATUS_OK) status = wire_request_read(client, m, &options, a->request, &a->text);
    const Forepack__V1__Resume *resume = m->resume;
    if (status == STATUS_OK && resume)
        status = answer_resume(a, resume->token_ids, resume->n_token_ids, resume->received_tokens);
    call_answer(a, m->request_id, status);
}

static void generate_read(const struct grpc_message *message)
{
    struct client *client = rpc_call_user(message->call);
    Forepack__V1__GenerateRequest *m = message_unpack(message, &forepack__v1__generate_request__descriptor);
    if (!m) return;
    bool grammar_known = wire_grammar_known(client->front, m);
    if (message->at_once && !grammar_known)
        generate_postpone(message, m->request_id);
    else
        generate_submit(message, m, grammar_known);
    forepack__v1__generate_request__free_unpacked(m, NULL);
}

static void score_read(const struct grpc_message *message)
{
    struct client *client = rpc_call_user(message->call);
    Forepack__V1__ScoreRequest *m = message_unpack(message, &forepack__v1__score_request__descriptor);
    if (!m) return;
    struct answer *a = answer_create(message->user, message->arrived_us);
    enum status status = client_check(client, m->tenant, m->priority);
    if (status == STATUS_OK) status = wire_score_request_read(client->front, m, &(struct wire_options){0}, a->request);
    call_answer(a, "", status);
    forepack__v1__score_request__free_unpacked(m, NULL);
}

static void compress_read(const struct grpc_message *message)
{
    struct client *client = rpc_call_user(message->call);
    Forepack__V1__CompressRequest *m = message_unpack(message, &forepack__v1__compress_request__descriptor);
    if (!m) return;
    struct answer *a = answer_create(message->user, message->arrived_us);
    struct compression *c = NULL;
    enum status status = client_check(client, m->tenant, m->priority);
    if (status == STATUS_OK) status = wire_compress_request_read(client, m, NULL, a->request, &c);
    a->data = c;
    call_answer(a, "", status);
    forepack__v1__compress_request__free_unpacked(m, NULL);
}

// --- I/O threads

enum { FIELD_REQUEST_ID = 1, FIELD_TENANT = 9, ID_ROOM = 257 }; // field numbers of GenerateRequest; room for an id
enum { FIELD_SCORE_TENANT = 6, FIELD_COMPRESS_TENANT = 7 };     // of ScoreRequest and CompressRequest

static void call_on_open(struct rpc_call *call)
{
    struct client_call *c = mem_alloc(sizeof *c);
    rpc_call_ref(call);
    c->call = call;
    c->client.ops = &call_ops;
    c->client.front = rpc_call_context(call);
    c->client.principal = grpc_principal(call);
    client_trace_open_call(&c->client, call);
    c->many = strcmp(rpc_call_path(call), front_generate_many.path) == 0;
    c->score = strcmp(rpc_call_path(call), front_score.path) == 0;
    c->compress = strcmp(rpc_call_path(call), front_compress.path) == 0;
    rpc_call_set_user(call, c);
}

static void call_on_half_close(struct rpc_call *call)
{
    struct client_call *c = rpc_call_user(call);
    loop_post(c->client.front->loop, event_half_close, c);
}

static void call_on_close(struct rpc_call *call, bool cancelled)
{
    client_close(rpc_call_user(call));
}

static void message_read(struct client_call *c, const uint8_t *bytes, size_t size, const char *id,
                         uint32_t tenant_field, grpc_read_fn *read)
{
    struct parsed_message *parsed = call_admit(c, id);
    if (!parsed) return;
    enum status status = grpc_message_read(c->call, bytes, size, tenant_field, &parsed->waiting, read, parsed);
    if (status != STATUS_OK) call_refuse(parsed, NULL, id, status, 0);
}

static void generate_on_message(struct rpc_call *call, const uint8_t *bytes, size_t size)
{
    struct client_call *c = rpc_call_user(call);
    char id[ID_ROOM];
    proto_field_text(bytes, size, FIELD_REQUEST_ID, id, sizeof id); // the bytes are valid only now
    message_read(c, bytes, size, id, FIELD_TENANT, generate_read);
}

static void generate_on_oversized(struct rpc_call *call, size_t size, const uint8_t *head, size_t head_size)
{
    struct client_call *c = rpc_call_user(call);
    char id[ID_ROOM];
    proto_field_text(head, head_size, FIELD_REQUEST_ID, id, sizeof id);
    struct parsed_message *parsed = call_admit(c, id);
    if (parsed) call_refuse(parsed, NULL, id, intake_refuse_size(c->client.front, size), 0);
}

static void score_on_message(struct rpc_call *call, const uint8_t *bytes, size_t size)
{
    message_read(rpc_call_user(call), bytes, size, "", FIELD_SCORE_TENANT, score_read);
}

static void compress_on_message(struct rpc_call *call, const uint8_t *bytes, size_t size)
{
    message_read(rpc_call_user(call), bytes, size, "", FIELD_COMPRESS_TENANT, compress_read);
}

static void score_on_oversized(struct rpc_call *call, size_t size, const uint8_t *head, size_t head_size)
{
    struct client_call *c = rpc_call_user(call);
    struct parsed_message *parsed = call_admit(c, "");
    if (parsed) call_refuse(parsed, NULL, "", intake_refuse_size(c->client.front, size), 0);
}

// --- Abort

// Each id of an Abort takes time on the core's thread, and Aborts do not count against the limits of an API key. So the
// number and the bytes of the ids in waiting Aborts are limited.
enum { ABORT_IDS_MAX = 10000, ABORT_BYTES_MAX = 4 << 20, ABORT_ID_CHARGE = 64, ABORTS_WAITING_MAX = 4 << 20 };

struct abort_job {
    struct rpc_call *call; // holds a reference
    uint64_t owner;        // owner of the requests that may be aborted; 0: all owners
    struct bytes ids;      // request ids, each NUL-terminated
    size_t charge;         // part of front->aborts_waiting
};

static void abort_job_free(struct abort_job *job)
{
    struct front *front = rpc_call_context(job->call);
    atomic_fetch_sub(&front->aborts_waiting, job->charge);
    bytes_free(&job->ids);
    rpc_call_unref(job->call);
    free(job);
}

static void event_abort(struct core *c, void *arg, int64_t now_us)
{
    struct abort_job *job = arg;
    const struct front *front = rpc_call_context(job->call);
    Forepack__V1__AbortResponse response = FOREPACK__V1__ABORT_RESPONSE__INIT;
    for (size_t at = 0; at < job->ids.n; at += strlen(job->ids.data + at) + 1)
        response.aborted += client_abort(front, c, job->ids.data + at, job->owner, now_us);
    reply_unary(job->call, &response.base);
    abort_job_free(job);
}

static enum status abort_check(const struct front *front, const Forepack__V1__AbortRequest *m)
{
    TRY(intake_check_backlog(front));
    if (m->n_request_ids <= ABORT_IDS_MAX) return STATUS_OK;
    return status_fail(STATUS_INVALID, "request_ids: %zu given, at most %d are allowed", m->n_request_ids,
                       ABORT_IDS_MAX);
}

static struct abort_job *abort_job_create(struct rpc_call *call, const Forepack__V1__AbortRequest *m)
{
    struct front *front = rpc_call_context(call);
    struct abort_job *job = mem_alloc(sizeof *job);
    rpc_call_ref(call);
    job->call = call;
    job->owner = grpc_is_operator(call) ? 0 : identity_prefix_salt(principal_tenant(grpc_principal(call)), "");
    for (size_t i = 0; i < m->n_request_ids; i++) {
        size_t size = strlen(m->request_ids[i]) + 1;
        if (size <= ID_ROOM) bytes_add(&job->ids, m->request_ids[i], size); // no request has a longer id
    }
    job->charge = job->ids.n + m->n_request_ids * ABORT_ID_CHARGE;
    atomic_fetch_add(&front->aborts_waiting, job->charge);
    return job;
}

static void abort_on_message(struct rpc_call *call, const uint8_t *bytes, size_t size)
{
    struct front *front = rpc_call_context(call);
    Forepack__V1__AbortRequest *m = grpc_message_unpack(&forepack__v1__abort_request__descriptor, bytes, size);
    enum status status = m ? abort_check(front, m) : STATUS_INVALID;
    struct abort_job *job = status == STATUS_OK ? abort_job_create(call, m) : NULL;
    if (m) forepack__v1__abort_request__free_unpacked(m, NULL);
    if (!job) {
        reply_refuse(call, status);
    } else if (atomic_load(&front->aborts_waiting) > ABORTS_WAITING_MAX) {
        reply_refuse(call, status_fail(STATUS_EXHAUSTED, "too many requests are being aborted: try again later"));
        abort_job_free(job);
    } else {
        loop_post(front->loop, event_abort, job);
    }
}

const struct rpc_method front_generate = {.path = "/forepack.v1.Inference/Generate",
                                          .on_open = call_on_open,
                                          .on_message = generate_on_message,
                                          .on_oversized = generate_on_oversized,
                                          .on_close = call_on_close};
const struct rpc_method front_generate_many = {.path = "/forepack.v1.Inference/GenerateMany",
                                               .on_open = call_on_open,
                                               .on_message = generate_on_message,
                                               .on_oversized = generate_on_oversized,
                                               .on_half_close = call_on_half_close,
                                               .on_close = call_on_close};
const struct rpc_method front_score = {.path = "/forepack.v1.Inference/Score",
                                       .on_open = call_on_open,
                                       .on_message = score_on_message,
                                       .on_oversized = score_on_oversized,
                                       .on_close = call_on_close};
const struct rpc_method front_compress = {.path = "/forepack.v1.Inference/Compress",
                                          .on_open = call_on_open,
                                          .on_message = compress_on_message,
                                          .on_oversized = score_on_oversized,
                                          .on_close = call_on_close};
const struct rpc_method front_abort = {
    .path = "/forepack.v1.Inference/Abort", .on_message = abort_on_message, .max_message_bytes = ABORT_BYTES_MAX};
