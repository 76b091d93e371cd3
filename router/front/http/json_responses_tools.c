// SPDX-License-Identifier: Apache-2.0
#include "router/front/http/json_responses_tools.h"

#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "lib/text/generation_json.h"
#include "router/front/http/json_translate.h"

enum { TYPE_BYTES_MAX = 64, LEFT_OUT_MAX = 16 };

void responses_tools_fini(struct responses_tools *tools)
{
    json_decref(tools->renamed);
    json_decref(tools->offered);
    json_decref(tools->left_out);
    *tools = (struct responses_tools){0};
}

char *responses_offered_name(const char *space, const char *name)
{
    size_t n = space ? strlen(space) : 0;
    const char *separator = n >= 2 && strcmp(space + n - 2, "__") == 0 ? "" : "__";
    return space ? mem_format("%s%s%s", space, separator, name) : mem_string(name);
}

json_t *responses_custom_arguments(const json_t *input)
{
    json_t *object = json_pack("{s:O}", "input", input);
    char *text = json_dumps(object, JSON_COMPACT);
    json_t *arguments = json_string(text);
    free(text);
    json_decref(object);
    return arguments;
}

// --- the list of tools

// A tool being read, and the lists that it is added to.
struct reading {
    struct responses_tools *tools;
    json_t *functions;
    json_t *names;     // {OFFERED_NAME: true if the tool is renamed}
    const char *space; // name of the namespace that contains the tool; NULL: none
};

static bool is_renamed(const struct reading *r, bool custom)
{
    return custom || r->space;
}

static void name_note(struct reading *r, const char *name, const char *offered, bool custom)
{
    struct responses_tools *tools = r->tools;
    json_object_set_new(r->names, offered, json_boolean(is_renamed(r, custom)));
    if (!r->space || !json_object_get(tools->offered, name))
        json_object_set_new(tools->offered, name, json_string(offered));
    if (r->space) { // openai-agents joins both names by a dot
        char *joined = mem_format("%s.%s", r->space, name);
        json_object_set_new(tools->offered, joined, json_string(offered));
        free(joined);
    }
    if (!is_renamed(r, custom)) return;
    if (!tools->renamed) tools->renamed = json_object();
    json_object_set_new(tools->renamed, offered,
                        json_pack("{s:s,s:b,s:s*}", "name", name, "custom", custom, "namespace", r->space));
}

// Adds the function under the name that the model sees.
static enum status function_add(struct reading *r, const char *where, const char *name, bool custom, json_t *function)
{
    char *offered = responses_offered_name(r->space, name);
    const bool valid = json_tool_name_valid(offered), renamed = is_renamed(r, custom);
    const json_t *same = json_object_get(r->names, offered);
    json_object_set_new(function, "name", json_string(offered));
    json_array_append_new(r->functions, json_pack("{s:s,s:o}", "type", "function", "function", function));
    enum status status = STATUS_OK;
    if (!valid)
        status = status_fail(STATUS_INVALID, "%s.name: must be 1 to %d letters, digits, '_' and '-'%s", where,
                             TOOL_NAME_BYTES_MAX, r->space ? ", with the namespace's name before it" : "");
    // Calls of two tools with one name could not be told apart.
    else if (same && (renamed || json_is_true(same)))
        status = status_fail(STATUS_INVALID, "%s.name: another tool has the name %s too", where, offered);
    if (status == STATUS_OK) name_note(r, name, offered, custom);
    free(offered);
    return status;
}

// Returns what the model is told about the argument of a custom tool. The format is not enforced.
static char *input_description(const json_t *format)
{
    const char *syntax = json_string_member(format, "syntax"), *definition = json_string_member(format, "definition");
    if (!syntax || !definition) return mem_string("The input of the tool, free text.");
    return mem_format("The input of the tool, a text that matches this grammar (%s):\n%s", syntax, definition);
}

static json_t *custom_function(const json_t *tool)
{
    char *about = input_description(json_object_get(tool, "format"));
    json_t *parameters = json_pack("{s:s,s:{s:{s:s,s:s}},s:[s],s:b}", "type", "object", "properties", "input", "type",
                                   "string", "description", about, "required", "input", "additionalProperties", 0);
    free(about);
    return json_pack("{s:s,s:s*,s:o}", "name", "", "description", json_string_member(tool, "description"), "parameters",
                     parameters);
}

// Reads a function or a custom tool.
static enum status named_add(struct reading *r, const json_t *tool, const char *type, const char *where)
{
    static const char *const type_member[] = {"type", NULL};
    const char *name = json_string_member(tool, "name");
    const bool custom = strcmp(type, "custom") == 0;
    if (!name) return status_fail(STATUS_INVALID, "%s.name: must be a string", where);
    return function_add(r, where, name, custom, custom ? custom_function(tool) : json_copy_without(tool, type_member));
}

static bool is_named(const char *type)
{
    return strcmp(type, "function") == 0 || strcmp(type, "custom") == 0;
}

static enum status namespace_add(struct reading *r, const json_t *space, const char *where)
{
    const json_t *inner = json_object_get(space, "tools");
    size_t i;
    json_t *tool;
    r->space = json_string_member(space, "name");
    if (!json_tool_name_valid(r->space))
        return status_fail(STATUS_INVALID, "%s.name: must be 1 to %d letters, digits, '_' and '-'", where,
                           TOOL_NAME_BYTES_MAX);
    if (!json_array_size(inner)) return status_fail(STATUS_INVALID, "%s.tools: must be a list of tools", where);
    json_array_foreach(inner, i, tool)
    {
        const char *type = json_string_member(tool, "type");
        char place[96];
        snprintf(place, sizeof place, "%s.tools[%zu]", where, i);
        if (!type || !is_named(type))
            return status_fail(STATUS_INVALID, "%s.type: must be function or custom in a namespace", place);
        TRY(named_add(r, tool, type, place));
    }
    r->space = NULL;
    return STATUS_OK;
}

static bool is_type_name(const char *type)
{
    size_t n = strlen(type);
    return n && n <= TYPE_BYTES_MAX &&
           n == strspn(type, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-");
}

// Notes a tool that this server does not have. A response header lists the types.
static enum status tool_leave_out(struct responses_tools *tools, const char *type, const char *where)
{
    size_t i;
    json_t *other;
    if (!is_type_name(type))
        return status_fail(STATUS_INVALID, "%s.type: must be function, custom or namespace", where);
    if (!tools->left_out) tools->left_out = json_array();
    json_array_foreach(tools->left_out, i, other)
    {
        if (strcmp(json_string_value(other), type) == 0) return STATUS_OK;
    }
    if (json_array_size(tools->left_out) < LEFT_OUT_MAX) json_array_append_new(tools->left_out, json_string(type));
    return STATUS_OK;
}

static enum status tool_add(struct reading *r, const json_t *tool, size_t index)
{
    const char *type = json_string_member(tool, "type");
    char where[32];
    snprintf(where, sizeof where, "tools[%zu]", index);
    if (!type) return status_fail(STATUS_INVALID, "%s: must be an object with a type", where);
    if (is_named(type)) return named_add(r, tool, type, where);
    return strcmp(type, "namespace") == 0 ? namespace_add(r, tool, where) : tool_leave_out(r->tools, type, where);
}

static enum status tools_add(struct reading *r, const json_t *from)
{
    size_t i;
    json_t *tool;
    json_array_foreach(from, i, tool) TRY(tool_add(r, tool, i));
    if (json_array_size(r->functions) || !r->tools->left_out) return STATUS_OK;
    return status_fail(STATUS_UNSUPPORTED,
                       "tools: type %s is not supported, and there is no other tool: send tools of the types function, "
                       "custom or namespace",
                       json_string_value(json_array_get(r->tools->left_out, 0)));
}

enum status responses_tools_read(const json_t *from, struct responses_tools *tools, json_t **functions_p)
{
    struct reading reading = {.tools = tools, .functions = json_array(), .names = json_object()};
    tools->offered = json_object();
    enum status status = tools_add(&reading, from);
    json_decref(reading.names);
    if (status == STATUS_OK) {
        *functions_p = reading.functions;
    } else {
        json_decref(reading.functions);
    }
    return status;
}

// --- the choice

static enum status refuse_choice(void)
{
    return json_refuse_type("tool_choice", "none, auto, required, a function or custom tool with its name, or "
                                           "allowed_tools with mode (auto or required) and tools");
}

// Returns a choice of one function, or NULL if there is no name. A client may leave out the namespace of a tool.
static json_t *named_choice(const json_t *choice, const struct responses_tools *tools)
{
    const char *name = json_string_member(choice, "name"), *space = json_string_member(choice, "namespace");
    if (!name) return NULL;
    const char *known = space ? NULL : json_string_member(tools->offered, name);
    char *offered = known ? mem_string(known) : responses_offered_name(space, name);
    json_t *result = json_pack("{s:s,s:{s:s}}", "type", "function", "function", "name", offered);
    free(offered);
    return result;
}

// Adds the allowed tools that were not left out.
static enum status allowed_add(json_t *list, const json_t *allowed, const struct responses_tools *tools)
{
    size_t i;
    json_t *tool;
    json_array_foreach(allowed, i, tool)
    {
        const char *type = json_string_member(tool, "type");
        if (!type) return refuse_choice();
        if (!is_named(type)) continue;
        json_t *named = named_choice(tool, tools);
        if (!named) return refuse_choice();
        json_array_append_new(list, named);
    }
    if (json_array_size(list) || !json_array_size(allowed)) return STATUS_OK;
    return status_fail(STATUS_UNSUPPORTED, "tool_choice: none of the allowed tools is supported: allow a function or "
                                           "a custom tool");
}

enum status responses_tool_choice_read(const json_t *choice, const struct responses_tools *tools, json_t **choice_p)
{
    const char *type = json_string_member(choice, "type");
    if (json_is_string(choice)) {
        *choice_p = json_incref((json_t *)choice);
        return STATUS_OK;
    }
    if (type && strcmp(type, "allowed_tools") == 0) {
        json_t *list = json_array();
        enum status status = allowed_add(list, json_object_get(choice, "tools"), tools);
        if (status == STATUS_OK)
            *choice_p = json_pack("{s:s,s:{s:O*,s:O}}", "type", type, "allowed_tools", "mode",
                                  json_object_get(choice, "mode"), "tools", list);
        json_decref(list);
        return status;
    }
    *choice_p = type && is_named(type) ? named_choice(choice, tools) : NULL;
    return *choice_p ? STATUS_OK : refuse_choice();
}
