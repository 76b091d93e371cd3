// SPDX-License-Identifier: Apache-2.0
#include "router/front/http/json_responses_input.h"

#include <stdlib.h>
#include <string.h>

#include "lib/text/generation_json.h"
#include "router/front/http/json_responses_tools.h"
#include "router/front/http/json_translate.h"

static bool role_is_known(const char *role)
{
    return strcmp(role, "user") == 0 || strcmp(role, "assistant") == 0 || strcmp(role, "system") == 0 ||
           strcmp(role, "developer") == 0;
}

// Returns the content with each part {"type": "refusal", "refusal": TEXT} replaced by a part with text. The caller owns
// the list.
static json_t *refusals_as_text(const json_t *content)
{
    json_t *parts = json_array(), *part;
    size_t i;
    json_array_foreach(content, i, part)
    {
        const char *type = json_string_member(part, "type");
        json_t *text = type && strcmp(type, "refusal") == 0 ? json_object_get(part, "refusal") : NULL;
        if (text)
            json_array_append_new(parts, json_pack("{s:s,s:O}", "type", "output_text", "text", text));
        else
            json_array_append(parts, part);
    }
    return parts;
}

static json_t *last_of(json_t *messages)
{
    return json_array_get(messages, json_array_size(messages) - 1);
}

// Joins the last message, of the role system, with the message before it, which a template without system turns needs.
static void system_join(json_t *messages)
{
    const size_t n = json_array_size(messages);
    json_t *system = last_of(messages), *before = n > 1 ? json_array_get(messages, n - 2) : NULL;
    if (!before) return;
    if (strcmp(json_string_member(before, "role"), "assistant") == 0) {
        json_object_set_new(system, "role", json_string("user"));
        return;
    }
    json_array_extend(json_turn_parts(before), json_turn_parts(system));
    json_array_remove(messages, n - 1);
}

static enum status message_add(json_t *messages, const json_t *item, size_t index, bool system_turns)
{
    static const char *const blocks[] = {"input_text", "output_text", NULL};
    const char *role = json_string_member(item, "role");
    const json_t *content = json_object_get(item, "content");
    char where[64];
    if (!role || !role_is_known(role))
        return status_fail(STATUS_INVALID, "input[%zu].role: must be user, assistant, system or developer", index);
    snprintf(where, sizeof where, "input[%zu].content", index);
    if (strcmp(role, "developer") == 0) role = "system";
    json_t *parts = json_is_array(content) ? refusals_as_text(content) : NULL;
    enum status status = json_turn_add(messages, role, parts ? parts : content, blocks, where);
    json_decref(parts);
    if (status == STATUS_OK && !system_turns && strcmp(role, "system") == 0) system_join(messages);
    return status;
}

// Returns the assistant's turn for the next call: the last message if its role is assistant, else a new message. In a
// chat, the model's text and calls are one turn.
static json_t *calling_turn(json_t *messages)
{
    json_t *last = last_of(messages);
    const char *role = json_string_member(last, "role");
    if (role && strcmp(role, "assistant") == 0) return last;
    last = json_pack("{s:s,s:n}", "role", "assistant", "content");
    json_array_append_new(messages, last);
    return last;
}

// Adds a call that the model made in an earlier turn. `text` is the item's member with the text of the call.
static enum status call_add(json_t *messages, const json_t *item, size_t index, const char *text)
{
    json_t *id = json_object_get(item, "call_id"), *value = json_object_get(item, text);
    const char *name = json_string_member(item, "name");
    if (!json_is_string(id) || !name || !json_is_string(value))
        return status_fail(STATUS_INVALID, "input[%zu]: must have call_id, name and %s, strings", index, text);
    char *offered = responses_offered_name(json_string_member(item, "namespace"), name);
    json_t *arguments = strcmp(text, "input") == 0 ? responses_custom_arguments(value) : json_incref(value);
    json_t *turn = calling_turn(messages), *calls = json_object_get(turn, "tool_calls");
    if (!calls) json_object_set_new(turn, "tool_calls", calls = json_array());
    json_array_append_new(calls, json_pack("{s:O,s:s,s:{s:s,s:o}}", "id", id, "type", "function", "function", "name",
                                           offered, "arguments", arguments));
    free(offered);
    return STATUS_OK;
}

static enum status call_output_add(json_t *messages, const json_t *item, size_t index)
{
    static const char *const blocks[] = {"input_text", "output_text", NULL};
    json_t *id = json_object_get(item, "call_id");
    char where[64];
    if (!json_is_string(id)) return status_fail(STATUS_INVALID, "input[%zu].call_id: must be a string", index);
    snprintf(where, sizeof where, "input[%zu].output", index);
    TRY(json_turn_add(messages, "tool", json_object_get(item, "output"), blocks, where));
    json_object_set(last_of(messages), "tool_call_id", id);
    return STATUS_OK;
}

static enum status item_add(json_t *messages, const json_t *item, size_t index, bool system_turns)
{
    const char *type = json_string_member(item, "type");
    if (!type || strcmp(type, "message") == 0) return message_add(messages, item, index, system_turns);
    if (strcmp(type, "function_call") == 0) return call_add(messages, item, index, "arguments");
    if (strcmp(type, "custom_tool_call") == 0) return call_add(messages, item, index, "input");
    if (strcmp(type, "function_call_output") == 0 || strcmp(type, "custom_tool_call_output") == 0)
        return call_output_add(messages, item, index);
    if (strcmp(type, "reasoning") == 0) return STATUS_OK; // the prompt does not contain earlier reasoning
    if (strcmp(type, "item_reference") == 0)
        return status_fail(STATUS_UNSUPPORTED,
                           "input[%zu]: type item_reference is not supported, since responses are not stored: send the "
                           "item itself",
                           index);
    return status_fail(STATUS_UNSUPPORTED,
                       "input[%zu]: type %.64s is not supported: send items of the types message, reasoning, "
                       "function_call, custom_tool_call, and their outputs",
                       index, type);
}

enum status responses_input_add(json_t *messages, const json_t *input, bool system_turns)
{
    size_t i;
    json_t *item;
    if (!input || json_is_null(input)) {
        json_array_append_new(messages, json_pack("{s:s,s:s}", "role", "user", "content", ""));
        return STATUS_OK;
    }
    if (json_is_string(input)) return json_turn_add(messages, "user", input, NULL, "input");
    if (!json_is_array(input) || !json_array_size(input))
        return json_refuse_type("input", "a string or a list of items");
    json_array_foreach(input, i, item) TRY(item_add(messages, item, i, system_turns));
    return STATUS_OK;
}
