// SPDX-License-Identifier: Apache-2.0
// See tool_grammar.h. A call is a JSON object that matches one of the tools, between the markers of calls in the
// model's form.
#include "lib/text/tool_grammar.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "lib/text/schema_blanks.h"
#include "lib/text/schema_close.h"
#include "lib/text/schema_parts.h"

static enum status ref_move(json_t *schema, const char *place)
{
    const char *ref = json_string_value(json_object_get(schema, "$ref"));
    if (!ref) return STATUS_OK;
    if (ref[0] != '#' || (ref[1] && ref[1] != '/'))
        return status_fail(STATUS_UNSUPPORTED,
                           "tools: $ref '%.64s' of a function's schema: only # and #/... are supported", ref);
    char *moved = mem_format("%s%s", place, ref + 1);
    json_object_set_new(schema, "$ref", json_string(moved));
    free(moved);
    return STATUS_OK;
}

// Rewrites the references of a schema that moves from the root of its document to `place`.
static enum status refs_move(void *place, json_t *schema)
{
    TRY(schema_parts_visit(schema, refs_move, place));
    if (json_object_get(schema, "$id") || json_object_get(schema, "$dynamicRef") ||
        json_object_get(schema, "$recursiveRef"))
        return status_fail(STATUS_UNSUPPORTED,
                           "tools: $id, $dynamicRef and $recursiveRef of a function's schema are not "
                           "supported: leave them out");
    return ref_move(schema, place);
}

// Adds a call: {"name": NAME, MEMBER: arguments}. The schema of the arguments becomes a definition of the root, so that
// its references to itself stay within it. If calls are not required, the arguments are any object.
static enum status add_call(const struct tool_choice *choice, const json_t *function, const char *member, json_t *root,
                            json_t *calls)
{
    json_t *given = json_object_get(function, "parameters"), *all = json_object_get(root, "$defs");
    json_t *parameters =
        json_is_object(given) && !choice->format ? json_deep_copy(given) : json_pack("{s:s}", "type", "object");
    char place[32];
    snprintf(place, sizeof place, "#/$defs/%zu", json_object_size(all));
    if (choice->close || json_is_true(json_object_get(function, "strict"))) schema_close(parameters);
    json_object_del(parameters, "$id"); // $id names the document
    json_object_set_new(all, place + strlen("#/$defs/"), parameters);
    json_t *name = json_pack("{s:O}", "const", json_object_get(function, "name"));
    json_array_append_new(calls, json_pack("{s:s, s:{s:o, s:{s:s}}, s:[s,s], s:b}", "type", "object", "properties",
                                           "name", name, member, "$ref", place, "required", "name", member,
                                           "additionalProperties", 0));
    return refs_move(place, parameters);
}

static enum status add_calls(const struct tool_choice *choice, const char *member, json_t *root, json_t *calls)
{
    size_t i;
    json_t *tool;
    json_array_foreach((json_t *)choice->tools, i, tool)
    {
        const json_t *function = json_object_get(tool, "function");
        const char *name = json_string_value(json_object_get(function, "name"));
        if (!choice->name || strcmp(name, choice->name) == 0) TRY(add_call(choice, function, member, root, calls));
    }
    if (json_array_size(calls)) return STATUS_OK;
    return status_fail(STATUS_INVALID, "tool_choice: no tool has the name '%.64s'", choice->name ? choice->name : "");
}

// Adds the schema of an answer without calls. llguidance cannot handle two JSON grammars that begin alike, so in this
// form of calls one schema describes both.
static enum status add_format(const char *format, json_t *root, json_t *calls)
{
    char place[] = "#/$defs/format";
    json_t *schema = json_loads(format, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
    json_object_del(schema, "$id");
    json_object_del(schema, "x-guidance");
    json_object_set_new(json_object_get(root, "$defs"), "format", schema);
    json_array_append_new(calls, json_pack("{s:s}", "$ref", place));
    return refs_move(place, schema);
}

static enum status schema_create(const struct tool_choice *choice, enum output_calls form, json_t **root_p)
{
    const char *member = form == OUTPUT_CALLS_LLAMA3 ? "parameters" : "arguments";
    json_t *root = json_pack("{s:{}}", "$defs");
    json_t *calls = json_array();
    enum status status = add_calls(choice, member, root, calls);
    if (status == STATUS_OK && form == OUTPUT_CALLS_LLAMA3 && choice->format)
        status = add_format(choice->format, root, calls);
    if (form == OUTPUT_CALLS_MISTRAL) {
        json_object_set_new(root, "type", json_string("array"));
        json_object_set_new(root, "items", json_pack("{s:o}", "anyOf", calls));
        json_object_set_new(root, "minItems", json_integer(1));
        if (choice->single) json_object_set_new(root, "maxItems", json_integer(1));
    } else {
        json_object_set_new(root, "anyOf", calls);
    }
    json_object_set_new(root, "x-guidance", json_pack("{s:s}", "whitespace_pattern", "[ ]"));
    if (status == STATUS_OK) {
        *root_p = root;
    } else {
        json_decref(root);
    }
    return status;
}

// Returns the rules of the calls. The rule `calls` is an answer that consists of calls.
static char *lark_calls(enum output_calls form, int32_t marker, bool single, const char *schema)
{
    switch (form) {
    case OUTPUT_CALLS_HERMES:
        return mem_format("calls: call%s\ncall: \"<tool_call>\\n\" body \"\\n</tool_call>\"\nbody: %%json %s\n",
                          single ? "" : " (\"\\n\" call)*", schema);
    case OUTPUT_CALLS_LLAMA3: return mem_format("calls: body\nbody: %%json %s\n", schema);
    default:
        if (marker < 0) return mem_format("calls: \"[TOOL_CALLS]\" body\nbody: %%json %s\n", schema);
        return mem_format("calls: <[%d]> body\nbody: %%json %s\n", (int)marker, schema);
    }
}

static char *lark_create(enum output_calls form, int32_t marker, const struct tool_choice *choice, const char *schema)
{
    char *calls = lark_calls(form, marker, choice->single, schema);
    char *format = choice->format && form != OUTPUT_CALLS_LLAMA3 ? schema_bound_blanks(choice->format) : NULL;
    char *lark = format ? mem_format("start: calls | text\ntext: %%json %s\n%s", format, calls)
                        : mem_format("start: calls\n%s", calls);
    free(format);
    free(calls);
    return lark;
}

enum status tool_grammar_create(enum output_calls form, int32_t marker, const struct tool_choice *choice,
                                struct grammar_spec *spec_p)
{
    if (form == OUTPUT_CALLS_NONE)
        return status_fail(STATUS_UNSUPPORTED, "tool_choice: the form of the model's tool calls is not known");
    json_t *schema;
    TRY(schema_create(choice, form, &schema));
    char *text = json_dumps(schema, JSON_COMPACT);
    *spec_p = grammar_spec_of(GRAMMAR_LARK, lark_create(form, marker, choice, text));
    free(text);
    json_decref(schema);
    return STATUS_OK;
}
