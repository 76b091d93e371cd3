// SPDX-License-Identifier: Apache-2.0
#include "router/front/http/http_tools.h"

#include <string.h>

#include "lib/text/generation_json.h"
#include "router/front/http/json_body.h"
#include "router/front/http/json_translate.h"

struct values {
    bool parallel_tool_calls;
    const json_t *tools, *tool_choice;
};

static const struct json_field fields[] = {
    {.name = "tools", .type = JSON_FIELD_LIST, .offset = offsetof(struct values, tools)},
    {.name = "tool_choice", .type = JSON_FIELD_ANY, .offset = offsetof(struct values, tool_choice)},
    {.name = "parallel_tool_calls", .type = JSON_FIELD_BOOL, .offset = offsetof(struct values, parallel_tool_calls)},
    {0},
};

static const char *function_name(const json_t *tool)
{
    return json_string_member(json_object_get(tool, "function"), "name");
}

static enum status tool_check(size_t i, const json_t *tool)
{
    const char *type = json_string_member(tool, "type");
    const json_t *parameters = json_object_get(json_object_get(tool, "function"), "parameters");
    if (!type || strcmp(type, "function") != 0)
        return status_fail(STATUS_INVALID, "tools[%zu].type: must be \"function\"", i);
    if (!json_tool_name_valid(function_name(tool)))
        return status_fail(STATUS_INVALID, "tools[%zu].function.name: must be 1 to %d letters, digits, '_' and '-'", i,
                           TOOL_NAME_BYTES_MAX);
    if (parameters && !json_is_null(parameters) && !json_is_object(parameters))
        return status_fail(STATUS_INVALID, "tools[%zu].function.parameters: must be an object, which is a JSON schema",
                           i);
    const json_t *strict = json_object_get(json_object_get(tool, "function"), "strict");
    if (strict && !json_is_null(strict) && !json_is_boolean(strict))
        return status_fail(STATUS_INVALID, "tools[%zu].function.strict: must be true or false", i);
    return STATUS_OK;
}

static enum status refuse_choice(void)
{
    return json_refuse_type("tool_choice", "none, auto, required, a function with its name, or allowed_tools with mode "
                                           "(auto or required) and tools");
}

static enum status read_word(const char *word, struct http_input *in)
{
    in->required_call = strcmp(word, "required") == 0;
    if (strcmp(word, "none") == 0) in->tools = NULL; // the prompt does not contain the tools
    bool known = in->required_call || strcmp(word, "auto") == 0 || strcmp(word, "none") == 0;
    return known ? STATUS_OK : refuse_choice();
}

// Adds the names of the allowed tools to the object `names`.
static enum status names_add(json_t *names, const json_t *allowed)
{
    size_t i;
    json_t *tool;
    json_array_foreach(allowed, i, tool)
    {
        if (!function_name(tool))
            return status_fail(STATUS_INVALID, "tool_choice: allowed tool %zu must be a function with its name", i);
        json_object_set_new(names, function_name(tool), json_true());
    }
    return STATUS_OK;
}

// Sets in->allowed_tools to the tools that `names` has. Removes their names, so that names without a tool remain.
static enum status tools_limit(struct http_input *in, json_t *names)
{
    size_t i;
    json_t *tool;
    in->allowed_tools = json_array();
    json_array_foreach(in->tools, i, tool)
    {
        if (json_object_del(names, function_name(tool)) == 0) json_array_append(in->allowed_tools, tool);
    }
    const char *left = json_object_iter_key(json_object_iter(names));
    if (left) return status_fail(STATUS_INVALID, "tool_choice: no tool has the name '%.64s'", left);
    in->tools = in->allowed_tools;
    return STATUS_OK;
}

// Reads {"mode", "tools"}: limits the tools to the listed tools.
static enum status read_allowed(const json_t *choice, struct http_input *in)
{
    const json_t *allowed = json_object_get(choice, "tools");
    const char *mode = json_string_member(choice, "mode");
    bool required = mode && strcmp(mode, "required") == 0;
    if (!json_array_size(allowed) || !mode || (!required && strcmp(mode, "auto") != 0)) return refuse_choice();
    json_t *names = json_object();
    enum status status = names_add(names, allowed);
    if (status == STATUS_OK) status = tools_limit(in, names);
    json_decref(names);
    in->required_call = required;
    return status;
}

static enum status read_choice(const json_t *choice, struct http_input *in)
{
    const char *type = json_string_member(choice, "type");
    if (json_is_string(choice)) return read_word(json_string_value(choice), in);
    if (type && strcmp(type, "allowed_tools") == 0) return read_allowed(json_object_get(choice, "allowed_tools"), in);
    in->required_tool = function_name(choice);
    in->required_call = true;
    return in->required_tool ? STATUS_OK : refuse_choice();
}

bool http_tools_knows(const char *name)
{
    return json_tables_name(fields, NULL, name);
}

enum status http_tools_read(const json_t *body, struct http_input *in)
{
    struct values v = {.parallel_tool_calls = true};
    TRY(json_fields_read(body, fields, &v));
    size_t n = json_array_size(v.tools);
    for (size_t i = 0; i < n; i++)
        TRY(tool_check(i, json_array_get(v.tools, i)));
    in->tools = n ? v.tools : NULL;
    in->single_call = !v.parallel_tool_calls;
    in->sections = true;
    if (v.tool_choice) TRY(read_choice(v.tool_choice, in));
    return in->required_call && !in->tools ? status_fail(STATUS_INVALID, "tool_choice: there are no tools") : STATUS_OK;
}
