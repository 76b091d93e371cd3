// SPDX-License-Identifier: Apache-2.0
// Schemas that require themselves are found, and no others.
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "lib/text/schema_ends.h"
#include "tests/suite.h"

// The schemas have ' for ". `ref` is NULL if a finite value may match.
static const struct {
    const char *schema, *ref;
} cases[] = {
    {"{'$ref':'#'}", "#"},
    {"true", NULL},
    {"{'$ref':'#/$defs/a'}", NULL}, // no such schema: llguidance refuses it
    {"{'type':'object','properties':{'a':{'$ref':'#'}},'required':['a']}", "#"},
    {"{'type':['object'],'properties':{'a':{'$ref':'#'}},'required':['a']}", "#"},
    {"{'type':'object','properties':{'a':{'$ref':'#'}}}", NULL},
    {"{'type':['object','null'],'properties':{'a':{'$ref':'#'}},'required':['a']}", NULL},
    {"{'properties':{'a':{'$ref':'#'}},'required':['a']}", NULL}, // 7 matches
    {"{'type':'object','properties':{'a':{'anyOf':[{'$ref':'#'},{'type':'null'}]}},'required':['a']}", NULL},
    {"{'type':'object','properties':{'a':{'anyOf':[{'$ref':'#'},true]}},'required':['a']}", NULL},
    {"{'type':'object','properties':{'a':{'oneOf':[{'$ref':'#'},{'$ref':'#'}]}},'required':['a']}", "#"},
    {"{'type':'object','properties':{'a':{'allOf':[{'type':'object'},{'$ref':'#'}]}},'required':['a']}", "#"},
    {"{'type':'object','additionalProperties':{'$ref':'#'},'required':['a']}", "#"},
    {"{'type':'object','additionalProperties':{'$ref':'#'}}", NULL},
    {"{'type':'object','additionalProperties':{'$ref':'#'},'minProperties':1}", "#"},
    {"{'type':'object','properties':{'b':true},'additionalProperties':{'$ref':'#'},'minProperties':1}", NULL},
    {"{'type':'object','patternProperties':{'^a':{'$ref':'#'}},'additionalProperties':{'$ref':'#'},'minProperties':1}",
     "#"},
    {"{'type':'array','items':{'$ref':'#'}}", NULL},
    {"{'type':'array','items':{'$ref':'#'},'minItems':1}", "#"},
    {"{'type':'array','prefixItems':[{'$ref':'#'}]}", NULL},
    {"{'type':'array','prefixItems':[{},{'$ref':'#'}],'minItems':1}", NULL},
    {"{'type':'array','prefixItems':[{},{'$ref':'#'}],'minItems':2}", "#"},
    {"{'type':'array','items':[{}],'additionalItems':{'$ref':'#'},'minItems':2}", "#"},
    // Two schemas that require each other, and an optional member that requires itself.
    {"{'$ref':'#/$defs/a','$defs':{'a':{'type':'object','properties':{'b':{'$ref':'#/$defs/b'}},'required':['b']},"
     "'b':{'type':'object','properties':{'a':{'$ref':'#/$defs/a'}},'required':['a']}}}",
     "#/$defs/a"},
    {"{'$ref':'#/$defs/a','$defs':{'a':{'type':'object','properties':{'b':{'$ref':'#/$defs/b'}},'required':['b']},"
     "'b':{'type':'object','properties':{'a':{'$ref':'#/$defs/a'}}}}}",
     NULL},
    {"{'type':'object','properties':{'x':{'$ref':'#/$defs/a'}},"
     "'$defs':{'a':{'type':'array','items':{'$ref':'#/$defs/a'},'minItems':3}}}",
     NULL},
    {"{'type':'object','properties':{'x':{'$ref':'#/$defs/a'}},'required':['x'],"
     "'$defs':{'a':{'type':'array','items':{'$ref':'#/$defs/a'},'minItems':3}}}",
     "#/$defs/a"},
    {"{'type':'object','properties':{'a':{'const':{'$ref':'#'}}},'required':['a']}", NULL},
};

START_TEST(schemas_that_require_themselves_are_found)
{
    char *text = strdup(cases[_i].schema);
    for (char *c = text; *c; c++)
        if (*c == '\'') *c = '"';
    json_t *schema = json_loads(text, JSON_DECODE_ANY, NULL);
    ck_assert_ptr_nonnull(schema);
    const char *ref = schema_endless_ref(schema);
    ck_assert_msg((ref == NULL) == (cases[_i].ref == NULL), "%s: %s", text, ref);
    if (ref) ck_assert_str_eq(ref, cases[_i].ref);
    json_decref(schema);
    free(text);
}
END_TEST

SUITE("schema_ends")
{
    EACH(schemas_that_require_themselves_are_found, cases);
}
