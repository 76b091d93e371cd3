// SPDX-License-Identifier: Apache-2.0
// POST /v1/score answers with the prompt tokens that would be kept, and the importance of each token.
#include "router/front/http/http_score.h"

#include <stdlib.h>

#include "lib/base/clock.h"
#include "lib/base/mem.h"
#include "router/front/grpc/wire_request.h"
#include "router/front/http/http_messages.h"
#include "router/front/http/http_prompt.h"
#include "router/front/http/json_unknown.h"
#include "router/front/request/compress_job.h"
#include "router/front/request/request_trace.h"

struct score {
    struct client client;             // first member: a pointer to the client is cast to the score
    const struct http_score_api *api; // static
    struct http_exchange *x;          // holds a reference
};

// --- core's thread

static void score_add(const char *model, const struct request *r, struct bytes *out)
{
    JSON_ADD(out, "{\"object\":\"score\",\"model\":");
    json_add_string(out, model);
    JSON_ADD(out, ",\"token_ids\":[");
    json_add_ids(out, r->spec.tokens, r->spec.n_tokens);
    JSON_ADD(out, "],\"kept\":[");
    json_add_ranges(out, r->kept, r->n_kept_ranges);
    JSON_ADD(out, "],\"importance\":[");
    for (int i = 0; r->importance && i < r->spec.n_tokens; i++) {
        json_add_comma(out);
        json_add_real(out, r->importance[i]);
    }
    JSON_ADD(out, "],\"score_ms\":");
    json_add_real(out, (double)r->timing.score_us / 1e3);
    JSON_ADD(out, ",\"keep_rate\":");
    json_add_real(out, r->keep_rate);
    JSON_ADD(out, ",\"prefill_reason\":");
    json_add_string(out, request_rate_reason(r));
    JSON_ADD(out, "}");
}

static void score_answer(struct http_exchange *x, struct answer *a, const struct request *r)
{
    struct bytes out = {0};
    score_add(a->client->front->model_names[0], r, &out);
    http_answer(x, &out);
    bytes_free(&out);
}

static void score_done(struct answer *a, const struct request *r, enum finish_reason reason, enum status status,
                       const char *message)
{
    struct score *s = (struct score *)a->client;
    if (reason == FINISH_REASON_ERROR || reason == FINISH_REASON_CANCELLED)
        http_fail(s->x, status, message);
    else
        s->api->answer(s->x, a, r);
}

static void score_free(struct client *client)
{
    principal_unref(client->principal);
    http_unref(((struct score *)client)->x);
    free(client);
}

static const struct client_ops score_ops = {.done = score_done, .release = compress_release, .free = score_free};

// --- where the body is read

struct values {
    const json_t *prompt;
    const json_t *messages;
};

static const struct json_field fields[] = {
    {.name = "prompt", .type = JSON_FIELD_ANY, .offset = offsetof(struct values, prompt)},
    {.name = "messages", .type = JSON_FIELD_LIST, .offset = offsetof(struct values, messages)},
    {0},
};

static const struct json_unsupported unsupported[] = {{"text_1", NULL, "give the prompt to score"},
                                                      {"text_2", NULL, "give the prompt to score"},
                                                      {"stream", "false", NULL},
                                                      {0}};

static bool score_knows(const char *name)
{
    return json_tables_name(fields, unsupported, name) || json_generation_knows(name) || http_messages_knows(name);
}

static enum status read_prompt(const json_t *body, struct http_input *in)
{
    struct values v = {0};
    TRY(json_unsupported_check(body, unsupported));
    TRY(json_generation_read(body, &in->fields));
    TRY(json_fields_read(body, fields, &v));
    if (!v.prompt == !v.messages) return status_fail(STATUS_INVALID, "prompt: give either prompt or messages");
    in->prompts = http_input_alloc(in, 1, sizeof *in->prompts);
    return v.prompt ? http_prompt_read(v.prompt, in, in->prompts) : http_messages_read(body, in, in->prompts);
}

static enum status read_request(const json_t *body, struct http_input *in, struct answer *a)
{
    const struct client *client = a->client;
    const Forepack__V1__GenerateRequest *common = &in->fields.message;
    TRY(read_prompt(body, in));
    TRY(client_check(client, common->tenant, common->priority));
    Forepack__V1__ScoreRequest m = FOREPACK__V1__SCORE_REQUEST__INIT;
    m.model = common->model;
    m.tenant = common->tenant;
    m.cache_salt = common->cache_salt;
    m.priority = common->priority;
    m.ttft_deadline_ms = common->ttft_deadline_ms;
    m.prefill = &in->fields.prefill_options;
    m.text = (ProtobufCBinaryData){in->prompts->text_bytes, (uint8_t *)in->prompts->text};
    m.token_ids = in->prompts->ids;
    m.n_token_ids = in->prompts->n_ids;
    const struct wire_options options = {
        .conversation = in->prompts->conversation, .text_given = in->prompts->text != NULL, .ids_field = "prompt"};
    return wire_score_request_read(client->front, &m, &options, a->request);
}

// Refuses the message with the error message of status_message(). Frees its answer `a`, which may be NULL.
static void score_refuse(struct parsed_message *parsed, struct answer *a, enum status status, int64_t retry_us)
{
    struct score *s = (struct score *)parsed->client;
    client_trace_refused(&s->client, a, status, clock_now_us());
    answers_free(a);
    front_refused(s->client.front, status);
    http_refuse_until(s->x, status, retry_us);
    client_not_submitted(parsed);
}

static void score_read(const struct http_message *message)
{
    struct parsed_message *parsed = message->user;
    if (message->dropped) {
        client_dropped(parsed, message->arrived_us);
        return;
    }
    struct http_input in = {.n_prompts = 0};
    json_t *body = NULL;
    struct answer *a = answer_create(parsed, message->arrived_us);
    const struct http_score_api *api = ((struct score *)parsed->client)->api;
    enum status status = api->as_sent ? http_message_parse_as_sent(message, &body) : http_message_parse(message, &body);
    if (status == STATUS_OK) status = api->read(body, &in, a);
    if (status == STATUS_OK) json_unknown_log(api->method, api->knows, body);
    if (status == STATUS_OK) status = answers_reserve(a, &in.retry_us);
    http_input_fini(&in);
    json_decref(body);
    if (status == STATUS_OK) {
        answers_submit(a, api->method);
    } else {
        score_refuse(parsed, a, status, in.retry_us);
    }
}

void http_score_start(struct http_exchange *x, const struct http_score_api *api)
{
    const struct http_service *service = http_context(x);
    if (!http_admit(x)) return;
    struct http_call *call = http_user(x);
    struct score *s = mem_alloc(sizeof *s);
    http_ref(x);
    s->x = x;
    s->api = api;
    s->client.ops = &score_ops;
    s->client.front = service->front;
    s->client.principal = principal_ref(call->principal);
    http_trace_open(x, &s->client);
    call->client = &s->client;
    struct parsed_message *parsed = client_message_begin(&s->client, "");
    enum status status = http_message_read(service->front, x, &parsed->waiting, score_read, parsed);
    if (status != STATUS_OK) score_refuse(parsed, NULL, status, 0);
}

void http_score_post(struct http_exchange *x)
{
    static const struct http_score_api api = {
        .method = "score", .read = read_request, .knows = score_knows, .answer = score_answer};
    http_score_start(x, &api);
}
