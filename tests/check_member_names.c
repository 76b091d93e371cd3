// SPDX-License-Identifier: Apache-2.0
// Patterns that match only names of properties are replaced by schemas of these properties, and additional properties
// are excluded where no name is left for them. The names that a pattern matches are stated by the test.
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "lib/grammar/member_names.h"
#include "tests/suite.h"

static int n_questions;

// Every pattern of the tests is ^NAMES$, with one letter for each name, or matches any name if it is "^.*$".
static bool pattern_matches_other(const char *pattern, const json_t *taken)
{
    if (strcmp(pattern, "^.*$") == 0) return true;
    for (const char *c = pattern + 1; *c != '$'; c++)
        if (!json_object_get(taken, (char[]){*c, 0})) return true;
    return false;
}

// Answers as llguidance does.
static bool possible(void *arg, const json_t *schema)
{
    const json_t *patterns = json_object_get(schema, "patternProperties"), *value;
    const char *pattern;
    bool additional = json_is_true(json_object_get(schema, "additionalProperties")), found = false;
    (void)arg;
    n_questions++;
    json_object_foreach((json_t *)patterns, pattern, value)
    {
        if (strcmp(pattern, "^.*$") == 0) additional = false;
        found |= json_is_true(value) && pattern_matches_other(pattern, json_object_get(schema, "properties"));
    }
    return found || additional;
}

static const struct {
    const char *schema, *settled; // ' stands for "; NULL: no change
} cases[] = {
    {"{'properties':{'a':{'type':'integer'}},'patternProperties':{'^a$':{'minimum':3}},'additionalProperties':false}",
     "{'properties':{'a':{'allOf':[{'type':'integer'},{'minimum':3}]}},'patternProperties':{},"
     "'additionalProperties':false}"},
    {"{'required':['a'],'patternProperties':{'^a$':{'minimum':3}},'additionalProperties':false}",
     "{'required':['a'],'patternProperties':{},'additionalProperties':false,'properties':{'a':{'minimum':3}}}"},
    {"{'properties':{'a':true,'b':{},'c':{}},'patternProperties':{'^ac$':{'minimum':3}},'additionalProperties':false}",
     "{'properties':{'a':{'allOf':[true,{'minimum':3}]},'b':{},'c':{'allOf':[{},{'minimum':3}]}},"
     "'patternProperties':{},'additionalProperties':false}"},
    {"{'properties':{'a':{}},'patternProperties':{'^ab$':{}},'additionalProperties':false}", NULL},
    {"{'properties':{'a':{}},'patternProperties':{'a':{}},'additionalProperties':false}", NULL}, // any name with an a
    {"{'properties':{'a':{}}}", NULL},
    {"{'patternProperties':{'^.*$':false}}", "{'patternProperties':{'^.*$':false},'additionalProperties':false}"},
    {"{'$defs':{'x':{'required':['a'],'patternProperties':{'^a$':{}}}}}",
     "{'$defs':{'x':{'required':['a'],'patternProperties':{},'properties':{'a':{}}}}}"},
};

static json_t *parse(const char *pattern)
{
    char *text = strdup(pattern);
    for (char *c = text; *c; c++)
        if (*c == '\'') *c = '"';
    json_t *value = json_loads(text, 0, NULL);
    ck_assert_ptr_nonnull(value);
    free(text);
    return value;
}

START_TEST(exhausted_names_are_removed)
{
    json_t *schema = parse(cases[_i].schema), *before = json_deep_copy(schema);
    json_t *expected = cases[_i].settled ? parse(cases[_i].settled) : json_deep_copy(before);
    ck_assert_int_eq(member_names_settle(schema, possible, NULL), cases[_i].settled != NULL);
    char *text = json_dumps(schema, JSON_COMPACT);
    ck_assert_msg(json_equal(schema, expected), "%s", text);
    free(text);
    json_decref(schema);
    json_decref(before);
    json_decref(expected);
}
END_TEST

START_TEST(the_number_of_questions_is_bounded)
{
    json_t *items = json_array(), *schema = json_pack("{s:o}", "anyOf", items);
    for (int i = 0; i < 1000; i++)
        json_array_append_new(items, parse(cases[0].schema));
    n_questions = 0;
    member_names_settle(schema, possible, NULL);
    ck_assert_int_gt(n_questions, 200);
    ck_assert_int_le(n_questions, 256);
    json_decref(schema);
}
END_TEST

SUITE("member_names")
{
    EACH(exhausted_names_are_removed, cases);
    TEST(the_number_of_questions_is_bounded);
}
