// SPDX-License-Identifier: Apache-2.0
#include "router/front/request/answer.h"

#include <stdlib.h>
#include <string.h>

#include "lib/base/equal_share.h"
#include "lib/base/log.h"
#include "lib/base/mem.h"
#include "lib/base/utf8.h"
#include "router/core/ledger.h"
#include "router/front/request/request_trace.h"

// --- core's thread: the output of one request

bool answer_push(struct answer *a, const int32_t *tokens, int n, struct answer_chunk *chunk, size_t *ends,
                 char **joined_p)
{
    bool stopped = false;
    *joined_p = NULL;
    while (chunk->n < n && !stopped) {
        struct text_piece piece;
        a->n_tokens++;
        text_stream_push(a->text, tokens[chunk->n], a->n_tokens >= a->min_tokens, &piece);
        stopped = piece.stop >= 0;
        if (stopped) a->stop = piece.stop;
        if (n == 1) {
            chunk->text = piece.text;
        } else {
            chunk->text = *joined_p = mem_resize(*joined_p, chunk->text_bytes + piece.size_bytes + 1, 1);
            if (piece.size_bytes) memcpy(*joined_p + chunk->text_bytes, piece.text, piece.size_bytes);
        }
        chunk->text_bytes += piece.size_bytes;
        ends[chunk->n++] = chunk->text_bytes;
    }
    return stopped;
}

static void answer_pass(struct answer *a, const struct answer_chunk *chunk, bool resumed)
{
    if (!resumed)
        a->client->ops->chunk(a, chunk);
    else if (a->client->ops->resumed)
        a->client->ops->resumed(a, chunk);
}

// Adds tokens that the client has (`resumed`) or lacks. Returns true if a stop string ended the text.
static bool answer_add(struct answer *a, const int32_t *tokens, const struct token_logprob *logprobs, int n,
                       bool resumed, int *n_used_p)
{
    size_t one, *ends = n > 1 ? mem_alloc_array((size_t)n, sizeof *ends) : &one;
    struct answer_chunk chunk = {.tokens = tokens, .logprobs = logprobs, .ends = ends};
    char *joined;
    bool stopped = answer_push(a, tokens, n, &chunk, ends, &joined);
    answer_pass(a, &chunk, resumed);
    free(joined);
    if (n > 1) free(ends);
    *n_used_p += chunk.n;
    return stopped;
}

static bool answer_add_tokens(void *user, const int32_t *tokens, const struct token_logprob *logprobs, int n,
                              int *n_used_p)
{
    struct answer *a = user;
    int n_old = a->n_resumed > a->n_tokens ? a->n_resumed - a->n_tokens : 0;
    *n_used_p = 0;
    if (n_old > n) n_old = n;
    if (n_old && answer_add(a, tokens, logprobs, n_old, true, n_used_p)) return true;
    if (n_old == n) return false;
    return answer_add(a, tokens + n_old, logprobs ? logprobs + n_old : NULL, n - n_old, false, n_used_p);
}

static void answer_add_prompt_logprobs(void *user, const struct token_logprob *logprobs, int n)
{
    struct answer *a = user;
    if (a->n_resumed) return; // they came before the first token
    a->client->ops->chunk(a, &(struct answer_chunk){.prompt_logprobs = logprobs, .n_prompt_logprobs = n});
}

struct answer_chunk answer_rest(struct answer *a)
{
    struct text_piece rest;
    if (!a->text) return (struct answer_chunk){0}; // aborted before its message was read
    text_stream_finish(a->text, &rest);
    return (struct answer_chunk){.text = rest.text, .text_bytes = rest.size_bytes};
}

static void whole_answer_count(struct whole_answers *whole, size_t *bytes_p, size_t bytes)
{
    whole->sharing += equal_share_is_small(*bytes_p) - equal_share_is_small(bytes);
    whole->bytes += bytes - *bytes_p; // unsigned: wraps correctly if `bytes` is smaller
    *bytes_p = bytes;
}

bool whole_answer_grow(struct whole_answers *whole, size_t *bytes_p, size_t more)
{
    int others = whole->sharing - !equal_share_is_small(*bytes_p);
    bool allowed = equal_share_allows(whole->max_bytes, whole->bytes, *bytes_p, more, others);
    whole_answer_count(whole, bytes_p, *bytes_p + more);
    if (allowed) return true;
    status_fail(STATUS_EXHAUSTED,
                "whole answers take over %zu MiB of the router's memory, this one %zu KiB of it: set stream, leave out "
                "echo, or ask for fewer choices and log-probabilities",
                whole->max_bytes >> 20, *bytes_p >> 10);
    return false;
}

void whole_answer_free(struct whole_answers *whole, size_t *bytes_p)
{
    whole_answer_count(whole, bytes_p, 0);
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

void client_check_idle(struct client *client)
{
    if (client->answers || parsed_message_any(client->front->parsed_messages, &client->parsed_messages)) return;
    if (client->ops->idle) client->ops->idle(client);
    if (!client->closed) return;
    free(client->trace);
    client->ops->free(client);
}

static void answer_release(struct answer *a)
{
    if (a->data) a->client->ops->release(a);
    text_stream_free(a->text);
    bytes_free(&a->resumed_text);
    free(a->resumed_ends);
    free(a);
}

// Charges the API key for the tokens of a request, and removes the request from the key's running requests. A request
// that was never in a bin costs nothing: its prompt tokens are refunded.
static void answer_charge(const struct answer *a, const struct request *r)
{
    struct principal *p = a->client->principal;
    if (!p) return;
    identity_end(p, a->reserved, r->account.bin_id ? r->account.output_tokens : -(double)r->spec.n_tokens);
}

static void answer_done(void *user, const struct request *r, enum finish_reason reason, enum status status,
                        const char *message)
{
    struct answer *a = user;
    struct client *client = a->client;
    client->ops->done(a, r, reason, status, message);
    answer_charge(a, r);
    answer_trace_end(a, r, reason, status);
    answer_unlink(a);
    answer_release(a);
    client_check_idle(client);
}

static void answer_free(struct answer *a)
{
    request_free(a->request);
    trace_record_free(a->trace);
    answer_release(a);
}

void answers_free(struct answer *first)
{
    for (struct answer *next; first; first = next) {
        next = first->next;
        answer_free(first);
    }
}

// --- events posted to the core's thread

static void answers_link(struct client *client, struct answer *first)
{
    struct answer *last = first;
    for (; last->next; last = last->next)
        last->next->prev = last;
    last->next = client->answers;
    if (last->next) last->next->prev = last;
    client->answers = first;
}

static void message_end(struct parsed_message *parsed)
{
    struct client *client = parsed->client;
    parsed_message_end(client->front->parsed_messages, &client->parsed_messages, parsed);
    client_check_idle(client);
}

// Passes the resumed tokens on to the protocol.
static void answer_pass_resumed(struct answer *a)
{
    const struct request *r = a->request;
    struct answer_chunk chunk = {.text = a->resumed_text.data,
                                 .text_bytes = a->resumed_text.n,
                                 .tokens = r->output,
                                 .ends = a->resumed_ends,
                                 .n = r->resume.n};
    answer_pass(a, &chunk, true);
    bytes_free(&a->resumed_text);
    free(a->resumed_ends);
    a->resumed_ends = NULL;
}

static void event_submit(struct core *c, void *arg, int64_t now_us)
{
    struct answer *first = arg;
    struct client *client = first->client;
    struct parsed_message *parsed = first->parsed;
    void (*submit)(struct core *, struct request *, int64_t) =
        atomic_load(&parsed->aborted) ? core_submit_aborted : core_submit;
    if (client->closed) { // the client left while the message was read
        for (struct answer *a = first; a; a = a->next) {
            answer_charge(a, a->request);
            answer_trace_end(a, a->request, FINISH_REASON_CANCELLED, STATUS_CANCELLED);
        }
        answers_free(first);
    } else {
        int n = 0;
        for (struct answer *a = first; a; a = a->next)
            n++;
        answers_link(client, first);
        if (client->ops->submitted) client->ops->submitted(client);
        // A request may end within submit(), which removes its answer from the list.
        for (struct answer *a = first, *next; n--; a = next) {
            next = a->next;
            if (a->resumed_ends) answer_pass_resumed(a);
            submit(c, a->request, now_us);
        }
    }
    message_end(parsed);
}

static void event_not_submitted(struct core *c, void *arg, int64_t now_us)
{
    message_end(arg);
}

static void event_close(struct core *c, void *arg, int64_t now_us)
{
    struct client *client = arg;
    parsed_message_drop(client->front->parsed_messages, client->front->pool, &client->parsed_messages);
    while (client->answers)
        core_cancel(c, client->answers->request->number, now_us); // answer_done() unlinks the answer
    client->closed = true;
    client_check_idle(client);
}

// --- core's thread: aborts

bool client_abort(const struct front *front, struct core *c, const char *id, uint64_t owner, int64_t now_us)
{
    bool read = parsed_message_abort(front->parsed_messages, front->pool, id, owner);
    return core_abort(c, id, owner, now_us) || read;
}

// --- I/O threads and threads of the intake pool

enum status client_check(const struct client *client, const char *tenant, int32_t priority)
{
    return client->principal ? principal_check(client->principal, tenant, priority) : STATUS_OK;
}

// Returns the largest possible charge for the output of a request.
static double output_tokens_max(const struct client *client, const struct request_spec *spec)
{
    const struct sampling *s = &spec->sampling;
    if (spec->score_only) return 0;
    int on_host = sampling_needs_host(s, s->max_tokens - 1) ? s->max_tokens : s->min_tokens;
    if (s->prompt_logprobs >= 0) on_host += spec->n_tokens - 1;
    return ledger_output_tokens(s->max_tokens, on_host, client->front->config.vocab_size);
}

enum status answers_reserve(struct answer *first, int64_t *retry_us_p)
{
    struct limits_need need = {0};
    const struct client *client = first->client;
    if (!client->principal) return STATUS_OK;
    for (struct answer *a = first; a; a = a->next, need.n++) {
        a->reserved = output_tokens_max(client, &a->request->spec);
        need.prompts += a->request->spec.n_tokens;
        need.answers += a->reserved;
    }
    return identity_reserve(client->principal, &need, retry_us_p);
}

// Returns request_spec.owner of a client's requests. Aborts find a request id only among the requests of one owner.
static uint64_t owner_of(const struct client *client)
{
    return client->principal ? identity_prefix_salt(principal_tenant(client->principal), "") : 0;
}

// An id that is not UTF-8 counts as empty here. The message is refused when it is read. Until then, no answer and no
// trace may contain the id.
struct parsed_message *client_message_begin(struct client *client, const char *id)
{
    if (!utf8_valid(id, strlen(id), NULL)) id = "";
    return parsed_message_begin(client->front->parsed_messages, client, &client->parsed_messages, id, owner_of(client));
}

void client_refused(const struct client *client, const char *client_id, enum status status)
{
    log_event_limited(LOG_INFO, "request_refused", LOG_FIELD("client_id", client_id),
                      LOG_FIELD("status", status_name(status)),
                      LOG_FIELD("reason", request_refusal_reason(status, status_message())));
    front_refused(client->front, status);
}

void client_not_submitted(struct parsed_message *parsed)
{
    const struct client *client = parsed->client;
    if (client->principal) identity_end(client->principal, 0, 0);
    loop_post(client->front->loop, event_not_submitted, parsed);
}

void client_dropped(struct parsed_message *parsed, int64_t arrived_us)
{
    if (!atomic_load(&parsed->aborted)) {
        client_not_submitted(parsed);
        return;
    }
    struct answer *a = answer_create(parsed, arrived_us);
    a->request->id = mem_string(parsed->id);
    answers_submit(a, "aborted");
}

struct answer *answer_create(struct parsed_message *parsed, int64_t arrived_us)
{
    struct answer *a = mem_alloc(sizeof *a);
    a->client = parsed->client;
    a->parsed = parsed;
    a->stop = -1;
    a->request = request_create();
    a->request->spec.arrived_us = arrived_us;
    a->request->sink = (struct request_sink){answer_add_tokens, answer_add_prompt_logprobs, answer_done, a};
    answer_trace_begin(a);
    return a;
}

// Sets the tenant of the request: the tenant of the caller's key, or the tenant that the request names. Requests share
// entries of prefix caches if they have the same tenant and salt. With share_prefix_cache, so do all without a salt.
static void request_set_tenant(const struct client *client, struct request_spec *spec)
{
    if (client->principal) {
        free(spec->tenant);
        spec->tenant = mem_string(principal_tenant(client->principal));
        spec->owner = owner_of(client);
    }
    if (spec->cache_salt || (spec->tenant && !client->front->share_prefix_cache))
        spec->prefix_salt =
            identity_prefix_salt(spec->tenant ? spec->tenant : "", spec->cache_salt ? spec->cache_salt : "");
}

void answers_submit(struct answer *first, const char *method)
{
    for (struct answer *a = first; a; a = a->next) {
        struct request *r = a->request;
        request_set_tenant(a->client, &r->spec);
        a->min_tokens = r->spec.sampling.min_tokens;
        log_event(LOG_INFO, "request_received", LOG_REQUEST(r->number), LOG_FIELD("client_id", r->id),
                  LOG_FIELD("tenant", r->spec.tenant), LOG_FIELD("priority", r->spec.priority),
                  LOG_FIELD("tokens", r->spec.n_tokens), LOG_FIELD("method", method));
        request_set_state(r, REQUEST_TOKENISED);
    }
    loop_post(first->client->front->loop, event_submit, first);
}

void client_close(struct client *client)
{
    loop_post(client->front->loop, event_close, client);
}
