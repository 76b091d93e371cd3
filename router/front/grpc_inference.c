// SPDX-License-Identifier: Apache-2.0
// Inference.Generate, GenerateMany, Abort and Score: the calls of clients and their running requests.
//
// Threads: a message is checked and tokenised on the I/O thread that read it, then posted. Afterwards its `struct
// answer`, and the list of a call's answers, belong to the core's thread, which also sends.
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "proto/forepack/v1/inference.pb-c.h"
#include "router/front/reply.h"
#include "router/front/wire_request.h"
#include "router/front/wire_response.h"

// A call of Generate or Score (one request) or of GenerateMany.
struct client_call {
    struct rpc_call *call; // our reference
    const struct front *front;
    bool many;
    // Core's thread only:
    struct answer *answers; // running requests
    bool half_closed;
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
    if (client->many && client->half_closed && !client->answers) reply_finish(client->call, STATUS_OK, "");
}

// --- events posted to the core's thread

static void event_submit(struct core *c, void *arg, int64_t now_us)
{
    struct answer *a = arg;
    struct client_call *client = a->client;
    a->next = client->answers;
    if (a->next) a->next->prev = a;
    client->answers = a;
    core_submit(c, a->request, now_us);
}

static void event_half_close(struct core *c, void *arg, int64_t now_us)
{
    struct client_call *client = arg;
    client->half_closed = true;
    if (!client->answers) reply_finish(client->call, STATUS_OK, "");
}

// The last event of a call. Requests that still run are cancelled: their client is gone.
static void event_close(struct core *c, void *arg, int64_t now_us)
{
    struct client_call *client = arg;
    while (client->answers)
        core_cancel(c, client->answers->request->number, now_us); // answer_done unlinks it
    rpc_call_unref(client->call);
    free(client);
}

// --- I/O threads

static struct answer *answer_create(struct client_call *client)
{
    struct answer *a = mem_alloc(sizeof *a);
    a->client = client;
    a->request = request_create();
    a->request->spec.arrived_us = clock_now_us();
    a->request->sink = (struct request_sink){answer_add_tokens, answer_done, a};
    return a;
}

// An answer that was not posted.
static void answer_free(struct answer *a)
{
    request_free(a->request);
    text_stream_free(a->text);
    free(a);
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

// The core logs what it refuses; this logs what the front refuses, with the reason in status_message().
static void log_refusal(const struct answer *a, const char *client_id, enum status status)
{
    log_event(LOG_INFO, "request_refused", LOG_REQUEST(a->request->number), LOG_FIELD("client_id", client_id),
              LOG_FIELD("status", status_name(status)), LOG_REASON);
}

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
    loop_post(client->front->loop, event_close, client);
}

static void generate_on_message(struct rpc_call *call, const uint8_t *bytes, size_t size)
{
    struct client_call *client = rpc_call_user(call);
    Forepack__V1__GenerateRequest *m = intake_unpack(&forepack__v1__generate_request__descriptor, bytes, size);
    if (!m) {
        reply_refuse(call, STATUS_INVALID);
        return;
    }
    struct answer *a = answer_create(client);
    a->return_kept = m->prefill && m->prefill->return_kept;
    enum status status = wire_request_read(client->front, m, a->request, &a->text);
    if (status == STATUS_OK) {
        answer_post(a);
    } else {
        log_refusal(a, m->request_id, status);
        if (client->many) { // the other requests of the call go on
            wire_refusal_send(call, m->request_id, status, status_message());
        } else {
            reply_refuse(call, status);
        }
        answer_free(a);
    }
    forepack__v1__generate_request__free_unpacked(m, NULL);
}

static void score_on_message(struct rpc_call *call, const uint8_t *bytes, size_t size)
{
    struct client_call *client = rpc_call_user(call);
    Forepack__V1__ScoreRequest *m = intake_unpack(&forepack__v1__score_request__descriptor, bytes, size);
    if (!m) {
        reply_refuse(call, STATUS_INVALID);
        return;
    }
    struct answer *a = answer_create(client);
    a->score = true;
    enum status status = wire_score_request_read(client->front, m, a->request);
    if (status == STATUS_OK) {
        answer_post(a);
    } else {
        log_refusal(a, "", status);
        reply_refuse(call, status);
        answer_free(a);
    }
    forepack__v1__score_request__free_unpacked(m, NULL);
}

// --- Abort

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

static void abort_on_message(struct rpc_call *call, const uint8_t *bytes, size_t size)
{
    const struct front *front = rpc_call_context(call);
    Forepack__V1__AbortRequest *m = intake_unpack(&forepack__v1__abort_request__descriptor, bytes, size);
    if (!m) {
        reply_refuse(call, STATUS_INVALID);
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
                                          .on_close = call_on_close};
const struct rpc_method front_generate_many = {.path = "/forepack.v1.Inference/GenerateMany",
                                               .on_open = call_on_open,
                                               .on_message = generate_on_message,
                                               .on_half_close = call_on_half_close,
                                               .on_close = call_on_close};
const struct rpc_method front_score = {.path = "/forepack.v1.Inference/Score",
                                       .on_open = call_on_open,
                                       .on_message = score_on_message,
                                       .on_close = call_on_close};
const struct rpc_method front_abort = {.path = "/forepack.v1.Inference/Abort", .on_message = abort_on_message};
