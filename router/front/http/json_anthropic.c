// SPDX-License-Identifier: Apache-2.0
#include "router/front/http/json_anthropic.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/text/generation_json.h"
#include "router/front/http/json_body.h"
#include "router/front/http/json_translate.h"
#include "router/front/http/json_variables.h"

// --- from the body

static const struct json_unsupported unsupported[] = {
    {"mcp_servers", "[]", NULL},
    // Fields that other APIs name differently or have in addition.
    {"max_completion_tokens", NULL, "give max_tokens"},
    {"stop", NULL, "give stop_sequences"},
    {"stream_options", NULL, "leave it out: every stream has the usage"},
    {"logprobs", "false", NULL},
    {"top_logprobs", "0", NULL},
    {"n", "1", "send a request for each answer"},
    {"best_of", "1", NULL},
    {"return_kept", "false", NULL},
    {"return_token_ids", "false", NULL},
    {0},
};

// Fields that are not passed on: /v1/chat/completions defines them differently or does not have them.
static const char *const own_fields[] = {
    "system",        "messages",     "max_tokens",  "stop_sequences", "metadata",           "tools",
    "tool_choice",   "thinking",     "mcp_servers", "container",      "context_management", "output_config",
    "output_format", "service_tier", NULL};

struct values {
    int64_t max_tokens;
    const json_t *messages, *metadata, *stop_sequences, *output_config, *output_format, *tools, *tool_choice;
    const json_t *thinking, *context_management, *chat_template_kwargs;
};

#define FIELD(name_, type_, ...)                                                                                       \
    {                                                                                                                  \
        .name = #name_, .type = JSON_FIELD_##type_, .offset = offsetof(struct values, name_), __VA_ARGS__              \
    }
static const struct json_field fields[] = {
    FIELD(max_tokens, INT, .min = 1, .max = INT_MAX), // 0, which only fills the prefix cache, is not supported
    FIELD(messages, LIST),
    FIELD(metadata, OBJECT),
    FIELD(stop_sequences, LIST),
    FIELD(output_config, OBJECT),
    FIELD(output_format, OBJECT),
    FIELD(tools, LIST),
    FIELD(tool_choice, OBJECT),
    FIELD(thinking, OBJECT),
    FIELD(context_management, OBJECT), // without effect: the client's turns are not edited
    FIELD(chat_template_kwargs, OBJECT),
    {0},
};

// Hints, without effect here.
static const char *const hints[] = {"cache_control", "inference_geo", "speed", NULL};

bool anthropic_knows(const char *name)
{
    return json_tables_name(fields, unsupported, name) || json_list_has(own_fields, name) || json_list_has(hints, name);
}

static const char *const text_blocks[] = {"text", NULL};

static const char *type_of(const json_t *block)
{
    const char *type = json_string_value(json_object_get(block, "type"));
    return type ? type : "";
}

// Adds a call that the model made in an earlier turn. Its input is what the model wrote, which may be no object.
static enum status call_add(json_t *calls, const json_t *block, const char *where, size_t index)
{
    json_t *input = json_object_get(block, "input"), *id = json_object_get(block, "id");
    json_t *name = json_object_get(block, "name");
    if (!json_is_string(id) || !json_is_string(name) || !input)
        return status_fail(STATUS_INVALID, "%s[%zu]: a tool_use block must have id, name and input", where, index);
    char *arguments = json_dumps(input, JSON_COMPACT | JSON_ENCODE_ANY);
    json_array_append_new(calls, json_pack("{s:O,s:s,s:{s:O,s:s}}", "id", id, "type", "function", "function", "name",
                                           name, "arguments", arguments));
    free(arguments);
    return STATUS_OK;
}

// Returns the content of a result with texts in place of blocks that name a tool, which the tool search of Claude Code
// returns. The prompt describes every tool, so a name suffices. The caller owns the content.
static json_t *result_content(const json_t *content)
{
    size_t i;
    json_t *block, *copy = json_array();
    json_array_foreach(content, i, block)
    {
        json_t *name = json_object_get(block, "tool_name");
        bool names = strcmp(type_of(block), "tool_reference") == 0 && json_is_string(name);
        json_array_append_new(copy, names ? json_pack("{s:s,s:O}", "type", "text", "text", name) : json_incref(block));
    }
    return copy;
}

// Adds the result of a call as a separate message.
static enum status result_add(json_t *messages, const json_t *block, const char *where, size_t index)
{
    json_t *id = json_object_get(block, "tool_use_id"), *content = json_object_get(block, "content");
    char inner[96];
    if (!json_is_string(id)) return status_fail(STATUS_INVALID, "%s[%zu].tool_use_id: must be a string", where, index);
    snprintf(inner, sizeof inner, "%s[%zu].content", where, index);
    if (!content || json_is_null(content)) {
        content = json_string("");
    } else {
        content = json_is_array(content) ? result_content(content) : json_incref(content);
    }
    enum status status = json_turn_add(messages, "tool", content, text_blocks, inner);
    json_decref(content);
    if (status == STATUS_OK)
        json_object_set(json_array_get(messages, json_array_size(messages) - 1), "tool_call_id", id);
    return status;
}

// Returns true for the reasoning of an earlier turn, which the prompt does not contain.
static bool is_thinking(const char *role, const char *type)
{
    return strcmp(role, "assistant") == 0 && (strcmp(type, "thinking") == 0 || strcmp(type, "redacted_thinking") == 0);
}

// Splits the blocks of a turn. Results of calls are added to `messages`, calls to `calls`, and other blocks to `rest`.
static enum status blocks_split(json_t *messages, const char *role, const json_t *content, const char *where,
                                json_t *rest, json_t *calls)
{
    size_t i;
    json_t *block;
    json_array_foreach(content, i, block)
    {
        if (strcmp(type_of(block), "tool_result") == 0) {
            TRY(result_add(messages, block, where, i));
        } else if (strcmp(type_of(block), "tool_use") == 0) {
            TRY(call_add(calls, block, where, i));
        } else if (!is_thinking(role, type_of(block))) {
            json_array_append(rest, block);
        }
    }
    return STATUS_OK;
}

static enum status turn_of_blocks_add(json_t *messages, const char *role, const json_t *content, const char *where)
{
    json_t *rest = json_array(), *calls = json_array();
    enum status status = blocks_split(messages, role, content, where, rest, calls);
    bool turn = json_array_size(rest) || json_array_size(calls) || !json_array_size(content);
    if (status == STATUS_OK && turn) status = json_turn_add(messages, role, rest, text_blocks, where);
    if (status == STATUS_OK && json_array_size(calls)) {
        json_t *message = json_array_get(messages, json_array_size(messages) - 1);
        json_object_set(message, "tool_calls", calls);
        if (!json_array_size(rest)) json_object_set_new(message, "content", json_null());
    }
    json_decref(rest);
    json_decref(calls);
    return status;
}

// --- turns: consecutive turns of one role are joined

static bool is_of(const json_t *message, const char *role)
{
    return strcmp(json_string_value(json_object_get(message, "role")), role) == 0;
}

static void message_join(json_t *to, json_t *from)
{
    json_t *before = json_object_get(to, "tool_calls"), *calls = json_object_get(from, "tool_calls");
    if (!json_is_null(json_object_get(from, "content"))) json_array_extend(json_turn_parts(to), json_turn_parts(from));
    if (before)
        json_array_extend(before, calls);
    else if (calls)
        json_object_set(to, "tool_calls", calls);
}

// Adds the messages of a turn. If the last message has the same role, the turn continues that message. Results of calls
// are put before that message, as within one turn.
static void turn_join(json_t *messages, const json_t *turn, const char *role)
{
    size_t i, n = json_array_size(messages);
    json_t *last = n ? json_array_get(messages, n - 1) : NULL, *message;
    if (last && !is_of(last, role)) last = NULL;
    json_array_foreach(turn, i, message)
    {
        if (last && is_of(message, role))
            message_join(last, message);
        else
            json_array_insert(messages, json_array_size(messages) - (last ? 1 : 0), message);
    }
}

static bool is_system(const json_t *turn)
{
    const char *role = json_string_value(json_object_get(turn, "role"));
    return role && strcmp(role, "system") == 0;
}

// Adds the messages of a turn, which may have none.
static enum status turn_read(json_t *messages, const json_t *turn, const char *role, size_t index)
{
    const json_t *content = json_object_get(turn, "content");
    char where[64];
    snprintf(where, sizeof where, "messages[%zu].content", index);
    if (json_is_array(content) && !is_system(turn)) return turn_of_blocks_add(messages, role, content, where);
    return json_turn_add(messages, role, content, text_blocks, where);
}

static json_t *last_of(const json_t *messages)
{
    return json_array_get(messages, json_array_size(messages) - 1);
}

// Returns the role under which a turn of the role system joins the messages.
static const char *system_role(const json_t *messages, bool system_turns)
{
    const json_t *last = last_of(messages);
    if (!last || is_of(last, "system") || system_turns) return "system";
    return is_of(last, "tool") ? "tool" : "user"; // after results, a turn of the user would look like a new question
}

static enum status turn_add(json_t *messages, const json_t *turn, size_t index, bool system_turns)
{
    const char *role = json_string_value(json_object_get(turn, "role"));
    if (!role || (strcmp(role, "user") != 0 && strcmp(role, "assistant") != 0 && !is_system(turn)))
        return status_fail(STATUS_INVALID, "messages[%zu].role: must be user, assistant or system", index);
    json_t *added = json_array();
    if (is_system(turn)) role = system_role(messages, system_turns);
    enum status status = turn_read(added, turn, role, index);
    if (status == STATUS_OK) turn_join(messages, added, role);
    json_decref(added);
    return status;
}

// Adds turns [first, end).
static enum status turns_add_range(json_t *messages, const json_t *turns, size_t first, size_t end, bool system_turns)
{
    for (size_t i = first; i < end; i++)
        TRY(turn_add(messages, json_array_get(turns, i), i, system_turns));
    return STATUS_OK;
}

// Adds all turns. System turns between calls and their results are added after the results.
static enum status turns_add(json_t *messages, const json_t *turns, bool system_turns)
{
    size_t n = json_array_size(turns);
    if (!n) return json_refuse_type("messages", "a list of turns");
    for (size_t i = 0, next; i < n; i = next) {
        next = i;
        while (next < n && json_object_get(last_of(messages), "tool_calls") && is_system(json_array_get(turns, next)))
            next++;
        size_t held = next - i;
        next += next < n;
        TRY(turns_add_range(messages, turns, i + held, next, system_turns));
        TRY(turns_add_range(messages, turns, i, i + held, system_turns));
    }
    const char *last = json_string_value(json_object_get(json_array_get(turns, n - 1), "role"));
    if (strcmp(last, "assistant") != 0) return STATUS_OK;
    return status_fail(STATUS_UNSUPPORTED,
                       "messages: the last turn is the assistant's: continuing it is not supported");
}

static enum status tool_add(json_t *tools, const json_t *tool, size_t index)
{
    json_t *name = json_object_get(tool, "name"), *schema = json_object_get(tool, "input_schema");
    const char *type = json_string_value(json_object_get(tool, "type")), *text;
    if (type && strcmp(type, "custom") != 0)
        return status_fail(STATUS_UNSUPPORTED, "tools[%zu]: type %.64s is not supported: define your own tool", index,
                           type);
    if (!json_is_string(name) || !json_is_object(schema))
        return status_fail(STATUS_INVALID, "tools[%zu]: must have name, a string, and input_schema, an object", index);
    text = json_string_value(json_object_get(tool, "description"));
    json_array_append_new(tools, json_pack("{s:s,s:{s:O,s:s,s:O,s:O*}}", "type", "function", "function", "name", name,
                                           "description", text ? text : "", "parameters", schema, "strict",
                                           json_object_get(tool, "strict")));
    return STATUS_OK;
}

static enum status tools_fill(const struct values *v, json_t *chat)
{
    static const char *const modes[][2] = {{"auto", "auto"}, {"any", "required"}, {"none", "none"}};
    const char *type = v->tool_choice ? type_of(v->tool_choice) : "auto";
    json_t *tools = json_array(), *tool, *choice = NULL;
    size_t i;
    json_object_set_new(chat, "tools", tools);
    json_array_foreach(v->tools, i, tool) TRY(tool_add(tools, tool, i));
    for (i = 0; i < sizeof modes / sizeof *modes; i++)
        if (strcmp(type, modes[i][0]) == 0) choice = json_string(modes[i][1]);
    if (strcmp(type, "tool") == 0 && json_is_string(json_object_get(v->tool_choice, "name")))
        choice =
            json_pack("{s:s,s:{s:O}}", "type", "function", "function", "name", json_object_get(v->tool_choice, "name"));
    if (!choice) return json_refuse_type("tool_choice", "of type auto, any, none, or tool with a name");
    json_object_set_new(chat, "tool_choice", choice);
    if (json_is_true(json_object_get(v->tool_choice, "disable_parallel_tool_use")))
        json_object_set_new(chat, "parallel_tool_calls", json_false());
    return STATUS_OK;
}

// Returns true for the block in which Claude Code names its version. The block differs between the requests of a
// conversation, so the prefix cache would not find the prompt again.
static bool is_billing(const json_t *block)
{
    static const char start[] = "x-anthropic-billing-header:";
    const char *text = json_string_value(json_object_get(block, "text"));
    return text && strncmp(text, start, strlen(start)) == 0;
}

static enum status system_add(json_t *messages, const json_t *system)
{
    size_t i;
    json_t *block;
    if (!system || json_is_null(system)) return STATUS_OK;
    if (!json_is_array(system)) return json_turn_add(messages, "system", system, text_blocks, "system");
    json_t *blocks = json_array();
    json_array_foreach(system, i, block) if (!is_billing(block)) json_array_append(blocks, block);
    enum status status = STATUS_OK;
    if (json_array_size(blocks)) status = json_turn_add(messages, "system", blocks, text_blocks, "system");
    json_decref(blocks);
    return status;
}

// Sets the variables of the chat template that switch reasoning on or off and limit it.
static enum status thinking_fill(const json_t *thinking, json_t *variables)
{
    const char *type = type_of(thinking);
    bool on = strcmp(type, "enabled") == 0 || strcmp(type, "adaptive") == 0;
    const json_t *budget = json_object_get(thinking, "budget_tokens");
    json_int_t tokens = 0;
    if (!on && strcmp(type, "disabled") != 0) return json_refuse_type("thinking.type", "enabled, adaptive or disabled");
    json_variables_set_thinking(variables, on);
    if (!on || !budget || json_is_null(budget)) return STATUS_OK;
    if (!json_whole(budget, &tokens) || tokens < 1 || tokens > INT_MAX)
        return json_refuse_type("thinking.budget_tokens", "a whole number from 1 to 2147483647");
    json_variable_set(variables, "thinking_budget", json_integer(tokens));
    return STATUS_OK;
}

static enum status reasoning_fill(const struct values *v, json_t *chat)
{
    json_t *effort = json_object_get(v->output_config, "effort");
    if (v->thinking) {
        json_t *variables = v->chat_template_kwargs ? json_copy((json_t *)v->chat_template_kwargs) : json_object();
        json_object_set_new(chat, "chat_template_kwargs", variables);
        TRY(thinking_fill(v->thinking, variables));
    }
    if (!effort || json_is_null(effort)) return STATUS_OK;
    if (!json_is_string(effort)) return json_refuse_type("output_config.effort", "a string");
    TRY(json_variable_check("output_config.effort", json_string_value(effort)));
    json_object_set(chat, "reasoning_effort", effort);
    return STATUS_OK;
}

static enum status format_fill(const struct values *v, json_t *chat)
{
    const json_t *format = json_object_get(v->output_config, "format");
    if (json_is_null(format)) format = NULL;
    if (format && v->output_format && !json_equal(format, v->output_format))
        return status_fail(STATUS_INVALID,
                           "output_format: not allowed together with output_config.format, which differs");
    json_set_response_format(chat, format ? format : v->output_format);
    return STATUS_OK;
}

static enum status chat_fill(const json_t *body, const struct values *v, bool system_turns, json_t *chat)
{
    json_t *messages = json_array();
    json_object_set_new(chat, "messages", messages);
    TRY(system_add(messages, json_object_get(body, "system")));
    TRY(turns_add(messages, v->messages, system_turns));
    if (v->max_tokens) json_object_set_new(chat, "max_completion_tokens", json_integer(v->max_tokens));
    if (v->stop_sequences) json_object_set(chat, "stop", (json_t *)v->stop_sequences);
    TRY(format_fill(v, chat));
    TRY(reasoning_fill(v, chat));
    if (json_array_size(v->tools) || v->tool_choice) TRY(tools_fill(v, chat));
    const json_t *user = json_object_get(v->metadata, "user_id");
    if (json_is_string(user)) json_object_set(chat, "user", (json_t *)user);
    return STATUS_OK;
}

enum status anthropic_to_chat(const json_t *body, const struct anthropic_options *options, json_t **chat_p)
{
    struct values v = {0};
    TRY(json_unsupported_check(body, unsupported));
    TRY(json_fields_read(body, fields, &v));
    // The id of a container alone is without effect, since no tool runs here.
    if (json_object_get(json_object_get(body, "container"), "skills"))
        return status_fail(STATUS_UNSUPPORTED, "container.skills: not supported: leave it out");
    if (!v.max_tokens && !options->counted) return json_refuse_type("max_tokens", "given: a whole number of 1 or more");
    json_t *chat = json_copy_without(body, own_fields);
    enum status status = chat_fill(body, &v, options->system_turns, chat);
    if (status == STATUS_OK) {
        *chat_p = chat;
    } else {
        json_decref(chat);
    }
    return status;
}
