// SPDX-License-Identifier: Apache-2.0
#include "lib/text/schema_parts.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"

static bool is_one_of(const char *name, const char *const *names)
{
    while (*names && strcmp(name, *names) != 0)
        names++;
    return *names != NULL;
}

static enum status value_visit(json_t *value, schema_visit_fn *visit, void *arg)
{
    return json_is_object(value) ? visit(arg, value) : STATUS_OK;
}

// Visits the schemas in a member of a schema: one schema, a list of schemas, or with `named` an object of schemas.
static enum status member_visit(json_t *member, bool named, schema_visit_fn *visit, void *arg)
{
    const char *name;
    json_t *item;
    size_t i;
    if (!named) TRY(value_visit(member, visit, arg));
    if (named) {
        json_object_foreach(member, name, item) TRY(value_visit(item, visit, arg));
    }
    json_array_foreach(member, i, item) TRY(value_visit(item, visit, arg));
    return STATUS_OK;
}

enum status schema_parts_visit(json_t *schema, schema_visit_fn *visit, void *arg)
{
    static const char *const literals[] = {"const", "enum", "default", "examples", NULL};
    static const char *const named[] = {"properties",  "patternProperties", "$defs",
                                        "definitions", "dependentSchemas",  NULL};
    const char *name;
    json_t *member;
    json_object_foreach(schema, name, member) if (!is_one_of(name, literals))
        TRY(member_visit(member, is_one_of(name, named), visit, arg));
    return STATUS_OK;
}

// --- references

// Finds the member of the step [n] of a JSON pointer (RFC 6901).
static json_t *pointer_step(const json_t *value, const char *step, size_t n)
{
    char *name = mem_alloc(n + 1), *end = name;
    for (size_t i = 0; i < n; i++) {
        bool escaped = step[i] == '~' && i + 1 < n && (step[i + 1] == '0' || step[i + 1] == '1');
        *end++ = !escaped ? step[i] : step[i + 1] == '0' ? '~' : '/';
        i += escaped;
    }
    *end = 0;
    json_t *member =
        json_is_array(value) ? json_array_get(value, strtoul(name, NULL, 10)) : json_object_get(value, name);
    free(name);
    return member;
}

json_t *schema_ref_find(json_t *root, const char *ref)
{
    if (!ref || *ref++ != '#') return NULL;
    json_t *found = root;
    while (*ref == '/' && found) {
        size_t n = strcspn(++ref, "/");
        found = pointer_step(found, ref, n);
        ref += n;
    }
    return *ref ? NULL : found;
}
