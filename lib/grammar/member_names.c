// SPDX-License-Identifier: Apache-2.0
#include "lib/grammar/member_names.h"

#include <string.h>

#include "lib/text/schema_parts.h"

enum { QUESTIONS_MAX = 256 };

struct settling {
    member_possible_fn *possible;
    void *arg;
    int n_questions;
    bool changed;
};

// Returns an object with the value false for each name that "properties" or "required" of the schema has.
static json_t *names_taken(const json_t *schema)
{
    json_t *taken = json_object(), *value;
    const char *name;
    size_t i;
    json_object_foreach(json_object_get(schema, "properties"), name, value)
        json_object_set_new(taken, name, json_false());
    json_array_foreach(json_object_get(schema, "required"), i, value) if (json_is_string(value))
        json_object_set_new(taken, json_string_value(value), json_false());
    return taken;
}

// Returns true if a member with a name outside `taken` is possible. `patterns` and `additional` are the schemas of such
// members. The answer is also true if it is not known.
static bool other_name_exists(struct settling *s, json_t *taken, json_t *patterns, bool additional)
{
    if (s->n_questions++ >= QUESTIONS_MAX) return true;
    json_t *question = json_pack("{s:s, s:O, s:O, s:b, s:i}", "type", "object", "properties", taken,
                                 "patternProperties", patterns, "additionalProperties", additional, "minProperties", 1);
    bool exists = s->possible(s->arg, question);
    json_decref(question);
    return exists;
}

// Returns true if the pattern matches a name outside `taken`.
static bool pattern_matches_other(struct settling *s, json_t *taken, const char *pattern)
{
    json_t *patterns = json_pack("{s:b}", pattern, 1);
    bool matches = other_name_exists(s, taken, patterns, false);
    json_decref(patterns);
    return matches;
}

// Adds the schema of a pattern to the schema of the property.
static void property_restrict(json_t *schema, const char *name, json_t *by)
{
    json_t *properties = json_object_get(schema, "properties"), *own = json_object_get(properties, name);
    if (!properties) json_object_set_new(schema, "properties", properties = json_object());
    json_object_set_new(properties, name, own ? json_pack("{s:[O,O]}", "allOf", own, by) : json_deep_copy(by));
}

// Moves the schema of a pattern that matches only taken names to the matched names.
static void pattern_move(struct settling *s, json_t *schema, json_t *taken, const char *pattern, json_t *by)
{
    const char *name;
    json_t *value;
    json_object_foreach(taken, name, value)
    {
        json_t *others = json_copy(taken);
        json_object_del(others, name);
        if (pattern_matches_other(s, others, pattern)) property_restrict(schema, name, by);
        json_decref(others);
    }
}

// A pattern without both anchors matches any number of names.
static bool may_be_exhausted(const char *pattern)
{
    return strchr(pattern, '^') && strchr(pattern, '$');
}

static void patterns_settle(struct settling *s, json_t *schema, json_t *taken)
{
    json_t *patterns = json_object_get(schema, "patternProperties"), *by;
    const char *pattern;
    void *next;
    json_object_foreach_safe(patterns, next, pattern, by)
    {
        if (!may_be_exhausted(pattern) || json_object_size(taken) + (size_t)s->n_questions >= QUESTIONS_MAX ||
            pattern_matches_other(s, taken, pattern))
            continue;
        pattern_move(s, schema, taken, pattern, by);
        json_object_del(patterns, pattern);
        s->changed = true;
    }
}

static void additional_settle(struct settling *s, json_t *schema, json_t *taken)
{
    json_t *patterns = json_object(), *value;
    const char *pattern;
    json_object_foreach(json_object_get(schema, "patternProperties"), pattern, value)
        json_object_set_new(patterns, pattern, json_false());
    if (json_object_size(patterns) && !json_is_false(json_object_get(schema, "additionalProperties")) &&
        !other_name_exists(s, taken, patterns, true)) {
        json_object_set_new(schema, "additionalProperties", json_false());
        s->changed = true;
    }
    json_decref(patterns);
}

static enum status schema_settle(void *arg, json_t *schema)
{
    struct settling *s = arg;
    if (json_object_size(json_object_get(schema, "patternProperties"))) {
        json_t *taken = names_taken(schema);
        if (json_object_size(taken)) patterns_settle(s, schema, taken);
        additional_settle(s, schema, taken);
        json_decref(taken);
    }
    return schema_parts_visit(schema, schema_settle, s);
}

bool member_names_settle(json_t *schema, member_possible_fn *possible, void *arg)
{
    struct settling s = {.possible = possible, .arg = arg};
    (void)!schema_settle(&s, schema);
    return s.changed;
}
