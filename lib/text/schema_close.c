// SPDX-License-Identifier: Apache-2.0
// Two steps. The first opens the schemas that are combined with others, by "additionalProperties": true, which changes
// nothing. The second closes the schemas that then have no such member.
#include "lib/text/schema_close.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "lib/text/schema_parts.h"

static const char closed_member[] = "additionalProperties";

// --- one schema

static bool is_type(const json_t *schema, const char *name)
{
    const json_t *type = json_object_get(schema, "type"), *one;
    size_t i;
    if (json_is_string(type)) return strcmp(json_string_value(type), name) == 0;
    json_array_foreach(type, i, one) if (json_is_string(one) && strcmp(json_string_value(one), name) == 0) return true;
    return false;
}

static bool names_own_members(const json_t *schema)
{
    return json_object_get(schema, "properties") || json_object_get(schema, "patternProperties") ||
           json_object_get(schema, closed_member);
}

// Returns true if the schema, which is combined with another, may name members.
static bool may_name_members(const json_t *schema)
{
    return names_own_members(schema) || is_type(schema, "object") || json_object_get(schema, "$ref") ||
           json_object_get(schema, "allOf") || json_object_get(schema, "anyOf") || json_object_get(schema, "oneOf");
}

static size_t count_naming(const json_t *list)
{
    size_t i, n = 0;
    const json_t *part;
    json_array_foreach(list, i, part) n += may_name_members(part);
    return n;
}

// Returns how many other schemas that may name members apply to the same object.
static size_t count_combined(const json_t *schema)
{
    return count_naming(json_object_get(schema, "allOf")) + (count_naming(json_object_get(schema, "anyOf")) > 0) +
           (count_naming(json_object_get(schema, "oneOf")) > 0) + (json_object_get(schema, "$ref") != NULL);
}

// Returns true if the schema describes objects, does not say whether they are closed, and stands alone.
static bool is_closable(const json_t *schema)
{
    return (is_type(schema, "object") || names_own_members(schema)) && !json_object_get(schema, closed_member) &&
           count_combined(schema) == 0;
}

// --- opening

struct opening {
    json_t *root;
    json_t *seen;     // an object with a member for each schema that was added to `waiting`
    json_t **waiting; // [n] borrowed; schemas that are combined with others
    size_t n, room;
};

static void opening_add(struct opening *o, json_t *schema)
{
    char key[32];
    snprintf(key, sizeof key, "%p", (void *)schema);
    if (!json_is_object(schema) || json_object_get(o->seen, key)) return;
    json_object_set_new(o->seen, key, json_true());
    if (o->n == o->room) o->waiting = mem_resize(o->waiting, o->room = 2 * o->room + 16, sizeof *o->waiting);
    o->waiting[o->n++] = schema;
}

// Adds the schemas that apply to the same object as `schema`.
static void opening_add_parts(struct opening *o, const json_t *schema)
{
    static const char *const lists[] = {"allOf", "anyOf", "oneOf"};
    for (size_t l = 0; l < sizeof lists / sizeof *lists; l++) {
        size_t i;
        json_t *part;
        json_array_foreach(json_object_get(schema, lists[l]), i, part) opening_add(o, part);
    }
    opening_add(o, schema_ref_find(o->root, json_string_value(json_object_get(schema, "$ref"))));
}

static enum status combined_add(void *arg, json_t *schema)
{
    struct opening *o = arg;
    if (count_combined(schema) + names_own_members(schema) > 1) opening_add_parts(o, schema);
    return schema_parts_visit(schema, combined_add, o);
}

static void combined_open(json_t *root)
{
    struct opening o = {.root = root, .seen = json_object()};
    (void)!combined_add(&o, root);
    while (o.n) {
        json_t *schema = o.waiting[--o.n];
        if (is_closable(schema)) json_object_set_new(schema, closed_member, json_true());
        opening_add_parts(&o, schema);
    }
    free(o.waiting);
    json_decref(o.seen);
}

// --- closing

static enum status objects_close(void *arg, json_t *schema)
{
    if (is_closable(schema)) json_object_set_new(schema, closed_member, json_false());
    return schema_parts_visit(schema, objects_close, arg);
}

void schema_close(json_t *schema)
{
    if (!json_is_object(schema)) return;
    combined_open(schema);
    (void)!objects_close(NULL, schema);
}

enum status schema_text_close(char **text)
{
    json_error_t error;
    json_t *schema = json_loads(*text, JSON_DECODE_ANY | JSON_ALLOW_NUL, &error);
    if (!schema && json_error_code(&error) == json_error_numeric_overflow)
        return status_fail(STATUS_INVALID, "the JSON schema cannot be closed: %s", error.text);
    if (!schema) return STATUS_OK;
    schema_close(schema);
    free(*text);
    *text = json_dumps(schema, JSON_COMPACT | JSON_ENCODE_ANY);
    json_decref(schema);
    return STATUS_OK;
}
