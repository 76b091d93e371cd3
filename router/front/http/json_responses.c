// SPDX-License-Identifier: Apache-2.0
#include "router/front/http/json_responses.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "lib/text/generation_json.h"
#include "router/front/http/json_body.h"
#include "router/front/http/json_translate.h"

// --- from the body

#define NOT_STORED "responses are not stored: send the whole conversation as input"

// clang-format off
static const struct json_unsupported unsupported[] = {
    {"previous_response_id", NULL, NOT_STORED},
    {"conversation", NULL, NOT_STORED},
    {"background", "false", NULL},
    {"prompt", NULL, "send the text as instructions and input"},
    {"max_tool_calls", NULL, NULL},
    {"reasoning", "{}", NULL},
    {"truncation", "\"disabled\"", "shorten the input"},
    {"context_management", "[]", NULL},
    {"moderation", NULL, NULL},
    // Fields that other APIs name differently or have in addition.
    {"messages", NULL, "give input"},
    {"max_tokens", NULL, "give max_output_tokens"},
    {"max_completion_tokens", NULL, "give max_output_tokens"},
    {"logprobs", "false", "give include with message.output_text.logprobs"},
    {"n", "1", "send a request for each answer"},
    {"best_of", "1", NULL},
    {"return_kept", "false", NULL},
    {"return_token_ids", "false", NULL},
    {0},
};
// The usage is in the last event of every stream.
static const struct json_unsupported unsupported_stream[] = {{"continuous_usage_stats", "false", NULL}, {0}};
// clang-format on

// Fields that are not passed on: /v1/chat/completions defines them differently or does not have them.
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
                                         "top_logprobs",
                                         "stream_options",
                                         "service_tier",
                                         NULL};

struct values {
    const char *instructions, *user, *safety_identifier, *prompt_cache_key;
    bool store, parallel_tool_calls;
    int64_t max_output_tokens, top_logprobs;
    const json_t *metadata, *text, *stream_options, *include, *tools, *tool_choice;
};

#define FIELD(name_, type_, ...)                                                                                       \
    {                                                                                                                  \
        .name = #name_, .type = JSON_FIELD_##type_, .offset = offsetof(struct values, name_), __VA_ARGS__              \
    }
static const struct json_field fields[] = {
    FIELD(instructions, NAME),
    FIELD(store, BOOL),
    FIELD(max_output_tokens, INT, .min = 1, .max = INT_MAX), // 0 is not supported: a response has at least one token
    FIELD(user, NAME),
    FIELD(safety_identifier, NAME),
    FIELD(prompt_cache_key, NAME),
    FIELD(parallel_tool_calls, BOOL),
    FIELD(top_logprobs, INT, .min = 0, .max = LOGPROBS_MAX),
    FIELD(include, LIST),
    FIELD(metadata, OBJECT),
    FIELD(text, OBJECT),
    FIELD(stream_options, OBJECT),
    FIELD(tools, LIST),
    FIELD(tool_choice, ANY),
    {0},
};

// OpenAI's limits of fields that a response repeats: number of metadata members; bytes of their keys and of their
// values; bytes of user and other identifiers.
enum { METADATA_MAX = 16, METADATA_KEY_MAX = 64, METADATA_VALUE_MAX = 512, IDENTIFIER_MAX = 512 };

static enum status check_repeated(const char *name, const json_t *value)
{
    size_t n = value ? json_dumpb(value, NULL, 0, JSON_COMPACT | JSON_ENCODE_ANY) : 0;
    if (n <= RESPONSES_REPEATED_JSON_MAX) return STATUS_OK;
    return status_fail(STATUS_INVALID, "%s: %zu bytes of JSON, at most %d are allowed", name, n,
                       RESPONSES_REPEATED_JSON_MAX);
}

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

// Reads the fields include and top_logprobs. include can only ask for log-probabilities.
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

// --- tools

// Adds a tool {"type": "function", "name", ...}. A chat has these members inside "function".
static enum status tool_add(json_t *tools, const json_t *tool, size_t index)
{
    static const char *const type_member[] = {"type", NULL};
    const char *type = json_string_value(json_object_get(tool, "type"));
    if (!type) return status_fail(STATUS_INVALID, "tools[%zu]: must be an object with a type", index);
    if (strcmp(type, "function") != 0)
        return status_fail(STATUS_UNSUPPORTED, "tools[%zu]: type %.64s is not supported: send functions", index, type);
    json_array_append_new(tools,
                          json_pack("{s:s,s:o}", "type", type, "function", json_copy_without(tool, type_member)));
    return STATUS_OK;
}

static enum status tools_fill(const struct values *v, json_t *chat)
{
    json_t *tools = json_array(), *tool, *name = json_object_get(v->tool_choice, "name");
    const char *type = json_string_value(json_object_get(v->tool_choice, "type"));
    size_t i;
    json_object_set_new(chat, "tools", tools);
    json_array_foreach(v->tools, i, tool) TRY(tool_add(tools, tool, i));
    if (!v->tool_choice) return STATUS_OK;
    if (type && strcmp(type, "function") == 0 && json_is_string(name)) {
        json_object_set_new(chat, "tool_choice",
                            json_pack("{s:s,s:{s:O}}", "type", "function", "function", "name", name));
    } else if (json_is_string(v->tool_choice)) {
        json_object_set(chat, "tool_choice", (json_t *)v->tool_choice);
    } else {
        return json_refuse_type("tool_choice", "none, auto, required, or a function with its name");
    }
    return STATUS_OK;
}

// --- items of the input

static bool role_is_known(const char *role)
{
    return strcmp(role, "user") == 0 || strcmp(role, "assistant") == 0 || strcmp(role, "system") == 0 ||
           strcmp(role, "developer") == 0;
}

static enum status message_add(json_t *messages, const json_t *item, size_t index)
{
    static const char *const blocks[] = {"input_text", "output_text", NULL};
    const char *role = json_string_value(json_object_get(item, "role"));
    char where[64];
    if (!role || !role_is_known(role))
        return status_fail(STATUS_INVALID, "input[%zu].role: must be user, assistant, system or developer", index);
    snprintf(where, sizeof where, "input[%zu].content", index);
    if (strcmp(role, "developer") == 0) role = "system";
    return json_turn_add(messages, role, json_object_get(item, "content"), blocks, where);
}

// Returns the assistant's turn for the next call: the last message if its role is assistant, else a new message. In a
// chat, the model's text and calls are one turn.
static json_t *calling_turn(json_t *messages)
{
    json_t *last = json_array_get(messages, json_array_size(messages) - 1);
    const char *role = json_string_value(json_object_get(last, "role"));
    if (role && strcmp(role, "assistant") == 0) return last;
    last = json_pack("{s:s,s:n}", "role", "assistant", "content");
    json_array_append_new(messages, last);
    return last;
}

// Adds a call that the model made in an earlier turn.
static enum status call_add(json_t *messages, const json_t *item, size_t index)
{
    json_t *id = json_object_get(item, "call_id"), *name = json_object_get(item, "name");
    json_t *arguments = json_object_get(item, "arguments");
    if (!json_is_string(id) || !json_is_string(name) || !json_is_string(arguments))
        return status_fail(STATUS_INVALID, "input[%zu]: must have call_id, name and arguments, strings", index);
    json_t *turn = calling_turn(messages), *calls = json_object_get(turn, "tool_calls");
    if (!calls) json_object_set_new(turn, "tool_calls", calls = json_array());
    json_array_append_new(calls, json_pack("{s:O,s:s,s:{s:O,s:O}}", "id", id, "type", "function", "function", "name",
                                           name, "arguments", arguments));
    return STATUS_OK;
}

static enum status call_output_add(json_t *messages, const json_t *item, size_t index)
{
    static const char *const blocks[] = {"input_text", NULL};
    json_t *id = json_object_get(item, "call_id");
    char where[64];
    if (!json_is_string(id)) return status_fail(STATUS_INVALID, "input[%zu].call_id: must be a string", index);
    snprintf(where, sizeof where, "input[%zu].output", index);
    TRY(json_turn_add(messages, "tool", json_object_get(item, "output"), blocks, where));
    json_object_set(json_array_get(messages, json_array_size(messages) - 1), "tool_call_id", id);
    return STATUS_OK;
}

static enum status item_add(json_t *messages, const json_t *item, size_t index)
{
    const char *type = json_string_value(json_object_get(item, "type"));
    if (!type || strcmp(type, "message") == 0) return message_add(messages, item, index);
    if (strcmp(type, "function_call") == 0) return call_add(messages, item, index);
    if (strcmp(type, "function_call_output") == 0) return call_output_add(messages, item, index);
    if (strcmp(type, "reasoning") == 0) return STATUS_OK; // the prompt does not contain earlier reasoning
    return status_fail(STATUS_UNSUPPORTED, "input[%zu]: type %.64s is not supported: send messages and function calls",
                       index, type);
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
    if (json_array_size(v->tools) || v->tool_choice) TRY(tools_fill(v, chat));
    return input_add(messages, json_object_get(body, "input"));
}

enum status responses_to_chat(const json_t *body, json_t **chat_p)
{
    struct values v = {0};
    TRY(json_unsupported_check(body, unsupported));
    TRY(json_fields_read(body, fields, &v));
    TRY(json_unsupported_check(v.stream_options, unsupported_stream));
    TRY(check_identifier("user", v.user));
    TRY(check_identifier("safety_identifier", v.safety_identifier));
    TRY(check_identifier("prompt_cache_key", v.prompt_cache_key));
    TRY(check_repeated("text", v.text));
    TRY(check_repeated("tools", v.tools));
    TRY(check_repeated("tool_choice", v.tool_choice));
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
