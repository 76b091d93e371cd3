// SPDX-License-Identifier: Apache-2.0
#include <stdlib.h>
#include <string.h>

#include "router/front/http/json_responses.h"
#include "router/front/http/json_writer.h"

// Adds ,"NAME":VALUE. VALUE is `otherwise` if the value is NULL or null.
static void value_add(struct bytes *out, const char *name, const json_t *value, const char *otherwise)
{
    char *text = value && !json_is_null(value) ? json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY) : NULL;
    JSON_ADD(out, ",\"");
    json_add(out, name);
    JSON_ADD(out, "\":");
    json_add(out, text ? text : otherwise);
    free(text);
}

static void member_add(struct bytes *out, const json_t *body, const char *name, const char *otherwise)
{
    value_add(out, name, json_object_get(body, name), otherwise);
}

static const char *type_of(const json_t *object)
{
    const char *type = json_string_value(json_object_get(object, "type"));
    return type ? type : "";
}

static void default_set(json_t *object, const char *name, json_t *value)
{
    const json_t *given = json_object_get(object, name);
    if (given && !json_is_null(given))
        json_decref(value);
    else
        json_object_set_new(object, name, value);
}

// The API's schema requires members of a function that a client may leave out.
static json_t *tool_echo(const json_t *tool)
{
    json_t *copy = json_copy((json_t *)tool);
    if (strcmp(type_of(tool), "function") != 0) return copy;
    default_set(copy, "strict", json_null());
    default_set(copy, "parameters", json_null());
    return copy;
}

// Repeats the tools that were not left out.
static void tools_add(struct bytes *out, const json_t *tools)
{
    static const char *const offered[] = {"function", "custom", "namespace"};
    json_t *list = json_array(), *tool;
    size_t i;
    json_array_foreach(tools, i, tool)
    {
        for (size_t t = 0; t < sizeof offered / sizeof *offered; t++)
            if (strcmp(type_of(tool), offered[t]) == 0) json_array_append_new(list, tool_echo(tool));
    }
    value_add(out, "tools", list, "[]");
    json_decref(list);
}

static void text_add(struct bytes *out, const json_t *text)
{
    json_t *copy = json_is_object(text) ? json_copy((json_t *)text) : json_object();
    default_set(copy, "format", json_pack("{s:s}", "type", "text"));
    default_set(copy, "verbosity", json_string("medium"));
    value_add(out, "text", copy, "{}");
    json_decref(copy);
}

// An answer has no summary of its reasoning.
static void reasoning_add(struct bytes *out, const json_t *reasoning)
{
    json_t *effort = json_object_get(reasoning, "effort");
    json_t *used = json_pack("{s:O?,s:n}", "effort", effort, "summary");
    value_add(out, "reasoning", used, "null");
    json_decref(used);
}

static void instructions_add(struct bytes *out, const json_t *body)
{
    const json_t *text = json_object_get(body, "instructions");
    const bool repeated = json_dumpb(text, NULL, 0, JSON_ENCODE_ANY) <= RESPONSES_REPEATED_JSON_MAX;
    value_add(out, "instructions", repeated ? text : NULL, "null");
}

char *responses_echo(const json_t *body)
{
    struct bytes out = {0};
    instructions_add(&out, body);
    member_add(&out, body, "max_output_tokens", "null");
    member_add(&out, body, "max_tool_calls", "null");
    member_add(&out, body, "metadata", "{}");
    member_add(&out, body, "parallel_tool_calls", "true");
    member_add(&out, body, "temperature", "1.0");
    member_add(&out, body, "top_p", "1.0");
    member_add(&out, body, "presence_penalty", "0.0");
    member_add(&out, body, "frequency_penalty", "0.0");
    member_add(&out, body, "top_logprobs", "0");
    tools_add(&out, json_object_get(body, "tools"));
    member_add(&out, body, "tool_choice", "\"auto\"");
    text_add(&out, json_object_get(body, "text"));
    reasoning_add(&out, json_object_get(body, "reasoning"));
    member_add(&out, body, "user", "\"\""); // the API's schema does not allow null here
    member_add(&out, body, "safety_identifier", "null");
    member_add(&out, body, "prompt_cache_key", "null");
    bytes_add(&out, "", 1);
    return out.data;
}
