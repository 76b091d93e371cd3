// SPDX-License-Identifier: Apache-2.0
#include "lib/text/schema_parts.h"

#include <stdbool.h>
#include <string.h>

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
