// SPDX-License-Identifier: Apache-2.0
#include "router/front/json_responses.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "model/generation_json.h"
#include "router/front/json_body.h"
#include "router/front/json_translate.h"

// --- from the body

#define NOT_STORED "responses are not stored: send the whole conversation as input"

// clang-format off
static const struct json_unsupported unsupported[] = {
    {"previous_response_id", NULL, NOT_STORED},
    {"conversation", NULL, NOT_STORED},
    {"background", "false", NULL},
    {"prompt", NULL, "send the text as instructions and input"},
    {"tools", "[]", NULL},
    {"tool_choice", "\"auto\"", NULL},
    {"max_tool_calls", NULL, NULL},
    {"reasoning", "{}", NULL},
    {"truncation", "\"disabled\"", "shorten the input"},
    {"context_management", "[]", NULL},
    {"moderation", NULL, NULL},
    {0},
};
// clang-format on

// Not passed on: what the API defines otherwise than /v1/chat/completions, or not at all.
static const char *const own_fields[] = {"input",
                                         "instructions",
                                         "max_output_tokens",
                                         "metadata",
                                         "store",
                                         "text",
                                         "reasoning",
                                         "include",
                                         "truncation",
                                         "background",
                                         "conversation",
                                         "prompt",
                                         "previous_response_id",
                                         "tools",
                                         "tool_choice",
                                         "max_tool_calls",
                                         "parallel_tool_calls",
                                         "top_logprobs",
                                         "stream_options",
                                         "service_tier",
                                         "messages",
                                         "max_tokens",
                                         "max_completion_tokens",
                                         "logprobs",
                                         "n",
                                         "best_of",
                                         NULL};

struct values {
    const char *instructions, *safety_identifier, *prompt_cache_key;
    bool store, parallel_tool_calls;
    int64_t max_output_tokens, top_logprobs;
    const json_t *metadata, *text, *stream_options, *include;
};

#define FIELD(name_, type_, ...)                                                                                       \
    {                                                                                                                  \
        .name = #name_, .type = JSON_FIELD_##type_, .offset = offsetof(struct values, name_), __VA_ARGS__              \
    }
static const struct json_field fields[] = {
    FIELD(instructions, NAME),
    FIELD(store, BOOL),
    FIELD(max_output_tokens, INT, .min = 1, .max = INT_MAX), // a response of no token has no end
    FIELD(safety_identifier, NAME),
    FIELD(prompt_cache_key, NAME),
    FIELD(parallel_tool_calls, BOOL),
    FIELD(top_logprobs, INT, .min = 0, .max = LOGPROBS_MAX),
    FIELD(include, LIST),
    FIELD(metadata, OBJECT),
    FIELD(text, OBJECT),
    FIELD(stream_options, OBJECT),
    {0},
};

// A response repeats these fields, a stream several times: OpenAI's bounds, in bytes.
enum { METADATA_MAX = 16, METADATA_KEY_MAX = 64, METADATA_VALUE_MAX = 512, IDENTIFIER_MAX = 512 };

static enum status check_identifier(const char *name, const char *value)
{
    if (!value || strlen(value) <= IDENTIFIER_MAX) return STATUS_OK;
    return status_fail(STATUS_INVALID, "%s: %zu bytes long, at most %d are allowed", name, strlen(value),
                       IDENTIFIER_MAX);
}

static enum status check_metadata(const json_t *metadata)
{
    static const char expected[] = "an object of at most 16 strings, of at most 512 bytes, with keys of at most 64";
    const char *key;
    json_t *value;
    if (json_object_size(metadata) > METADATA_MAX) return json_refuse_type("metadata", expected);
    json_object_foreach((json_t *)metadata, key, value)
    {
        if (!json_is_string(value) || json_string_length(value) > METADATA_VALUE_MAX || strlen(key) > METADATA_KEY_MAX)
            return json_refuse_type("metadata", expected);
    }
    return STATUS_OK;
}

static enum status check_text(const json_t *text)
{
    const json_t *verbosity = json_object_get(text, "verbosity");
    const char *amount = json_string_value(verbosity);
    if (verbosity && !json_is_null(verbosity) && (!amount || strcmp(amount, "medium") != 0))
        return status_fail(STATUS_UNSUPPORTED, "text.verbosity: not supported, except \"medium\": leave it out");
    return STATUS_OK;
}

// Log-probabilities are the only thing that can be included.
static enum status logprobs_read(const struct values *v, json_t *chat)
{
    size_t i;
    json_t *name;
    json_array_foreach(v->include, i, name)
    {
        const char *wanted = json_string_value(name);
        if (!wanted || strcmp(wanted, "message.output_text.logprobs") != 0)
            return status_fail(STATUS_UNSUPPORTED, "include: not supported, except message.output_text.logprobs");
    }
    bool included = json_array_size(v->include) > 0;
    if (v->top_logprobs && !included)
        return status_fail(STATUS_INVALID, "top_logprobs: only with include message.output_text.logprobs");
    if (!included) return STATUS_OK;
    json_object_set_new(chat, "logprobs", json_true());
    json_object_set_new(chat, "top_logprobs", json_integer(v->top_logprobs));
    return STATUS_OK;
}

static bool role_is_known(const char *role)
{
    return strcmp(role, "user") == 0 || strcmp(role, "assistant") == 0 || strcmp(role, "system") == 0 ||
           strcmp(role, "developer") == 0;
}

static enum status item_add(json_t *messages, const json_t *item, size_t index)
{
    static const char *const blocks[] = {"input_text", "output_text", NULL};
    const char *type = json_string_value(json_object_get(item, "type"));
    const char *role = json_string_value(json_object_get(item, "role"));
    char where[64];
    if (type && strcmp(type, "message") != 0) {
        return status_fail(STATUS_UNSUPPORTED, "input[%zu]: type %.64s is not supported: send messages", index, type);
    }
    if (!role || !role_is_known(role))
        return status_fail(STATUS_INVALID, "input[%zu].role: must be user, assistant, system or developer", index);
    snprintf(where, sizeof where, "input[%zu].content", index);
    if (strcmp(role, "developer") == 0) role = "system";
    return json_turn_add(messages, role, json_object_get(item, "content"), blocks, where);
}

static enum status input_add(json_t *messages, const json_t *input)
{
    size_t i;
    json_t *item;
    if (json_is_string(input)) return json_turn_add(messages, "user", input, NULL, "input");
    if (!json_is_array(input) || !json_array_size(input))
        return json_refuse_type("input", "a string or a list of items");
    json_array_foreach(input, i, item) TRY(item_add(messages, item, i));
    return STATUS_OK;
}

static enum status chat_fill(const json_t *body, const struct values *v, json_t *chat)
{
    json_t *messages = json_array();
    json_object_set_new(chat, "messages", messages);
    if (v->instructions && *v->instructions)
        TRY(json_turn_add(messages, "system", json_object_get(body, "instructions"), NULL, ""));
    if (v->max_output_tokens) json_object_set_new(chat, "max_completion_tokens", json_integer(v->max_output_tokens));
    TRY(logprobs_read(v, chat));
    json_set_response_format(chat, json_object_get(v->text, "format"));
    return input_add(messages, json_object_get(body, "input"));
}

enum status responses_to_chat(const json_t *body, json_t **chat_p)
{
    struct values v = {0};
    TRY(json_unsupported_check(body, unsupported));
    TRY(json_fields_read(body, fields, &v));
    TRY(check_identifier("safety_identifier", v.safety_identifier));
    TRY(check_identifier("prompt_cache_key", v.prompt_cache_key));
    if (v.metadata) TRY(check_metadata(v.metadata));
    if (v.text) TRY(check_text(v.text));
    json_t *chat = json_copy_without(body, own_fields);
    enum status status = chat_fill(body, &v, chat);
    if (status == STATUS_OK) {
        *chat_p = chat;
    } else {
        json_decref(chat);
    }
    return status;
}

// --- the response object

// ,"NAME":VALUE as the body has it, or `otherwise`.
static void echo_add(struct bytes *out, const json_t *body, const char *name, const char *otherwise)
{
    const json_t *value = json_object_get(body, name);
    char *text = value && !json_is_null(value) ? json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY) : NULL;
    JSON_ADD(out, ",\"");
    json_add(out, name);
    JSON_ADD(out, "\":");
    json_add(out, text ? text : otherwise);
    free(text);
}

char *responses_echo(const json_t *body)
{
    struct bytes out = {0};
    echo_add(&out, body, "instructions", "null");
    echo_add(&out, body, "max_output_tokens", "null");
    echo_add(&out, body, "metadata", "{}");
    echo_add(&out, body, "parallel_tool_calls", "true");
    echo_add(&out, body, "temperature", "1.0");
    echo_add(&out, body, "top_p", "1.0");
    echo_add(&out, body, "top_logprobs", "0");
    echo_add(&out, body, "text", "{\"format\":{\"type\":\"text\"},\"verbosity\":\"medium\"}");
    echo_add(&out, body, "user", "null");
    echo_add(&out, body, "safety_identifier", "null");
    echo_add(&out, body, "prompt_cache_key", "null");
    bytes_add(&out, "", 1);
    return out.data;
}

static void head_add(struct bytes *out, const struct responses_answer *a)
{
    JSON_ADD(out, "{\"id\":");
    json_add_string(out, a->id);
    JSON_ADD(out, ",\"object\":\"response\",\"created_at\":");
    json_add_integer(out, a->created_s);
    JSON_ADD(out, ",\"model\":");
    json_add_string(out, a->model);
    json_add(out, a->echo);
    JSON_ADD(out, ",\"background\":false,\"max_tool_calls\":null,\"previous_response_id\":null,"
                  "\"reasoning\":{\"effort\":null,\"summary\":null},\"service_tier\":\"default\",\"store\":false,"
                  "\"tool_choice\":\"auto\","
                  "\"tools\":[],\"truncation\":\"disabled\"");
}

static void logprobs_add(struct bytes *out, const struct bytes *logprobs)
{
    JSON_ADD(out, ",\"logprobs\":[");
    if (logprobs->n) bytes_add(out, logprobs->data, logprobs->n);
    JSON_ADD(out, "]");
}

// The part of the message that has the text.
static void part_add(struct bytes *out, const struct responses_answer *a)
{
    JSON_ADD(out, "{\"type\":\"output_text\",\"annotations\":[],\"text\":");
    json_add_text(out, a->text.n ? a->text.data : "", a->text.n);
    logprobs_add(out, &a->logprobs);
    JSON_ADD(out, "}");
}

// The message, with or without its part.
static void item_object_add(struct bytes *out, const struct responses_answer *a, const char *status, bool part)
{
    JSON_ADD(out, "{\"type\":\"message\",\"role\":\"assistant\",\"id\":");
    json_add_string(out, a->item_id);
    JSON_ADD(out, ",\"status\":");
    json_add_string(out, status);
    JSON_ADD(out, ",\"content\":[");
    if (part) part_add(out, a);
    JSON_ADD(out, "]}");
}

static void usage_add(struct bytes *out, const struct request_usage *usage)
{
    JSON_ADD(out, "{\"input_tokens\":");
    json_add_integer(out, usage->prompt_tokens);
    JSON_ADD(out, ",\"input_tokens_details\":{\"cached_tokens\":");
    json_add_integer(out, usage->cached_tokens);
    JSON_ADD(out, ",\"cache_write_tokens\":0},\"output_tokens\":");
    json_add_integer(out, usage->completion_tokens);
    JSON_ADD(out, ",\"output_tokens_details\":{\"reasoning_tokens\":0},\"total_tokens\":");
    json_add_integer(out, (int64_t)usage->prompt_tokens + usage->completion_tokens);
    JSON_ADD(out, "}");
}

// The response while it is being generated.
static void running_object_add(struct bytes *out, const struct responses_answer *a)
{
    head_add(out, a);
    JSON_ADD(out,
             ",\"status\":\"in_progress\",\"error\":null,\"incomplete_details\":null,\"output\":[],\"usage\":null}");
}

static const char *response_status_name(enum finish_reason reason)
{
    switch (reason) {
    case FINISH_REASON_STOP: return "completed";
    case FINISH_REASON_LENGTH: return "incomplete";
    case FINISH_REASON_CANCELLED: return "cancelled";
    case FINISH_REASON_ERROR: break;
    }
    return "failed";
}

static const char *item_status_name(enum finish_reason reason)
{
    return reason == FINISH_REASON_STOP ? "completed" : "incomplete";
}

void responses_add_object(struct bytes *out, const struct responses_answer *a, const struct responses_end *end)
{
    head_add(out, a);
    JSON_ADD(out, ",\"status\":");
    json_add_string(out, response_status_name(end->reason));
    JSON_ADD(out, ",\"error\":");
    if (end->reason == FINISH_REASON_ERROR) {
        JSON_ADD(out, "{\"code\":\"server_error\",\"message\":");
        json_add_string(out, end->error);
        JSON_ADD(out, "}");
    } else {
        JSON_ADD(out, "null");
    }
    JSON_ADD(out, ",\"incomplete_details\":");
    json_add(out, end->reason == FINISH_REASON_LENGTH ? "{\"reason\":\"max_output_tokens\"}" : "null");
    JSON_ADD(out, ",\"output\":[");
    item_object_add(out, a, item_status_name(end->reason), true);
    JSON_ADD(out, "],\"usage\":");
    usage_add(out, end->usage);
    JSON_ADD(out, "}");
}

// --- events

static void event_begin(struct bytes *out, struct responses_answer *a, const char *name)
{
    json_event_begin(out, name);
    JSON_ADD(out, ",\"sequence_number\":");
    json_add_integer(out, a->n_events++);
}

// Of an event within the only item of the output and its only part.
static void part_event_begin(struct bytes *out, struct responses_answer *a, const char *name)
{
    event_begin(out, a, name);
    JSON_ADD(out, ",\"item_id\":");
    json_add_string(out, a->item_id);
    JSON_ADD(out, ",\"output_index\":0,\"content_index\":0");
}

static void running_event_add(struct bytes *out, struct responses_answer *a, const char *name)
{
    event_begin(out, a, name);
    JSON_ADD(out, ",\"response\":");
    running_object_add(out, a);
    json_event_end(out);
}

static void item_event_add(struct bytes *out, struct responses_answer *a, const char *name, const char *status,
                           bool part)
{
    event_begin(out, a, name);
    JSON_ADD(out, ",\"output_index\":0,\"item\":");
    item_object_add(out, a, status, part);
    json_event_end(out);
}

static void part_event_add(struct bytes *out, struct responses_answer *a, const char *name)
{
    part_event_begin(out, a, name);
    JSON_ADD(out, ",\"part\":");
    part_add(out, a);
    json_event_end(out);
}

// `member` is the JSON of the text's name: ",\"delta\":".
static void text_event_add(struct bytes *out, struct responses_answer *a, const char *name, const char *member,
                           const char *text, size_t n, const struct bytes *logprobs)
{
    part_event_begin(out, a, name);
    json_add(out, member);
    json_add_text(out, text, n);
    logprobs_add(out, logprobs);
    json_event_end(out);
}

void responses_add_begin(struct bytes *out, struct responses_answer *a)
{
    running_event_add(out, a, "response.created");
    running_event_add(out, a, "response.in_progress");
    item_event_add(out, a, "response.output_item.added", "in_progress", false);
    part_event_add(out, a, "response.content_part.added");
}

void responses_add_delta(struct bytes *out, struct responses_answer *a, const char *text, size_t n,
                         const struct bytes *logprobs)
{
    if (!n && !logprobs->n) return;
    if (n) bytes_add(&a->text, text, n);
    if (a->logprobs.n && logprobs->n) JSON_ADD(&a->logprobs, ",");
    if (logprobs->n) bytes_add(&a->logprobs, logprobs->data, logprobs->n);
    text_event_add(out, a, "response.output_text.delta", ",\"delta\":", n ? text : "", n, logprobs);
}

static const char *last_event_name(enum finish_reason reason)
{
    switch (reason) {
    case FINISH_REASON_STOP: return "response.completed";
    case FINISH_REASON_LENGTH: return "response.incomplete";
    default: return "response.failed";
    }
}

void responses_add_end(struct bytes *out, struct responses_answer *a, const struct responses_end *end)
{
    text_event_add(out, a, "response.output_text.done", ",\"text\":", a->text.n ? a->text.data : "", a->text.n,
                   &a->logprobs);
    part_event_add(out, a, "response.content_part.done");
    item_event_add(out, a, "response.output_item.done", item_status_name(end->reason), true);
    event_begin(out, a, last_event_name(end->reason));
    JSON_ADD(out, ",\"response\":");
    responses_add_object(out, a, end);
    json_event_end(out);
}
