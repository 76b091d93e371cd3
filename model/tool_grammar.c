// SPDX-License-Identifier: Apache-2.0
// A call is a JSON object that matches one of the tools, between the text that marks calls in the model's form.
#include "model/tool_grammar.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

// Definitions that a tool's schema refers to ("#/$defs/NAME") move to the root of the grammar's schema.
static enum status hoist(json_t *parameters, const char *group, json_t *root)
{
    json_t *own = json_object_get(parameters, group), *all = json_object_get(root, group), *schema;
    const char *name;
    if (!json_is_object(own)) return STATUS_OK;
    if (!all) json_object_set_new(root, group, all = json_object());
    json_object_foreach(own, name, schema)
    {
        const json_t *other = json_object_get(all, name);
        if (other && !json_equal(other, schema))
            return status_fail(STATUS_UNSUPPORTED, "tools: two functions define '%.64s' differently in %s", name,
                               group);
        json_object_set(all, name, schema);
    }
    json_object_del(parameters, group);
    return STATUS_OK;
}

// {"name": NAME, MEMBER: arguments}
static enum status add_call(const json_t *function, const char *member, json_t *root, json_t *calls)
{
    json_t *given = json_object_get(function, "parameters");
    json_t *parameters = json_is_object(given) ? json_deep_copy(given) : json_pack("{s:s}", "type", "object");
    enum status status = hoist(parameters, "$defs", root);
    if (status == STATUS_OK) status = hoist(parameters, "definitions", root);
    json_t *name = json_pack("{s:O}", "const", json_object_get(function, "name"));
    json_array_append_new(calls,
                          json_pack("{s:s, s:{s:o, s:o}, s:[s,s], s:b}", "type", "object", "properties", "name", name,
                                    member, parameters, "required", "name", member, "additionalProperties", 0));
    return status;
}

static enum status add_calls(const struct tool_choice *choice, const char *member, json_t *root, json_t *calls)
{
    size_t i;
    json_t *tool;
    json_array_foreach((json_t *)choice->tools, i, tool)
    {
        const json_t *function = json_object_get(tool, "function");
        const char *name = json_string_value(json_object_get(function, "name"));
        if (!choice->name || strcmp(name, choice->name) == 0) TRY(add_call(function, member, root, calls));
    }
    if (json_array_size(calls)) return STATUS_OK;
    return status_fail(STATUS_INVALID, "tool_choice: no tool has the name '%.64s'", choice->name ? choice->name : "");
}

static enum status schema_create(const struct tool_choice *choice, const char *member, bool list, json_t **root_p)
{
    json_t *root = json_pack("{s:{s:s}}", "x-guidance", "whitespace_pattern", "[ ]"), *calls = json_array();
    enum status status = add_calls(choice, member, root, calls);
    if (list) {
        json_object_set_new(root, "type", json_string("array"));
        json_object_set_new(root, "items", json_pack("{s:o}", "anyOf", calls));
        json_object_set_new(root, "minItems", json_integer(1));
        if (choice->single) json_object_set_new(root, "maxItems", json_integer(1));
    } else {
        json_object_set_new(root, "anyOf", calls);
    }
    if (status == STATUS_OK) {
        *root_p = root;
    } else {
        json_decref(root);
    }
    return status;
}

static char *lark_create(enum output_calls form, int32_t marker, bool single, const char *schema)
{
    switch (form) {
    case OUTPUT_CALLS_HERMES:
        return mem_format("start: call%s\ncall: \"<tool_call>\\n\" body \"\\n</tool_call>\"\nbody: %%json %s\n",
                          single ? "" : " (\"\\n\" call)*", schema);
    case OUTPUT_CALLS_LLAMA3: return mem_format("start: body\nbody: %%json %s\n", schema);
    default:
        if (marker < 0) return mem_format("start: \"[TOOL_CALLS]\" body\nbody: %%json %s\n", schema);
        return mem_format("start: <[%d]> body\nbody: %%json %s\n", (int)marker, schema);
    }
}

enum status tool_grammar_create(enum output_calls form, int32_t marker, const struct tool_choice *choice,
                                struct grammar_spec *spec_p)
{
    if (form == OUTPUT_CALLS_NONE)
        return status_fail(STATUS_UNSUPPORTED, "tool_choice: the form of the model's tool calls is not known");
    json_t *schema;
    TRY(schema_create(choice, form == OUTPUT_CALLS_LLAMA3 ? "parameters" : "arguments", form == OUTPUT_CALLS_MISTRAL,
                      &schema));
    char *text = json_dumps(schema, JSON_COMPACT);
    *spec_p = (struct grammar_spec){GRAMMAR_LARK, lark_create(form, marker, choice->single, text)};
    free(text);
    json_decref(schema);
    return STATUS_OK;
}
