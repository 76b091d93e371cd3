// SPDX-License-Identifier: Apache-2.0
#include "router/front/http/json_responses.h"

#include <limits.h>
#include <string.h>

#include "lib/text/generation_json.h"
#include "router/front/http/json_body.h"
#include "router/front/http/json_responses_input.h"
#include "router/front/http/json_translate.h"

// --- from the body

#define NOT_STORED "responses are not stored: send the whole conversation as input"

// clang-format off
static const struct json_unsupported unsupported[] = {
    {"previous_response_id", NULL, NOT_STORED},
    {"conversation", NULL, NOT_STORED},
    {"background", "false", NULL},
    {"prompt", NULL, "send the text as instructions and input"},
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
                                         "context_management",
                                         NULL};

struct values {
    const char *instructions, *user, *safety_identifier, *prompt_cache_key, *truncation;
    bool store, parallel_tool_calls;
    int64_t max_output_tokens, top_logprobs, max_tool_calls;
    const json_t *metadata, *text, *reasoning, *stream_options, *include, *tools, *tool_choice;
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
    FIELD(truncation, NAME),
    FIELD(parallel_tool_calls, BOOL),
    FIELD(top_logprobs, INT, .min = 0, .max = LOGPROBS_MAX),
    FIELD(max_tool_calls, INT, .min = 1, .max = INT_MAX),
    FIELD(include, LIST),
    FIELD(metadata, OBJECT),
    FIELD(text, OBJECT),
    FIELD(reasoning, OBJECT),
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

// With "auto", OpenAI's servers shorten an input that is too long. This server refuses such an input in both cases.
static enum status check_truncation(const char *truncation)
{
    if (!truncation || strcmp(truncation, "auto") == 0 || strcmp(truncation, "disabled") == 0) return STATUS_OK;
    return json_refuse_type("truncation", "auto or disabled");
}

// --- include

static const char logprobs_name[] = "message.output_text.logprobs";

// Data that an answer of this server never has, so that a request for it is met.
static const char *const absent_data[] = {"reasoning.encrypted_content",   "file_search_call.results",
                                          "web_search_call.results",       "web_search_call.action.sources",
                                          "message.input_image.image_url", "computer_call_output.output.image_url",
                                          "code_interpreter_call.outputs", NULL};

static enum status include_read(const json_t *include, bool *logprobs_p)
{
    size_t i;
    json_t *item;
    json_array_foreach(include, i, item)
    {
        const char *name = json_string_value(item);
        if (name && strcmp(name, logprobs_name) == 0)
            *logprobs_p = true;
        else if (!name || !json_list_has(absent_data, name))
            return status_fail(STATUS_UNSUPPORTED,
                               "include[%zu]: not supported: must be %s, or data that no answer here has: "
                               "reasoning.encrypted_content, and inputs and results of OpenAI's own tools",
                               i, logprobs_name);
    }
    return STATUS_OK;
}

static enum status logprobs_read(const struct values *v, json_t *chat)
{
    bool wanted = false;
    TRY(include_read(v->include, &wanted));
    if (!wanted) return STATUS_OK;
    json_object_set_new(chat, "logprobs", json_true());
    json_object_set_new(chat, "top_logprobs", json_integer(v->top_logprobs));
    return STATUS_OK;
}

bool responses_knows(const char *name)
{
    return json_tables_name(fields, unsupported, name) || json_list_has(own_fields, name);
}

// --- the body of the chat

// Copies the member `from` of an object to the chat under the name `to`. It must be a string or null.
static enum status word_copy(const json_t *object, const char *from, const char *where, const char *to, json_t *chat)
{
    json_t *word = json_object_get(object, from);
    if (!word || json_is_null(word)) return STATUS_OK;
    if (!json_is_string(word)) return json_refuse_type(where, "a string");
    json_object_set(chat, to, word);
    return STATUS_OK;
}

static enum status tools_fill(const struct values *v, struct responses_tools *tools, json_t *chat)
{
    json_t *functions, *choice;
    TRY(responses_tools_read(v->tools, tools, &functions));
    json_object_set_new(chat, "tools", functions);
    if (!v->tool_choice) return STATUS_OK;
    TRY(responses_tool_choice_read(v->tool_choice, tools, &choice));
    json_object_set_new(chat, "tool_choice", choice);
    return STATUS_OK;
}

static enum status chat_fill(const json_t *body, const struct values *v, bool system_turns,
                             struct responses_tools *tools, json_t *chat)
{
    json_t *messages = json_array();
    json_object_set_new(chat, "messages", messages);
    if (v->instructions && *v->instructions)
        TRY(json_turn_add(messages, "system", json_object_get(body, "instructions"), NULL, ""));
    if (v->max_output_tokens) json_object_set_new(chat, "max_completion_tokens", json_integer(v->max_output_tokens));
    TRY(logprobs_read(v, chat));
    json_set_response_format(chat, json_object_get(v->text, "format"));
    TRY(word_copy(v->reasoning, "effort", "reasoning.effort", "reasoning_effort", chat));
    TRY(word_copy(v->text, "verbosity", "text.verbosity", "verbosity", chat));
    if (json_array_size(v->tools) || v->tool_choice) TRY(tools_fill(v, tools, chat));
    return responses_input_add(messages, json_object_get(body, "input"), system_turns);
}

enum status responses_to_chat(const json_t *body, bool system_turns, struct responses_tools *tools, json_t **chat_p)
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
    TRY(check_truncation(v.truncation));
    TRY(check_repeated("reasoning", v.reasoning));
    json_t *chat = json_copy_without(body, own_fields);
    enum status status = chat_fill(body, &v, system_turns, tools, chat);
    if (status == STATUS_OK) {
        *chat_p = chat;
    } else {
        json_decref(chat);
    }
    return status;
}
