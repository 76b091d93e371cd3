// SPDX-License-Identifier: Apache-2.0
#include "router/front/http/http_info.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "lib/base/version.h"
#include "lib/text/generation_json.h"
#include "router/front/grpc/wire_request.h"
#include "router/front/http/http_messages.h"
#include "router/front/http/http_service.h"
#include "router/front/http/json_body.h"
#include "router/front/request/intake.h"

static const struct front *front_of(const struct http_exchange *x)
{
    return ((const struct http_service *)http_context(x))->front;
}

static void answer_free(struct http_exchange *x, struct bytes *json)
{
    http_answer(x, json);
    bytes_free(json);
}

// --- models

// Adds the members of OpenAI's API, then the members of Anthropic's API.
static void model_add(const struct http_service *service, const char *name, struct bytes *out)
{
    const struct front *front = service->front;
    char created[32];
    time_t started_s = (time_t)service->started_s;
    struct tm utc;
    strftime(created, sizeof created, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&started_s, &utc));
    JSON_ADD(out, "{\"id\":");
    json_add_string(out, name);
    JSON_ADD(out, ",\"object\":\"model\",\"created\":");
    json_add_integer(out, service->started_s);
    JSON_ADD(out, ",\"owned_by\":\"forepack\",\"max_model_len\":");
    json_add_integer(out, front->config.max_context);
    JSON_ADD(out, ",\"type\":\"model\",\"display_name\":");
    json_add_string(out, name);
    JSON_ADD(out, ",\"lifecycle\":\"active\",\"created_at\":");
    json_add_string(out, created);
    JSON_ADD(out, ",\"max_input_tokens\":");
    json_add_integer(out, front->config.max_context - 1);
    JSON_ADD(out, ",\"max_tokens\":");
    json_add_integer(out, front->config.max_context - 1);
    JSON_ADD(out, "}");
}

static void model_list_add(const struct http_service *service, struct bytes *out)
{
    const struct front *front = service->front;
    JSON_ADD(out, "{\"object\":\"list\",\"data\":[");
    for (int i = 0; i < front->n_model_names; i++) {
        json_add_comma(out);
        model_add(service, front->model_names[i], out);
    }
    JSON_ADD(out, "],\"first_id\":");
    json_add_string(out, front->model_names[0]);
    JSON_ADD(out, ",\"last_id\":");
    json_add_string(out, front->model_names[front->n_model_names - 1]);
    JSON_ADD(out, ",\"has_more\":false}");
}

void http_models_get(struct http_exchange *x)
{
    static const char prefix[] = "/v1/models/";
    const struct http_service *service = http_context(x);
    const char *path = http_path(x);
    bool one = strncmp(path, prefix, sizeof prefix - 1) == 0;
    enum status status = one ? intake_check_model(service->front, path + sizeof prefix - 1) : STATUS_OK;
    if (status != STATUS_OK) {
        http_refuse(x, status);
        return;
    }
    struct bytes out = {0};
    if (one) {
        model_add(service, path + sizeof prefix - 1, &out);
    } else {
        model_list_add(service, &out);
    }
    answer_free(x, &out);
}

// --- state

static void state_answer(struct http_exchange *x, enum status status, const char *state)
{
    if (status != STATUS_OK) {
        http_refuse(x, status);
        return;
    }
    struct bytes out = {0};
    JSON_ADD(&out, "{\"status\":");
    json_add_string(&out, state);
    JSON_ADD(&out, "}");
    answer_free(x, &out);
}

void http_health_get(struct http_exchange *x)
{
    bool alive = intake_check_backlog(front_of(x)) == STATUS_OK;
    state_answer(x, alive ? STATUS_OK : STATUS_UNAVAILABLE, "alive");
}

void http_ready_get(struct http_exchange *x)
{
    const struct front *front = front_of(x);
    enum status status = STATUS_OK;
    if (!atomic_load(&front->serving))
        status = status_fail(STATUS_UNAVAILABLE, "no request would be served: no worker group is attached, or the "
                                                 "router is shutting down");
    state_answer(x, status, "ready");
}

void http_version_get(struct http_exchange *x)
{
    struct bytes out = {0};
    JSON_ADD(&out, "{\"version\":");
    json_add_string(&out, FOREPACK_VERSION);
    JSON_ADD(&out, "}");
    answer_free(x, &out);
}

void http_tokenizer_info_get(struct http_exchange *x)
{
    const char *info = front_of(x)->tokenizer_info;
    http_answer(x, &(struct bytes){.data = (char *)info, .n = strlen(info)});
}

// --- text and tokens

struct tokenize_values {
    const char *model;
    const json_t *prompt, *messages;
    bool add_special_tokens, return_token_strs;
};
#define TOKENIZE_FIELD(name_, type_)                                                                                   \
    {                                                                                                                  \
        .name = #name_, .type = JSON_FIELD_##type_, .offset = offsetof(struct tokenize_values, name_)                  \
    }
static const struct json_field tokenize_fields[] = {
    TOKENIZE_FIELD(model, NAME),
    TOKENIZE_FIELD(prompt, ANY),
    TOKENIZE_FIELD(messages, LIST),
    TOKENIZE_FIELD(add_special_tokens, BOOL),
    TOKENIZE_FIELD(return_token_strs, BOOL),
    {0},
};

static enum status tokenize_read(const struct front *front, const json_t *body, struct http_input *in,
                                 struct tokenize_values *v, int32_t **tokens_p, int *n_p)
{
    static const struct json_unsupported unsupported[] = {
        {"continue_final_message", "false", NULL}, {"tools", "[]", NULL}, {0}};
    Forepack__V1__TokenizeRequest m = FOREPACK__V1__TOKENIZE_REQUEST__INIT;
    struct http_prompt prompt = {0};
    TRY(json_unsupported_check(body, unsupported));
    TRY(json_fields_read(body, tokenize_fields, v));
    if (!v->prompt == !v->messages) return status_fail(STATUS_INVALID, "prompt: give either prompt or messages");
    if (v->messages) TRY(http_messages_read(body, in, &prompt));
    if (v->prompt && !json_is_string(v->prompt)) return json_refuse_type("prompt", "a string");
    m.model = (char *)(v->model ? v->model : "");
    m.no_special = !v->add_special_tokens;
    if (v->prompt)
        m.text = (ProtobufCBinaryData){json_string_length(v->prompt), (uint8_t *)json_string_value(v->prompt)};
    return wire_tokenize(front, &m, prompt.conversation, tokens_p, n_p);
}

static void token_strings_add(const struct front *front, const int32_t *tokens, int n, struct bytes *out)
{
    JSON_ADD(out, "[");
    for (int i = 0; i < n; i++) {
        json_add_comma(out);
        json_add_string(out, tokenizer_token(front->tokenizer, tokens[i]));
    }
    JSON_ADD(out, "]");
}

static void tokenize_answer(struct http_exchange *x, const int32_t *tokens, int n, bool strings)
{
    const struct front *front = front_of(x);
    struct bytes out = {0};
    JSON_ADD(&out, "{\"count\":");
    json_add_integer(&out, n);
    JSON_ADD(&out, ",\"max_model_len\":");
    json_add_integer(&out, front->config.max_context);
    JSON_ADD(&out, ",\"tokens\":[");
    json_add_ids(&out, tokens, n);
    JSON_ADD(&out, "],\"token_strs\":");
    if (strings) {
        token_strings_add(front, tokens, n, &out);
    } else {
        JSON_ADD(&out, "null");
    }
    JSON_ADD(&out, "}");
    answer_free(x, &out);
}

static void tokenize_message(const struct http_message *message)
{
    if (message->dropped) return;
    struct tokenize_values v = {.add_special_tokens = true};
    struct http_input in = {.n_prompts = 0};
    json_t *body = NULL;
    int32_t *tokens = NULL;
    int n = 0;
    enum status status = http_message_parse(message, &body);
    if (status == STATUS_OK) status = tokenize_read(front_of(message->x), body, &in, &v, &tokens, &n);
    if (status == STATUS_OK) {
        tokenize_answer(message->x, tokens, n, v.return_token_strs);
    } else {
        http_refuse(message->x, status);
    }
    free(tokens);
    http_input_fini(&in);
    json_decref(body);
}

struct detokenize_values {
    const char *model;
    const json_t *tokens;
    bool skip_special_tokens;
};

static enum status detokenize_read(const struct front *front, const json_t *body, char **text_p, size_t *n_p)
{
    static const struct json_field fields[] = {
        {.name = "model", .type = JSON_FIELD_NAME, .offset = offsetof(struct detokenize_values, model)},
        {.name = "tokens", .type = JSON_FIELD_LIST, .offset = offsetof(struct detokenize_values, tokens)},
        {.name = "skip_special_tokens",
         .type = JSON_FIELD_BOOL,
         .offset = offsetof(struct detokenize_values, skip_special_tokens)},
        {0},
    };
    struct detokenize_values v = {.model = "", .skip_special_tokens = true};
    TRY(json_fields_read(body, fields, &v));
    if (!v.tokens) return status_fail(STATUS_INVALID, "tokens: a list of token ids is required");
    Forepack__V1__DetokenizeRequest m = FOREPACK__V1__DETOKENIZE_REQUEST__INIT;
    m.model = (char *)v.model;
    m.keep_special = !v.skip_special_tokens;
    m.n_token_ids = json_array_size(v.tokens);
    struct http_input in = {.n_prompts = 0};
    m.token_ids = http_input_alloc(&in, m.n_token_ids, sizeof *m.token_ids);
    enum status status = STATUS_OK;
    for (size_t i = 0; i < m.n_token_ids && status == STATUS_OK; i++) {
        json_int_t id = 0;
        bool valid = json_whole(json_array_get(v.tokens, i), &id) && id >= 0 && id <= INT_MAX;
        if (!valid) status = json_refuse_type("tokens", "a list of token ids");
        m.token_ids[i] = valid ? (uint32_t)id : 0;
    }
    if (status == STATUS_OK) status = wire_detokenize(front, &m, text_p, n_p);
    http_input_fini(&in);
    return status;
}

static void detokenize_message(const struct http_message *message)
{
    if (message->dropped) return;
    json_t *body = NULL;
    char *text = NULL;
    size_t n = 0;
    enum status status = http_message_parse(message, &body);
    if (status == STATUS_OK) status = detokenize_read(front_of(message->x), body, &text, &n);
    if (status == STATUS_OK) {
        struct bytes out = {0};
        JSON_ADD(&out, "{\"prompt\":");
        json_add_text(&out, text, n);
        JSON_ADD(&out, "}");
        answer_free(message->x, &out);
    } else {
        http_refuse(message->x, status);
    }
    free(text);
    json_decref(body);
}

static void message_start(struct http_exchange *x, http_read_fn *read)
{
    if (!http_admit_call(x)) return;
    struct http_call *call = http_user(x);
    enum status status = http_message_read(front_of(x), x, &call->waiting, read, NULL);
    if (status != STATUS_OK) http_refuse(x, status);
}

void http_tokenize_post(struct http_exchange *x)
{
    message_start(x, tokenize_message);
}

void http_detokenize_post(struct http_exchange *x)
{
    message_start(x, detokenize_message);
}
