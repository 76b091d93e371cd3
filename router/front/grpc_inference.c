// SPDX-License-Identifier: Apache-2.0
// Inference.Generate, GenerateMany, Abort and Score: from a client's message to a request for the core, and from the
// core's tokens to the client's stream.
//
// Threads: messages are checked and tokenised on the I/O thread that read them, then posted. From then on everything
// (`struct exchange`, `struct answer`) belongs to the core's thread, which also sends; the call itself is thread-safe.
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "model/generation_wire.h"
#include "model/text_stream.h"
#include "proto/forepack/v1/inference.pb-c.h"
#include "router/front/intake.h"

enum { PINNED_MAX = 1024 };

typedef Forepack__V1__GenerateRequest wire_request;

// One call of a client: Generate, Score (one request) or GenerateMany.
struct exchange {
    struct rpc_call *call; // a reference of ours
    const struct front *front;
    bool many;
    // Only on the core's thread:
    struct answer *answers; // running requests
    bool half_closed;
};

// One running request of a call: where its tokens become text.
struct answer {
    struct exchange *exchange;
    struct request *request; // the core's; valid until done
    struct text_stream *text;
    bool return_kept, score;
    int min_tokens, n_tokens;
    struct answer *prev, *next;
};

// --- messages out

static void send_response(struct exchange *x, const char *id, Forepack__V1__GenerateResponse *response)
{
    response->request_id = (char *)id;
    front_stream(x->call, &response->base);
}

// A block that holds every protobuf struct of one chunk's log-probabilities.
static Forepack__V1__TokenLogprob **logprob_messages(const struct token_logprob *logprobs, int n)
{
    size_t n_top = 0;
    for (int i = 0; i < n; i++)
        n_top += (size_t)logprobs[i].n_top;
    size_t each = sizeof(Forepack__V1__TokenLogprob) + sizeof(Forepack__V1__TokenLogprob *);
    size_t top_each = sizeof(Forepack__V1__TopLogprob) + sizeof(Forepack__V1__TopLogprob *);
    char *block = mem_alloc((size_t)n * each + n_top * top_each + 1);
    Forepack__V1__TokenLogprob **list = (void *)block;
    Forepack__V1__TopLogprob **top_list = (void *)(list + n);
    Forepack__V1__TokenLogprob *items = (void *)(top_list + n_top);
    Forepack__V1__TopLogprob *tops = (void *)(items + n);
    for (int i = 0; i < n; i++) {
        list[i] = &items[i];
        forepack__v1__token_logprob__init(list[i]);
        list[i]->token_id = (uint32_t)logprobs[i].token;
        list[i]->logprob = logprobs[i].logprob;
        list[i]->top = top_list;
        list[i]->n_top = (size_t)logprobs[i].n_top;
        for (int t = 0; t < logprobs[i].n_top; t++) {
            *top_list = tops++;
            forepack__v1__top_logprob__init(*top_list);
            (*top_list)->token_id = (uint32_t)logprobs[i].top_token[t];
            (*top_list)->logprob = logprobs[i].top_logprob[t];
            top_list++;
        }
    }
    return list;
}

static void send_chunk(struct answer *a, const char *text, size_t text_bytes, const int32_t *tokens,
                       const struct token_logprob *logprobs, int n)
{
    if (!text_bytes && !n) return;
    Forepack__V1__Chunk chunk = FOREPACK__V1__CHUNK__INIT;
    chunk.text = (ProtobufCBinaryData){text_bytes, (uint8_t *)text};
    chunk.token_ids = (uint32_t *)tokens; // ids are never negative
    chunk.n_token_ids = (size_t)n;
    if (logprobs) {
        chunk.logprobs = logprob_messages(logprobs, n);
        chunk.n_logprobs = (size_t)n;
    }
    Forepack__V1__GenerateResponse response = FOREPACK__V1__GENERATE_RESPONSE__INIT;
    response.kind_case = FOREPACK__V1__GENERATE_RESPONSE__KIND_CHUNK;
    response.chunk = &chunk;
    send_response(a->exchange, a->request->id, &response);
    free(chunk.logprobs);
}

static Forepack__V1__TokenRange **range_messages(const struct token_range *ranges, int n)
{
    Forepack__V1__TokenRange **list = mem_alloc((size_t)n * (sizeof *list + sizeof(Forepack__V1__TokenRange)) + 1);
    Forepack__V1__TokenRange *items = (void *)(list + n);
    for (int i = 0; i < n; i++) {
        list[i] = &items[i];
        forepack__v1__token_range__init(list[i]);
        list[i]->first = (uint32_t)ranges[i].first;
        list[i]->last = (uint32_t)ranges[i].last;
    }
    return list;
}

static void send_completion(struct answer *a, enum finish_reason reason, enum status status, const char *message)
{
    const struct request *r = a->request;
    Forepack__V1__Usage usage = FOREPACK__V1__USAGE__INIT;
    usage.prompt_tokens = (uint32_t)r->usage.prompt_tokens;
    usage.scored_tokens = (uint32_t)r->usage.scored_tokens;
    usage.kept_tokens = (uint32_t)r->usage.kept_tokens;
    usage.cached_tokens = (uint32_t)r->usage.cached_tokens;
    usage.completion_tokens = (uint32_t)r->usage.completion_tokens;
    usage.replays = (uint32_t)r->usage.replays;
    Forepack__V1__Timing timing = FOREPACK__V1__TIMING__INIT;
    timing.queue_ms = (double)r->timing.queue_us / 1e3;
    timing.score_ms = (double)r->timing.score_us / 1e3;
    timing.pack_wait_ms = (double)r->timing.pack_wait_us / 1e3;
    timing.prefill_ms = (double)r->timing.prefill_us / 1e3;
    timing.ttft_ms = (double)r->timing.ttft_us / 1e3;
    timing.total_ms = (double)r->timing.total_us / 1e3;

    Forepack__V1__Completion completion = FOREPACK__V1__COMPLETION__INIT;
    completion.finish_reason = (char *)finish_reason_name(reason);
    completion.usage = &usage;
    completion.timing = &timing;
    if (a->return_kept && r->kept) {
        completion.kept = range_messages(r->kept, r->n_kept_ranges);
        completion.n_kept = (size_t)r->n_kept_ranges;
    }
    Forepack__V1__Error error = FOREPACK__V1__ERROR__INIT;
    if (reason == FINISH_REASON_ERROR) {
        error.code = (uint32_t)rpc_code(status);
        error.message = (char *)message;
        completion.error = &error;
    }
    Forepack__V1__GenerateResponse response = FOREPACK__V1__GENERATE_RESPONSE__INIT;
    response.kind_case = FOREPACK__V1__GENERATE_RESPONSE__KIND_COMPLETION;
    response.completion = &completion;
    send_response(a->exchange, a->request->id, &response);
    free(completion.kept);
}

static void send_score(struct answer *a)
{
    const struct request *r = a->request;
    Forepack__V1__ScoreResponse response = FOREPACK__V1__SCORE_RESPONSE__INIT;
    response.token_ids = (uint32_t *)r->tokens;
    response.n_token_ids = (size_t)r->n_tokens;
    response.kept = range_messages(r->kept, r->n_kept_ranges);
    response.n_kept = (size_t)r->n_kept_ranges;
    response.importance = r->importance;
    response.n_importance = r->importance ? (size_t)r->n_tokens : 0;
    response.score_ms = (double)r->timing.score_us / 1e3;
    front_send(a->exchange->call, &response.base);
    free(response.kept);
}

// --- the core's thread: output of one request

static bool answer_tokens(void *user, const int32_t *tokens, const struct token_logprob *logprobs, int n, int *n_used_p)
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
    send_chunk(a, text, text_bytes, tokens, logprobs, used);
    free(text);
    *n_used_p = used;
    return stopped;
}

static void answer_unlink(struct answer *a)
{
    if (a->prev) {
        a->prev->next = a->next;
    } else {
        a->exchange->answers = a->next;
    }
    if (a->next) a->next->prev = a->prev;
}

static void answer_done(void *user, const struct request *r, enum finish_reason reason, enum status status,
                        const char *message)
{
    struct answer *a = user;
    struct exchange *x = a->exchange;
    if (reason == FINISH_REASON_ERROR && !x->many) {
        front_finish(x->call, status, message);
    } else if (a->score) {
        if (reason == FINISH_REASON_CANCELLED) {
            front_finish(x->call, STATUS_CANCELLED, message);
        } else {
            send_score(a);
            front_finish(x->call, STATUS_OK, "");
        }
    } else {
        struct text_piece rest;
        text_stream_finish(a->text, &rest);
        send_chunk(a, rest.text, rest.size_bytes, NULL, NULL, 0);
        send_completion(a, reason, status, message);
        if (!x->many) front_finish(x->call, STATUS_OK, "");
    }
    answer_unlink(a);
    text_stream_free(a->text);
    free(a);
    if (x->many && x->half_closed && !x->answers) front_finish(x->call, STATUS_OK, "");
}

// --- posted to the core's thread

static void submit(struct core *c, void *arg, int64_t now_us)
{
    struct answer *a = arg;
    struct exchange *x = a->exchange;
    a->next = x->answers;
    if (a->next) a->next->prev = a;
    x->answers = a;
    core_submit(c, a->request, now_us);
}

static void half_close(struct core *c, void *arg, int64_t now_us)
{
    struct exchange *x = arg;
    x->half_closed = true;
    if (!x->answers) front_finish(x->call, STATUS_OK, "");
}

// The last event of a call: what still runs is for nobody.
static void close_exchange(struct core *c, void *arg, int64_t now_us)
{
    struct exchange *x = arg;
    while (x->answers)
        core_cancel(c, x->answers->request->number, now_us); // unlinks it through answer_done
    rpc_call_unref(x->call);
    free(x);
}

// --- I/O threads: from a message to a request

static enum status read_sampling(const Forepack__V1__SamplingOptions *m, struct sampling *s)
{
    sampling_defaults(s);
    uint64_t random_seed;
    if (getrandom(&random_seed, sizeof random_seed, 0) != sizeof random_seed) random_seed = (uint64_t)clock_now_us();
    s->seed = random_seed;
    if (!m) return STATUS_OK;
    return sampling_from_message(&m->base, s);
}

static enum status read_prefill(const Forepack__V1__PrefillOptions *m, struct prefill *p)
{
    prefill_defaults(p);
    if (!m) return STATUS_OK;
    switch (m->mode) {
    case FOREPACK__V1__PREFILL_MODE__PREFILL_MODE_AUTO: p->mode = PREFILL_AUTO; break;
    case FOREPACK__V1__PREFILL_MODE__PREFILL_MODE_ON: p->mode = PREFILL_ON; break;
    case FOREPACK__V1__PREFILL_MODE__PREFILL_MODE_OFF: p->mode = PREFILL_OFF; break;
    default: return status_fail(STATUS_INVALID, "prefill.mode %d: must be AUTO, ON or OFF", (int)m->mode);
    }
    enum status status = prefill_from_message(&m->base, p);
    return status == STATUS_OK ? prefill_check(p) : status;
}

// The client's pinned ranges join those of the chat template.
static enum status read_pinned(const Forepack__V1__PrefillOptions *m, struct request *r)
{
    if (!m || !m->n_pinned) return STATUS_OK;
    if (m->n_pinned > PINNED_MAX) {
        return status_fail(STATUS_INVALID, "prefill.pinned: %zu ranges given, at most %d are allowed", m->n_pinned,
                           PINNED_MAX);
    }
    r->pinned = mem_resize(r->pinned, (size_t)r->n_pinned + m->n_pinned, sizeof *r->pinned);
    for (size_t i = 0; i < m->n_pinned; i++) {
        uint32_t first = m->pinned[i]->first, last = m->pinned[i]->last;
        if (first > last || last >= (uint32_t)r->n_tokens) {
            return status_fail(STATUS_INVALID,
                               "prefill.pinned: %u to %u must be ascending and inside the prompt of %d tokens", first,
                               last, r->n_tokens);
        }
        r->pinned[r->n_pinned++] = (struct token_range){(int32_t)first, (int32_t)last};
    }
    return STATUS_OK;
}

static char *new_request_id(void)
{
    uint64_t random;
    if (getrandom(&random, sizeof random, 0) != sizeof random) random = (uint64_t)clock_now_us();
    return mem_format("req-%016llx", (unsigned long long)random);
}

static enum status make_text_stream(const struct front *front, const Forepack__V1__SamplingOptions *m,
                                    struct text_stream **text_p)
{
    size_t n = m ? m->n_stop : 0;
    if (n > STOP_STRINGS_MAX) {
        return status_fail(STATUS_INVALID, "stop: %zu strings given, at most %d are allowed", n, STOP_STRINGS_MAX);
    }
    char *stops[STOP_STRINGS_MAX];
    enum status status = STATUS_OK;
    size_t made = 0;
    for (; made < n; made++) {
        const ProtobufCBinaryData *stop = &m->stop[made];
        if (!stop->len || stop->len > STOP_STRING_BYTES_MAX || memchr(stop->data, 0, stop->len) ||
            !utf8_valid((const char *)stop->data, stop->len, NULL)) {
            status = status_fail(STATUS_INVALID, "stop: each must be 1 to %d bytes of UTF-8", STOP_STRING_BYTES_MAX);
            break;
        }
        stops[made] = mem_format("%.*s", (int)stop->len, (const char *)stop->data);
    }
    if (status == STATUS_OK) {
        status = text_stream_create(front->tokenizer, (const char *const *)stops, (int)n, text_p);
    }
    while (made)
        free(stops[--made]);
    return status;
}

// Everything that can be wrong with a request is found here; what is left to the core is whether it can be served.
static enum status read_request(const struct front *front, const wire_request *m, struct request *r, struct answer *a)
{
    enum status status = front_check_backlog(front);
    if (status == STATUS_OK) status = front_check_name("request_id", m->request_id);
    if (status == STATUS_OK) {
        r->id = *m->request_id ? mem_string(m->request_id) : new_request_id();
        status = front_check_model(front, m->model);
    }
    if (status == STATUS_OK) status = front_check_name("tenant", m->tenant);
    if (status == STATUS_OK) status = read_sampling(m->sampling, &r->sampling);
    if (status == STATUS_OK) status = sampling_check(&r->sampling, front->config.vocab_size);
    if (status == STATUS_OK) status = read_prefill(m->prefill, &r->prefill);
    if (status == STATUS_OK) {
        status = front_tokenise(front, &m->text, m->token_ids, m->n_token_ids, m->messages, m->n_messages, &r->tokens,
                                &r->n_tokens, &r->pinned, &r->n_pinned);
    }
    if (status == STATUS_OK) status = read_pinned(m->prefill, r);
    if (status == STATUS_OK) status = sampling_resolve(&r->sampling, r->n_tokens, front->config.max_context);
    if (status == STATUS_OK) status = make_text_stream(front, m->sampling, &a->text);
    if (status != STATUS_OK) return status;
    r->priority = m->priority;
    r->tenant = *m->tenant ? mem_string(m->tenant) : NULL;
    if (m->ttft_deadline_ms) r->ttft_deadline_us = r->arrived_us + 1000 * (int64_t)m->ttft_deadline_ms;
    a->return_kept = m->prefill && m->prefill->return_kept;
    a->min_tokens = r->sampling.min_tokens;
    return STATUS_OK;
}

static struct answer *new_answer(struct exchange *x)
{
    struct answer *a = mem_alloc(sizeof *a);
    a->exchange = x;
    a->request = request_create();
    a->request->arrived_us = clock_now_us();
    a->request->sink = (struct request_sink){answer_tokens, answer_done, a};
    return a;
}

static void drop_answer(struct answer *a)
{
    request_free(a->request);
    text_stream_free(a->text);
    free(a);
}

// Hands a checked request to the core's thread, which owns it from here on. The call's deadline bounds the whole
// answer, and so its first token.
static void post_answer(struct answer *a)
{
    struct request *r = a->request;
    int64_t call_us = rpc_call_deadline_us(a->exchange->call);
    r->deadline_of_call = call_us < r->ttft_deadline_us;
    if (r->deadline_of_call) r->ttft_deadline_us = call_us;
    request_set_state(r, REQUEST_TOKENISED, clock_now_us());
    loop_post(a->exchange->front->loop, submit, a);
}

static void on_open(struct rpc_call *call)
{
    struct exchange *x = mem_alloc(sizeof *x);
    rpc_call_ref(call);
    x->call = call;
    x->front = rpc_call_context(call);
    x->many = strcmp(rpc_call_path(call), front_generate_many.path) == 0;
    rpc_call_set_user(call, x);
}

static void on_half_close(struct rpc_call *call)
{
    struct exchange *x = rpc_call_user(call);
    loop_post(x->front->loop, half_close, x);
}

static void on_close(struct rpc_call *call, bool cancelled)
{
    struct exchange *x = rpc_call_user(call);
    loop_post(x->front->loop, close_exchange, x);
}

// GenerateMany: a refused request is answered in the stream, for its id; the others go on.
static void refuse_one(struct exchange *x, const char *id, enum status status)
{
    Forepack__V1__Error error = FOREPACK__V1__ERROR__INIT;
    error.code = (uint32_t)rpc_code(status);
    error.message = (char *)status_message();
    Forepack__V1__Completion completion = FOREPACK__V1__COMPLETION__INIT;
    completion.finish_reason = (char *)finish_reason_name(FINISH_REASON_ERROR);
    completion.error = &error;
    Forepack__V1__GenerateResponse response = FOREPACK__V1__GENERATE_RESPONSE__INIT;
    response.kind_case = FOREPACK__V1__GENERATE_RESPONSE__KIND_COMPLETION;
    response.completion = &completion;
    send_response(x, utf8_valid(id, strlen(id), NULL) ? id : "", &response);
}

static void on_generate(struct rpc_call *call, const uint8_t *bytes, size_t size)
{
    struct exchange *x = rpc_call_user(call);
    wire_request *m = front_unpack(&forepack__v1__generate_request__descriptor, bytes, size);
    if (!m) {
        front_refuse(call, STATUS_INVALID);
        return;
    }
    struct answer *a = new_answer(x);
    enum status status = read_request(x->front, m, a->request, a);
    if (status == STATUS_OK) {
        post_answer(a);
    } else {
        drop_answer(a);
        if (x->many) {
            refuse_one(x, m->request_id, status);
        } else {
            front_refuse(call, status);
        }
    }
    forepack__v1__generate_request__free_unpacked(m, NULL);
}

static void on_score(struct rpc_call *call, const uint8_t *bytes, size_t size)
{
    struct exchange *x = rpc_call_user(call);
    Forepack__V1__ScoreRequest *m = front_unpack(&forepack__v1__score_request__descriptor, bytes, size);
    struct answer *a = new_answer(x);
    struct request *r = a->request;
    enum status status = m ? front_check_backlog(x->front) : STATUS_INVALID;
    if (status == STATUS_OK) status = front_check_model(x->front, m->model);
    if (status == STATUS_OK) status = read_prefill(m->prefill, &r->prefill);
    if (status == STATUS_OK) {
        status = front_tokenise(x->front, &m->text, m->token_ids, m->n_token_ids, m->messages, m->n_messages,
                                &r->tokens, &r->n_tokens, &r->pinned, &r->n_pinned);
    }
    if (status == STATUS_OK) status = read_pinned(m->prefill, r);
    if (m) forepack__v1__score_request__free_unpacked(m, NULL);
    if (status != STATUS_OK) {
        drop_answer(a);
        front_refuse(call, status);
        return;
    }
    sampling_defaults(&r->sampling);
    r->sampling.max_tokens = 1;
    r->id = new_request_id();
    r->score_only = r->want_importance = a->score = true;
    post_answer(a);
}

// --- Abort

struct abort_job {
    struct rpc_call *call;
    Forepack__V1__AbortRequest *message;
};

static void run_abort(struct core *c, void *arg, int64_t now_us)
{
    struct abort_job *job = arg;
    Forepack__V1__AbortResponse response = FOREPACK__V1__ABORT_RESPONSE__INIT;
    for (size_t i = 0; i < job->message->n_request_ids; i++)
        response.aborted += core_abort(c, job->message->request_ids[i], now_us);
    front_answer(job->call, &response.base);
    forepack__v1__abort_request__free_unpacked(job->message, NULL);
    rpc_call_unref(job->call);
    free(job);
}

static void on_abort(struct rpc_call *call, const uint8_t *bytes, size_t size)
{
    const struct front *front = rpc_call_context(call);
    Forepack__V1__AbortRequest *m = front_unpack(&forepack__v1__abort_request__descriptor, bytes, size);
    if (!m) {
        front_refuse(call, STATUS_INVALID);
        return;
    }
    struct abort_job *job = mem_alloc(sizeof *job);
    rpc_call_ref(call);
    *job = (struct abort_job){call, m};
    loop_post(front->loop, run_abort, job);
}

const struct rpc_method front_generate = {"/forepack.v1.Inference/Generate", on_open, on_generate, NULL, on_close};
const struct rpc_method front_generate_many = {"/forepack.v1.Inference/GenerateMany", on_open, on_generate,
                                               on_half_close, on_close};
const struct rpc_method front_score = {"/forepack.v1.Inference/Score", on_open, on_score, NULL, on_close};
const struct rpc_method front_abort = {"/forepack.v1.Inference/Abort", NULL, on_abort, NULL, NULL};
