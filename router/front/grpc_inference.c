// SPDX-License-Identifier: Apache-2.0
// Inference.Generate, GenerateMany, Abort and Score: the calls of clients and their running requests.
//
// Threads: a message is checked and tokenised where grpc_intake.h reads it, then posted. Afterwards its `struct
// answer`, and the list of a call's answers, belong to the core's thread, which also sends.
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "proto/fields.h"
#include "proto/forepack/v1/inference.pb-c.h"
#include "router/front/grpc_intake.h"
#include "router/front/reply.h"
#include "router/front/wire_request.h"
#include "router/front/wire_response.h"

// A call of Generate or Score (one request) or of GenerateMany. Freed once it is closed and nothing is being read.
struct client_call {
    struct rpc_call *call; // our reference
    const struct front *front;
    bool many;
    struct intake_owner waiting; // messages that wait to be read
    atomic_int reading;          // messages received and not yet submitted or refused: an I/O thread adds to it, the
                                 // core's thread takes from it
    // Core's thread only:
    struct answer *answers; // running requests
    bool half_closed, closed;
};

// A running request of a call, and the stream that turns its tokens into text.
struct answer {
    struct client_call *client;
    struct request *request; // owned until it is posted, then the core's and valid until done
    struct text_stream *text;
    bool return_kept, score;
    int min_tokens, n_tokens;
    struct answer *prev, *next;
};

// --- core's thread: the output of one request

static bool answer_add_tokens(void *user, const int32_t *tokens, const struct token_logprob *logprobs, int n,
                              int *n_used_p)
{
    struct answer *a = user;
    char *text = NULL;
    size_t text_bytes = 0;
    int used = 0;
    bool stopped = false;
    while (used < n && !stopped) {
        struct text_piece piece;
        a->n_tokens++;
        text_stream_push(a->text, tokens[used++], a->n_tokens >= a->min_tokens, &piece);
        text = mem_resize(text, text_bytes + piece.size_bytes + 1, 1);
        if (piece.size_bytes) memcpy(text + text_bytes, piece.text, piece.size_bytes);
        text_bytes += piece.size_bytes;
        stopped = piece.stop >= 0;
    }
    wire_chunk_send(a->client->call, a->request->id, &(struct wire_chunk){text, text_bytes, tokens, logprobs, used});
    free(text);
    *n_used_p = used;
    return stopped;
}

static void answer_unlink(struct answer *a)
{
    if (a->prev) {
        a->prev->next = a->next;
    } else {
        a->client->answers = a->next;
    }
    if (a->next) a->next->prev = a->prev;
}

static void answer_send_end(struct answer *a, const struct request *r, enum finish_reason reason, enum status status,
                            const char *message)
{
    struct text_piece rest;
    text_stream_finish(a->text, &rest);
    wire_chunk_send(a->client->call, r->id, &(struct wire_chunk){rest.text, rest.size_bytes, NULL, NULL, 0});
    wire_completion_send(a->client->call, r, a->return_kept, reason, status, message);
}

// A GenerateMany call ends with its last request.
static void client_end_if_done(struct client_call *client)
{
    if (client->half_closed && !client->answers && !atomic_load(&client->reading))
        reply_finish(client->call, STATUS_OK, "");
}

static void answer_done(void *user, const struct request *r, enum finish_reason reason, enum status status,
                        const char *message)
{
    struct answer *a = user;
    struct client_call *client = a->client;
    if (reason == FINISH_REASON_ERROR && !client->many) {
        reply_finish(client->call, status, message);
    } else if (a->score && reason == FINISH_REASON_CANCELLED) {
        reply_finish(client->call, STATUS_CANCELLED, message);
    } else {
        if (a->score) {
            wire_score_send(client->call, r);
        } else {
            answer_send_end(a, r, reason, status, message);
        }
        if (!client->many) reply_finish(client->call, STATUS_OK, "");
    }
    answer_unlink(a);
    text_stream_free(a->text);
    free(a);
    client_end_if_done(client);
}

// --- events posted to the core's thread

static void client_free_if_done(struct client_call *client)
{
    if (!client->closed || atomic_load(&client->reading)) return;
    rpc_call_unref(client->call);
    free(client);
}

// An answer that the core does not have.
static void answer_free(struct answer *a)
{
    request_free(a->request);
    text_stream_free(a->text);
    free(a);
}

static void event_submit(struct core *c, void *arg, int64_t now_us)
{
    struct answer *a = arg;
    struct client_call *client = a->client;
    atomic_fetch_sub(&client->reading, 1);
    if (client->closed) { // while the message was read
        answer_free(a);
        client_free_if_done(client);
        return;
    }
    a->next = client->answers;
    if (a->next) a->next->prev = a;
    client->answers = a;
    core_submit(c, a->request, now_us);
}

static void event_half_close(struct core *c, void *arg, int64_t now_us)
{
    struct client_call *client = arg;
    client->half_closed = true;
    client_end_if_done(client);
}

// The last event of a call. Requests that still run are cancelled: their client is gone.
static void event_close(struct core *c, void *arg, int64_t now_us)
{
    struct client_call *client = arg;
    while (client->answers)
        core_cancel(c, client->answers->request->number, now_us); // answer_done unlinks it
    client->closed = true;
    client_free_if_done(client);
}

// A message was refused, or dropped because its call had ended.
static void event_not_submitted(struct core *c, void *arg, int64_t now_us)
{
    struct client_call *client = arg;
    atomic_fetch_sub(&client->reading, 1);
    client_end_if_done(client);
    client_free_if_done(client);
}

// --- I/O threads and threads of the intake pool

static struct answer *answer_create(struct client_call *client, int64_t arrived_us)
{
    struct answer *a = mem_alloc(sizeof *a);
    a->client = client;
    a->request = request_create();
    a->request->spec.arrived_us = arrived_us;
    a->request->sink = (struct request_sink){answer_add_tokens, answer_done, a};
    return a;
}

// Hands a checked request to the core's thread. The call's deadline bounds the whole answer and so its first token.
static void answer_post(struct answer *a)
{
    struct request *r = a->request;
    int64_t call_us = rpc_call_deadline_us(a->client->call);
    r->spec.deadline_of_call = call_us < r->spec.ttft_deadline_us;
    if (r->spec.deadline_of_call) r->spec.ttft_deadline_us = call_us;
    a->min_tokens = r->spec.sampling.min_tokens;
    log_event(LOG_INFO, "request_received", LOG_REQUEST(r->number), LOG_FIELD("client_id", r->id),
              LOG_FIELD("tenant", r->spec.tenant), LOG_FIELD("priority", r->spec.priority),
              LOG_FIELD("tokens", r->spec.n_tokens), LOG_FIELD("method", a->score ? "score" : "generate"));
    request_set_state(r, REQUEST_TOKENISED);
    loop_post(a->client->front->loop, event_submit, a);
}

// Answers a message that is not submitted, with the reason in status_message(). The core logs what it refuses itself.
// The other requests of a GenerateMany call go on.
static void client_refuse(struct client_call *client, const char *client_id, enum status status)
{
    log_event(LOG_INFO, "request_refused", LOG_FIELD("client_id", client_id), LOG_FIELD("status", status_name(status)),
              LOG_REASON);
    if (client->many)
        wire_refusal_send(client->call, client_id, status, status_message());
    else
        reply_refuse(client->call, status);
    loop_post(client->front->loop, event_not_submitted, client);
}

static void answer_submit(struct answer *a, const char *client_id, enum status status)
{
    if (status == STATUS_OK) {
        answer_post(a);
        return;
    }
    client_refuse(a->client, client_id, status);
    answer_free(a);
}

// NULL: the message was dropped or is malformed, and is not submitted. Of a malformed one not even the id is known.
static void *message_unpack(const struct grpc_message *message, const ProtobufCMessageDescriptor *type)
{
    struct client_call *client = rpc_call_user(message->call);
    void *m = message->dropped ? NULL : grpc_message_unpack(type, message->bytes, message->size);
    if (m) return m;
    if (!message->dropped) reply_refuse(client->call, STATUS_INVALID);
    loop_post(client->front->loop, event_not_submitted, client);
    return NULL;
}

static void generate_read(const struct grpc_message *message)
{
    struct client_call *client = rpc_call_user(message->call);
    Forepack__V1__GenerateRequest *m = message_unpack(message, &forepack__v1__generate_request__descriptor);
    if (!m) return;
    struct answer *a = answer_create(client, message->arrived_us);
    a->return_kept = m->prefill && m->prefill->return_kept;
    answer_submit(a, m->request_id, wire_request_read(client->front, m, a->request, &a->text));
    forepack__v1__generate_request__free_unpacked(m, NULL);
}

static void score_read(const struct grpc_message *message)
{
    struct client_call *client = rpc_call_user(message->call);
    Forepack__V1__ScoreRequest *m = message_unpack(message, &forepack__v1__score_request__descriptor);
    if (!m) return;
    struct answer *a = answer_create(client, message->arrived_us);
    a->score = true;
    answer_submit(a, "", wire_score_request_read(client->front, m, a->request));
    forepack__v1__score_request__free_unpacked(m, NULL);
}

// --- I/O threads

enum { FIELD_REQUEST_ID = 1, FIELD_TENANT = 9, ID_ROOM = 257 }; // of GenerateRequest

static void call_on_open(struct rpc_call *call)
{
    struct client_call *client = mem_alloc(sizeof *client);
    rpc_call_ref(call);
    client->call = call;
    client->front = rpc_call_context(call);
    client->many = strcmp(rpc_call_path(call), front_generate_many.path) == 0;
    rpc_call_set_user(call, client);
}

static void call_on_half_close(struct rpc_call *call)
{
    struct client_call *client = rpc_call_user(call);
    loop_post(client->front->loop, event_half_close, client);
}

static void call_on_close(struct rpc_call *call, bool cancelled)
{
    struct client_call *client = rpc_call_user(call);
    intake_pool_cancel(client->front->pool, &client->waiting);
    loop_post(client->front->loop, event_close, client);
}

static void generate_on_message(struct rpc_call *call, const uint8_t *bytes, size_t size)
{
    struct client_call *client = rpc_call_user(call);
    char id[ID_ROOM];
    atomic_fetch_add(&client->reading, 1);
    proto_field_text(bytes, size, FIELD_REQUEST_ID, id, sizeof id); // now, while the bytes are valid
    enum status status = grpc_message_read(call, bytes, size, FIELD_TENANT, &client->waiting, generate_read);
    if (status != STATUS_OK) client_refuse(client, id, status);
}

static void generate_on_oversized(struct rpc_call *call, size_t size, const uint8_t *head, size_t head_size)
{
    struct client_call *client = rpc_call_user(call);
    char id[ID_ROOM];
    atomic_fetch_add(&client->reading, 1);
    proto_field_text(head, head_size, FIELD_REQUEST_ID, id, sizeof id);
    client_refuse(client, id, intake_refuse_size(client->front, size));
}

static void score_on_message(struct rpc_call *call, const uint8_t *bytes, size_t size)
{
    struct client_call *client = rpc_call_user(call);
    atomic_fetch_add(&client->reading, 1);
    enum status status = grpc_message_read(call, bytes, size, 0, &client->waiting, score_read);
    if (status != STATUS_OK) client_refuse(client, "", status);
}

static void score_on_oversized(struct rpc_call *call, size_t size, const uint8_t *head, size_t head_size)
{
    struct client_call *client = rpc_call_user(call);
    atomic_fetch_add(&client->reading, 1);
    client_refuse(client, "", intake_refuse_size(client->front, size));
}

// --- Abort

enum { ABORT_IDS_MAX = 10000 };

struct abort_job {
    struct rpc_call *call; // our reference
    Forepack__V1__AbortRequest *message;
};

static void event_abort(struct core *c, void *arg, int64_t now_us)
{
    struct abort_job *job = arg;
    Forepack__V1__AbortResponse response = FOREPACK__V1__ABORT_RESPONSE__INIT;
    for (size_t i = 0; i < job->message->n_request_ids; i++)
        response.aborted += core_abort(c, job->message->request_ids[i], now_us);
    reply_unary(job->call, &response.base);
    forepack__v1__abort_request__free_unpacked(job->message, NULL);
    rpc_call_unref(job->call);
    free(job);
}

static enum status abort_check(const struct front *front, const Forepack__V1__AbortRequest *m)
{
    TRY(intake_check_backlog(front));
    if (m->n_request_ids <= ABORT_IDS_MAX) return STATUS_OK;
    return status_fail(STATUS_INVALID, "request_ids: %zu given, at most %d are allowed", m->n_request_ids,
                       ABORT_IDS_MAX);
}

static void abort_on_message(struct rpc_call *call, const uint8_t *bytes, size_t size)
{
    const struct front *front = rpc_call_context(call);
    Forepack__V1__AbortRequest *m = grpc_message_unpack(&forepack__v1__abort_request__descriptor, bytes, size);
    enum status status = m ? abort_check(front, m) : STATUS_INVALID;
    if (status != STATUS_OK) {
        reply_refuse(call, status);
        if (m) forepack__v1__abort_request__free_unpacked(m, NULL);
        return;
    }
    struct abort_job *job = mem_alloc(sizeof *job);
    rpc_call_ref(call);
    *job = (struct abort_job){call, m};
    loop_post(front->loop, event_abort, job);
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
const struct rpc_method front_abort = {.path = "/forepack.v1.Inference/Abort", .on_message = abort_on_message};
