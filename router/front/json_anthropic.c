// SPDX-License-Identifier: Apache-2.0
#include "router/front/json_anthropic.h"

#include <limits.h>
#include <string.h>

#include "model/generation_json.h"
#include "router/front/json_body.h"
#include "router/front/json_translate.h"

// --- from the body

static const struct json_unsupported unsupported[] = {
    {"tools", "[]", NULL},
    {"tool_choice", "{\"type\":\"auto\"}", NULL},
    {"thinking", "{\"type\":\"disabled\"}", NULL},
    {"mcp_servers", "[]", NULL},
    {"container", NULL, NULL},
    {"context_management", NULL, NULL},
    {0},
};
static const struct json_unsupported unsupported_output[] = {{"effort", NULL, NULL}, {0}};

// Not passed on: what the API defines otherwise than /v1/chat/completions, or not at all.
static const char *const own_fields[] = {"system",
                                         "messages",
                                         "max_tokens",
                                         "stop_sequences",
                                         "metadata",
                                         "tools",
                                         "tool_choice",
                                         "thinking",
                                         "mcp_servers",
                                         "container",
                                         "context_management",
                                         "output_config",
                                         "output_format",
                                         "service_tier",
                                         "stop",
                                         "stream_options",
                                         "max_completion_tokens",
                                         "logprobs",
                                         "top_logprobs",
                                         "n",
                                         "best_of",
                                         NULL};

struct values {
    int64_t max_tokens;
    const json_t *messages, *metadata, *stop_sequences, *output_config, *output_format;
};

#define FIELD(name_, type_, ...)                                                                                       \
    {                                                                                                                  \
        .name = #name_, .type = JSON_FIELD_##type_, .offset = offsetof(struct values, name_), __VA_ARGS__              \
    }
static const struct json_field fields[] = {
    FIELD(max_tokens, INT, .min = 1, .max = INT_MAX), // 0, which warms a cache, is not supported
    FIELD(messages, LIST),
    FIELD(metadata, OBJECT),
    FIELD(stop_sequences, LIST),
    FIELD(output_config, OBJECT),
    FIELD(output_format, OBJECT),
    {0},
};

static const char *const text_blocks[] = {"text", NULL};

static enum status turn_add(json_t *messages, const json_t *turn, size_t index)
{
    const char *role = json_string_value(json_object_get(turn, "role"));
    char where[64];
    snprintf(where, sizeof where, "messages[%zu].content", index);
    if (!role || (strcmp(role, "user") != 0 && strcmp(role, "assistant") != 0))
        return status_fail(STATUS_INVALID, "messages[%zu].role: must be user or assistant", index);
    return json_turn_add(messages, role, json_object_get(turn, "content"), text_blocks, where);
}

static enum status turns_add(json_t *messages, const json_t *turns)
{
    size_t i, n = json_array_size(turns);
    json_t *turn;
    if (!n) return json_refuse_type("messages", "a list of turns");
    json_array_foreach(turns, i, turn) TRY(turn_add(messages, turn, i));
    const char *last = json_string_value(json_object_get(json_array_get(turns, n - 1), "role"));
    if (strcmp(last, "user") == 0) return STATUS_OK;
    return status_fail(STATUS_UNSUPPORTED,
                       "messages: the last turn is the assistant's: continuing it is not supported");
}

static enum status chat_fill(const json_t *body, const struct values *v, json_t *chat)
{
    json_t *messages = json_array(), *system = json_object_get(body, "system");
    json_object_set_new(chat, "messages", messages);
    if (system && !json_is_null(system)) TRY(json_turn_add(messages, "system", system, text_blocks, "system"));
    TRY(turns_add(messages, v->messages));
    if (v->max_tokens) json_object_set_new(chat, "max_completion_tokens", json_integer(v->max_tokens));
    if (v->stop_sequences) json_object_set(chat, "stop", (json_t *)v->stop_sequences);
    json_set_response_format(chat, v->output_format ? v->output_format : json_object_get(v->output_config, "format"));
    const json_t *user = json_object_get(v->metadata, "user_id");
    if (json_is_string(user)) json_object_set(chat, "user", (json_t *)user);
    return STATUS_OK;
}

enum status anthropic_to_chat(const json_t *body, bool counted, json_t **chat_p)
{
    struct values v = {0};
    TRY(json_unsupported_check(body, unsupported));
    TRY(json_fields_read(body, fields, &v));
    TRY(json_unsupported_check(v.output_config, unsupported_output));
    if (!v.max_tokens && !counted) return json_refuse_type("max_tokens", "given: a whole number of 1 or more");
    json_t *chat = json_copy_without(body, own_fields);
    enum status status = chat_fill(body, &v, chat);
    if (status == STATUS_OK) {
        *chat_p = chat;
    } else {
        json_decref(chat);
    }
    return status;
}

// --- the message

static void head_add(struct bytes *out, const struct anthropic_answer *a)
{
    JSON_ADD(out, "{\"id\":");
    json_add_string(out, a->id);
    JSON_ADD(out, ",\"type\":\"message\",\"role\":\"assistant\",\"model\":");
    json_add_string(out, a->model);
}

// Tokens of the prompt that were found in a prefix cache are counted apart from the others.
static void usage_add(struct bytes *out, int prompt_tokens, int cached_tokens, int output_tokens)
{
    JSON_ADD(out, ",\"usage\":{\"input_tokens\":");
    json_add_integer(out, prompt_tokens - cached_tokens);
    JSON_ADD(out, ",\"cache_creation_input_tokens\":0,\"cache_read_input_tokens\":");
    json_add_integer(out, cached_tokens);
    JSON_ADD(out, ",\"output_tokens\":");
    json_add_integer(out, output_tokens);
    JSON_ADD(out, "}");
}

static void end_usage_add(struct bytes *out, const struct request_usage *usage)
{
    usage_add(out, usage->prompt_tokens, usage->cached_tokens, usage->completion_tokens);
}

static const char *stop_reason_name(const struct anthropic_end *end)
{
    if (end->reason == FINISH_REASON_LENGTH) return "max_tokens";
    return end->stop ? "stop_sequence" : "end_turn";
}

static void stop_add(struct bytes *out, const struct anthropic_end *end)
{
    JSON_ADD(out, "\"stop_reason\":");
    json_add_string(out, stop_reason_name(end));
    JSON_ADD(out, ",\"stop_sequence\":");
    json_add_string(out, end->stop);
}

void anthropic_add_message(struct bytes *out, const struct anthropic_answer *a, const char *text, size_t n,
                           const struct anthropic_end *end)
{
    head_add(out, a);
    JSON_ADD(out, ",\"content\":[{\"type\":\"text\",\"text\":");
    json_add_text(out, text, n);
    JSON_ADD(out, "}],");
    stop_add(out, end);
    end_usage_add(out, end->usage);
    JSON_ADD(out, "}");
}

// --- events

void anthropic_add_begin(struct bytes *out, const struct anthropic_answer *a, int prompt_tokens)
{
    json_event_begin(out, "message_start");
    JSON_ADD(out, ",\"message\":");
    head_add(out, a);
    JSON_ADD(out, ",\"content\":[],\"stop_reason\":null,\"stop_sequence\":null");
    usage_add(out, prompt_tokens, 0, 0);
    JSON_ADD(out, "}");
    json_event_end(out);
    json_event_begin(out, "content_block_start");
    JSON_ADD(out, ",\"index\":0,\"content_block\":{\"type\":\"text\",\"text\":\"\"}");
    json_event_end(out);
    json_event_begin(out, "ping");
    json_event_end(out);
}

void anthropic_add_delta(struct bytes *out, const char *text, size_t n)
{
    if (!n) return;
    json_event_begin(out, "content_block_delta");
    JSON_ADD(out, ",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":");
    json_add_text(out, text, n);
    JSON_ADD(out, "}");
    json_event_end(out);
}

void anthropic_add_end(struct bytes *out, const struct anthropic_end *end)
{
    json_event_begin(out, "content_block_stop");
    JSON_ADD(out, ",\"index\":0");
    json_event_end(out);
    json_event_begin(out, "message_delta");
    JSON_ADD(out, ",\"delta\":{");
    stop_add(out, end);
    JSON_ADD(out, "}");
    end_usage_add(out, end->usage);
    json_event_end(out);
    json_event_begin(out, "message_stop");
    json_event_end(out);
}

// --- errors

static const char *error_type(enum status status)
{
    switch (status) {
    case STATUS_NOT_FOUND: return "not_found_error";
    case STATUS_UNAUTHENTICATED: return "authentication_error";
    case STATUS_DENIED: return "permission_error";
    case STATUS_EXHAUSTED: return "rate_limit_error";
    case STATUS_UNAVAILABLE: return "overloaded_error";
    case STATUS_DEADLINE: return "timeout_error";
    case STATUS_CANCELLED:
    case STATUS_INTERNAL: return "api_error";
    default: return "invalid_request_error";
    }
}

static void error_members_add(struct bytes *out, enum status status, const char *message)
{
    JSON_ADD(out, ",\"error\":{\"type\":");
    json_add_string(out, error_type(status));
    JSON_ADD(out, ",\"message\":");
    json_add_string(out, message);
    JSON_ADD(out, "}");
}

void anthropic_add_error_event(struct bytes *out, enum status status, const char *message)
{
    json_event_begin(out, "error");
    error_members_add(out, status, message);
    json_event_end(out);
}

void anthropic_add_error(struct bytes *out, enum status status, const char *message)
{
    JSON_ADD(out, "{\"type\":\"error\"");
    error_members_add(out, status, message);
    JSON_ADD(out, "}");
}
