// SPDX-License-Identifier: Apache-2.0
// Each schema is a part. A part ends if a finite value may match it. Parts that need no other part end, then the parts
// that need only these, and so on. The other parts never end.
#include "lib/text/schema_ends.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "lib/text/schema_parts.h"

struct part {
    json_t *schema; // NULL: a choice between the parts that it needs
    int needed;     // number of needed parts that still have to end
    int users;      // index of the first use of the part; -1: none
};

// A part that another part needs.
struct use {
    int user, next; // index of the part, and of the next use of the same needed part or -1
};

struct graph {
    json_t *root;
    json_t *indices; // index of the part of each schema, by the schema's address
    struct part *parts;
    struct use *uses;
    size_t n_parts, parts_room, n_uses, uses_room;
};

static int part_add(struct graph *g, json_t *schema)
{
    if (g->n_parts == g->parts_room)
        g->parts = mem_resize(g->parts, g->parts_room = 2 * g->parts_room + 16, sizeof *g->parts);
    g->parts[g->n_parts] = (struct part){.schema = schema, .users = -1};
    return (int)g->n_parts++;
}

static int part_of(struct graph *g, json_t *schema)
{
    char key[32];
    snprintf(key, sizeof key, "%p", (void *)schema);
    const json_t *known = json_object_get(g->indices, key);
    if (known) return (int)json_integer_value(known);
    int part = part_add(g, schema);
    json_object_set_new(g->indices, key, json_integer(part));
    return part;
}

static void use_add(struct graph *g, int user, int part)
{
    if (g->n_uses == g->uses_room) g->uses = mem_resize(g->uses, g->uses_room = 2 * g->uses_room + 16, sizeof *g->uses);
    g->uses[g->n_uses] = (struct use){user, g->parts[part].users};
    g->parts[part].users = (int)g->n_uses++;
}

// Makes `user` need the schema. Other values than objects, such as true, end.
static void need(struct graph *g, int user, json_t *schema)
{
    if (!json_is_object(schema)) return;
    use_add(g, user, part_of(g, schema));
    g->parts[user].needed++;
}

static void need_each(struct graph *g, int user, json_t *schemas, size_t n)
{
    for (size_t i = 0; i < n && i < json_array_size(schemas); i++)
        need(g, user, json_array_get(schemas, i));
}

// Makes `user` need one of the parts that are then added to the choice by option_add().
static int choice_add(struct graph *g, int user)
{
    int choice = part_add(g, NULL);
    use_add(g, user, choice);
    g->parts[user].needed++;
    g->parts[choice].needed = 1;
    return choice;
}

static void option_add(struct graph *g, int choice, json_t *schema)
{
    if (json_is_object(schema))
        use_add(g, choice, part_of(g, schema));
    else
        g->parts[choice].needed = 0;
}

static void options_add(struct graph *g, int user, json_t *schemas)
{
    size_t i;
    json_t *schema;
    if (!json_array_size(schemas)) return;
    int choice = choice_add(g, user);
    json_array_foreach(schemas, i, schema) option_add(g, choice, schema);
}

// --- objects and arrays

static bool is_only(const json_t *schema, const char *type)
{
    const json_t *types = json_object_get(schema, "type");
    if (json_array_size(types) == 1) types = json_array_get(types, 0);
    return json_is_string(types) && strcmp(json_string_value(types), type) == 0;
}

// An object needs its required members. With a minimum of members, it needs one that may be there.
static void object_needs(struct graph *g, int user, json_t *schema)
{
    json_t *properties = json_object_get(schema, "properties"),
           *patterns = json_object_get(schema, "patternProperties");
    json_t *additional = json_object_get(schema, "additionalProperties"), *value;
    const char *name;
    size_t i;
    json_array_foreach(json_object_get(schema, "required"), i, value)
    {
        json_t *own = json_is_string(value) ? json_object_get(properties, json_string_value(value)) : NULL;
        need(g, user, own || patterns ? own : additional);
    }
    if (json_number_value(json_object_get(schema, "minProperties")) < 1) return;
    int choice = choice_add(g, user);
    json_object_foreach(properties, name, value) option_add(g, choice, value);
    json_object_foreach(patterns, name, value) option_add(g, choice, value);
    option_add(g, choice, additional);
}

static void array_needs(struct graph *g, int user, json_t *schema)
{
    double least = json_number_value(json_object_get(schema, "minItems"));
    json_t *items = json_object_get(schema, "items"), *first = json_object_get(schema, "prefixItems");
    if (json_is_array(items)) { // as in draft 7
        first = items;
        items = json_object_get(schema, "additionalItems");
    }
    size_t n = json_array_size(first);
    need_each(g, user, first, least < (double)n ? (size_t)(least > 0 ? least : 0) : n);
    if (least > (double)n) need(g, user, items);
}

// --- all parts

static enum status part_visit(void *arg, json_t *schema)
{
    part_of(arg, schema);
    return STATUS_OK;
}

// Adds what the part needs, and the schemas inside it as parts.
static void part_connect(struct graph *g, int part)
{
    json_t *schema = g->parts[part].schema, *all = json_object_get(schema, "allOf");
    if (!schema) return;
    need(g, part, schema_ref_find(g->root, json_string_value(json_object_get(schema, "$ref"))));
    need_each(g, part, all, json_array_size(all));
    options_add(g, part, json_object_get(schema, "anyOf"));
    options_add(g, part, json_object_get(schema, "oneOf"));
    if (is_only(schema, "object")) object_needs(g, part, schema);
    if (is_only(schema, "array")) array_needs(g, part, schema);
    (void)!schema_parts_visit(schema, part_visit, g);
}

// Sets `needed` to 0 for all parts that end.
static void parts_end(struct graph *g)
{
    int *ended = mem_alloc_array(g->n_parts, sizeof *ended), n = 0;
    for (size_t i = 0; i < g->n_parts; i++)
        if (!g->parts[i].needed) ended[n++] = (int)i;
    while (n) {
        for (int at = g->parts[ended[--n]].users; at >= 0; at = g->uses[at].next) {
            struct part *user = &g->parts[g->uses[at].user];
            if (user->needed && --user->needed == 0) ended[n++] = g->uses[at].user;
        }
    }
    free(ended);
}

// Returns a reference to a part that does not end. There is one if any part does not end: only references make circles.
static const char *endless_ref(struct graph *g)
{
    for (size_t i = 0; i < g->n_parts; i++) {
        const char *ref = json_string_value(json_object_get(g->parts[i].schema, "$ref"));
        json_t *target = schema_ref_find(g->root, ref);
        if (json_is_object(target) && g->parts[part_of(g, target)].needed) return ref;
    }
    return NULL;
}

const char *schema_endless_ref(json_t *root)
{
    if (!json_is_object(root)) return NULL;
    struct graph g = {.root = root, .indices = json_object()};
    part_of(&g, root);
    for (int i = 0; i < (int)g.n_parts; i++)
        part_connect(&g, i);
    parts_end(&g);
    const char *ref = g.parts[0].needed ? endless_ref(&g) : NULL;
    free(g.parts);
    free(g.uses);
    json_decref(g.indices);
    return ref;
}
