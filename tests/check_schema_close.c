// SPDX-License-Identifier: Apache-2.0
// A closed schema allows the members that it names and no others, at every depth. Schemas that are combined with others
// stay open, since each would exclude the members of the other.
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "lib/text/schema_close.h"
#include "lib/text/unicode.h"
#include "tests/suite.h"

// The schemas have ' for ". `closed` is NULL if the schema stays as it is. In `closed`, ! stands for
// 'additionalProperties':false, and ? for 'additionalProperties':true.
static const struct {
    const char *schema, *closed;
} cases[] = {
    {"{'type':'object','properties':{'a':{}}}", "{'type':'object','properties':{'a':{}},!}"},
    {"{'properties':{'a':{}}}", "{'properties':{'a':{}},!}"},
    {"{'type':['object','null']}", "{'type':['object','null'],!}"},
    {"{'patternProperties':{'^x':{}}}", "{'patternProperties':{'^x':{}},!}"},
    {"{'type':'object','additionalProperties':true}", NULL},
    {"{'type':'object','additionalProperties':{'type':'string'}}", NULL},
    {"{'type':'string'}", NULL},
    {"{}", NULL},
    {"true", NULL},
    {"{'items':{'type':'object'}}", "{'items':{'type':'object',!}}"},
    {"{'prefixItems':[{'type':'object'},{'type':'array','items':{'type':'object'}}]}",
     "{'prefixItems':[{'type':'object',!},{'type':'array','items':{'type':'object',!}}]}"},
    {"{'anyOf':[{'type':'object'},{'type':'null'}]}", "{'anyOf':[{'type':'object',!},{'type':'null'}]}"},
    {"{'type':'object','properties':{'a':{'type':'object'}}}",
     "{'type':'object','properties':{'a':{'type':'object',!}},!}"},
    {"{'additionalProperties':{'type':'object'}}", "{'additionalProperties':{'type':'object',!}}"},
    {"{'$ref':'#/$defs/a','$defs':{'a':{'type':'object'}}}", "{'$ref':'#/$defs/a','$defs':{'a':{'type':'object',!}}}"},
    {"{'properties':{'c':{'$ref':'#'}}}", "{'properties':{'c':{'$ref':'#'}},!}"},
    {"{'allOf':[{'$ref':'#/$defs/a'}],'$defs':{'a':{'type':'object'}}}",
     "{'allOf':[{'$ref':'#/$defs/a'}],'$defs':{'a':{'type':'object',!}}}"},
    {"{'type':'object','anyOf':[{'properties':{'a':{}}},{'properties':{'b':{}}}]}",
     "{'type':'object','anyOf':[{'properties':{'a':{}},!},{'properties':{'b':{}},!}]}"},
    {"{'properties':{'a':{},'b':{}},'anyOf':[{'required':['a']},{'required':['b']}]}",
     "{'properties':{'a':{},'b':{}},'anyOf':[{'required':['a']},{'required':['b']}],!}"},
    // No schemas: values, and names of properties.
    {"{'enum':[{'type':'object'}],'const':{'type':'object'},'default':{'type':'object'},'examples':[{'type':'object'}]"
     "}",
     NULL},
    {"{'properties':{'type':{'const':'object'},'properties':{}}}",
     "{'properties':{'type':{'const':'object'},'properties':{}},!}"},
    // Combined schemas.
    {"{'allOf':[{'properties':{'a':{}}},{'properties':{'b':{}}}]}",
     "{'allOf':[{'properties':{'a':{}},?},{'properties':{'b':{}},?}]}"},
    {"{'properties':{'a':{}},'oneOf':[{'properties':{'b':{}}},{'properties':{'c':{'type':'object'}}}]}",
     "{'properties':{'a':{}},'oneOf':[{'properties':{'b':{}},?},{'properties':{'c':{'type':'object',!}},?}]}"},
    {"{'$ref':'#/$defs/a~1b','properties':{'x':{}},'$defs':{'a/b':{'type':'object'},'c':{'type':'object'}}}",
     "{'$ref':'#/$defs/a~1b','properties':{'x':{}},'$defs':{'a/b':{'type':'object',?},'c':{'type':'object',!}}}"},
    {"{'allOf':[{'$ref':'#/$defs/a'},{'properties':{'x':{}}}],'$defs':{'a':{'$ref':'#/$defs/"
     "b'},'b':{'type':'object'}}}",
     "{'allOf':[{'$ref':'#/$defs/a'},{'properties':{'x':{}},?}],'$defs':{'a':{'$ref':'#/$defs/b'},"
     "'b':{'type':'object',?}}}"},
    // References that lead nowhere, or in a circle.
    {"{'allOf':[{'$ref':'#/$defs/a'},{'$ref':'#/nowhere/0'},{'$ref':'other'}],'$defs':{'a':{'$ref':'#/$defs/a'}}}",
     NULL},
};

static char *text_of(const char *pattern)
{
    struct bytes out = {0};
    for (; *pattern; pattern++) {
        const char *text = *pattern == '!'   ? "\"additionalProperties\":false"
                           : *pattern == '?' ? "\"additionalProperties\":true"
                                             : NULL;
        char one = *pattern == '\'' ? '"' : *pattern;
        bytes_add(&out, text ? text : &one, text ? strlen(text) : 1);
    }
    bytes_add(&out, "", 1);
    return out.data;
}

START_TEST(objects_are_closed)
{
    char *text = text_of(cases[_i].schema), *expected = text_of(cases[_i].closed ? cases[_i].closed : cases[_i].schema);
    ck_assert_int_eq(schema_text_close(&text), STATUS_OK);
    ck_assert_str_eq(text, expected);
    free(text);
    free(expected);
}
END_TEST

START_TEST(text_that_is_not_json_stays)
{
    char *text = mem_string("{\"type\":");
    ck_assert_int_eq(schema_text_close(&text), STATUS_OK);
    ck_assert_str_eq(text, "{\"type\":");
    free(text);
}
END_TEST

START_TEST(a_number_that_cannot_be_kept_is_refused)
{
    char *text = mem_string("{\"maximum\":99999999999999999999}");
    ck_assert_int_eq(schema_text_close(&text), STATUS_INVALID);
    ck_assert_ptr_nonnull(strstr(status_message(), "cannot be closed: too big integer"));
    free(text);
}
END_TEST

SUITE("schema_close")
{
    EACH(objects_are_closed, cases);
    TEST(text_that_is_not_json_stays);
    TEST(a_number_that_cannot_be_kept_is_refused);
}
