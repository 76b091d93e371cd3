// SPDX-License-Identifier: Apache-2.0
#include "lib/grammar/limits.h"

#include <ctype.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "lib/text/schema_ends.h"

// Measured with llguidance 1.9.1: 16,000 units of fuel build at most 4,000 parts that may be empty, in 100 ms and 32
// MiB. A thousand such parts take 10 ms. A schema of 36 KiB with 600 members and no expressions takes 57,000 units. A
// list of 30,000 texts takes 500,000 units, in 150 ms and 40 MiB. 1,000 lexer states take about 1 MiB. Literal text of
// expressions and rules takes 120 bytes of memory for each byte.
//
// An object of n members takes n * n steps, and optional members five times as many: 2,000 required or 890 optional
// members take 0.2 s. Optional members also take four items each in a row of the parser. A part of a schema, such as an
// item of prefixItems, takes 30 us, and so does a list within a list of values.
//
// 256 KiB of values of "enum" take 0.1 s and 30 MiB, next to a pattern or in options of "oneOf" 0.7 s. A member or an
// element of a value takes as long as three parts of a schema.
enum {
    REGEX_BYTES_MAX = 256 << 10,
    VALUE_BYTES_MAX = 256 << 10,
    REGEX_SMALL_PARTS = 1024,
    REGEX_OPERATORS_MAX = 16384, // an operator takes up to 700 bytes before any unit of fuel is spent
    FUEL_SMALL_REGEX = 500000,
    FUEL_LARGE_REGEX = 16000,
    STEP_FUEL_LARGE_REGEX = 20000,
    LEXER_STATES = 50000,
    UNITS_MAX = 4000000,
    UNITS_OBJECT = 200,
    UNITS_VALUE = 600,
    MEMBERS_FEW = 100,
    ROW_ITEMS = 4096,
};

// Returns true if the expression is only literal text and `|`.
static bool is_choice(const char *regex)
{
    for (const char *c = regex; *c; c++) {
        if (*c == '\\') {
            if (!c[1] || isalnum((unsigned char)c[1])) return false;
            c++;
        } else if (strchr(".*+?()[]{}^$&~#", *c)) {
            return false;
        }
    }
    return true;
}

struct costs {
    size_t parts;     // parts of regular expressions that may be empty, or more
    size_t operators; // operators and groups of regular expressions
    size_t bytes;     // bytes of regular expressions, rules and text that is not JSON
    size_t values;    // bytes of the values of "enum" and "const"; not counted on above VALUE_BYTES_MAX
    uint64_t units;   // work for the objects of schemas, see UNITS_MAX
    char *endless;    // reference to a schema that no finite answer matches; owned; NULL: there is none
};

// Adds the text of an expression, and its parts that may be empty or are repeated: counts their operators.
static void regex_add_costs(const char *text, size_t bytes, struct costs *costs)
{
    costs->bytes += bytes;
    for (size_t i = 0; i < bytes; i++) {
        bool operates = text[i] && strchr("?*+{|", text[i]);
        costs->parts += operates;
        costs->operators += operates || text[i] == '(';
    }
}

static void strings_add_costs(const json_t *value, struct costs *costs)
{
    size_t i;
    const char *name;
    json_t *member;
    regex_add_costs(json_string_value(value), json_string_length(value), costs);
    json_object_foreach((json_t *)value, name, member) strings_add_costs(member, costs);
    json_array_foreach(value, i, member) strings_add_costs(member, costs);
}

static void names_add_costs(const json_t *object, struct costs *costs)
{
    const char *name;
    json_t *member;
    json_object_foreach((json_t *)object, name, member) regex_add_costs(name, strlen(name), costs);
}

// Adds the work for the members of a large object.
static void members_add_costs(const json_t *schema, struct costs *costs)
{
    const json_t *properties = json_object_get(schema, "properties"), *name;
    uint64_t n = json_object_size(properties), optional = n;
    size_t i;
    json_array_foreach(json_object_get(schema, "required"), i, name)
    {
        bool is_named = json_is_string(name) && json_object_get(properties, json_string_value(name));
        if (is_named && optional) optional--;
        if (!is_named) n++;
    }
    if (n > MEMBERS_FEW) costs->units += n * n + 4 * optional * optional;
}

// Adds the work for lists and objects among the values of "enum" and "const".
static void value_add_units(const json_t *value, struct costs *costs)
{
    size_t i, n = json_is_array(value) ? json_array_size(value) : json_object_size(value);
    const char *name;
    json_t *member;
    if (json_is_array(value) || json_is_object(value)) costs->units += UNITS_OBJECT + n * UNITS_VALUE;
    json_object_foreach((json_t *)value, name, member) value_add_units(member, costs);
    json_array_foreach(value, i, member) value_add_units(member, costs);
}

// Adds bytes of values. Returns -1, which ends the dump, if the values have too many.
static int values_add_bytes(const char *bytes, size_t n, void *costs)
{
    (void)bytes;
    struct costs *c = costs;
    c->values += n;
    return c->values > VALUE_BYTES_MAX ? -1 : 0;
}

// Adds the value of "const", or the list of "enum", which is no value itself.
static void values_add_costs(const json_t *values, bool is_list, struct costs *costs)
{
    size_t i;
    json_t *one;
    json_dump_callback(values, values_add_bytes, costs, JSON_COMPACT | JSON_ENCODE_ANY);
    if (!is_list) value_add_units(values, costs);
    if (is_list) json_array_foreach(values, i, one) value_add_units(one, costs);
}

// Costs that an enclosing member has counted already. Counting them again on every level would take quadratic time.
enum counted { COUNTED_TEXTS = 1, COUNTED_VALUES = 2 };

// Adds the costs of a member of a schema. Returns what is counted with all it contains. A property that has the name of
// a keyword is charged as well, which adds little.
static unsigned member_add_costs(const char *name, const json_t *member, unsigned counted, struct costs *costs)
{
    bool texts = strcmp(name, "pattern") == 0 || strcmp(name, "x-guidance") == 0;
    bool is_list = strcmp(name, "enum") == 0 && json_is_array(member), values = is_list || strcmp(name, "const") == 0;
    if (texts && !(counted & COUNTED_TEXTS)) strings_add_costs(member, costs);
    if (strcmp(name, "patternProperties") == 0) names_add_costs(member, costs);
    if (values && !(counted & COUNTED_VALUES)) values_add_costs(member, is_list, costs);
    return counted | (texts ? COUNTED_TEXTS : 0) | (values ? COUNTED_VALUES : 0);
}

static void schema_add_costs(const json_t *schema, unsigned counted, struct costs *costs)
{
    size_t i;
    const char *name;
    json_t *member;
    if (json_is_object(schema)) {
        costs->units += UNITS_OBJECT;
        members_add_costs(schema, costs);
    }
    json_object_foreach((json_t *)schema, name, member)
        schema_add_costs(member, member_add_costs(name, member, counted, costs), costs);
    json_array_foreach(schema, i, member)
    {
        if (json_is_array(member)) costs->units += UNITS_OBJECT;
        schema_add_costs(member, counted, costs);
    }
}

static void document_add_costs(json_t *root, struct costs *costs)
{
    schema_add_costs(root, 0, costs);
    const char *ref = costs->endless ? NULL : schema_endless_ref(root);
    if (ref) costs->endless = mem_string(ref);
}

// llguidance may read text that jansson does not, so all of the text may be expressions.
static void not_json_add_costs(const char *text, struct costs *costs)
{
    costs->bytes += strlen(text);
    costs->parts += strlen(text);
}

static void schema_text_add_costs(const char *text, struct costs *costs)
{
    json_t *schema = json_loads(text, JSON_DECODE_ANY | GRAMMAR_JSON_FLAGS, NULL);
    if (schema) {
        document_add_costs(schema, costs);
    } else {
        not_json_add_costs(text, costs);
    }
    json_decref(schema);
}

static const char *quoted_end(const char *c, char quote)
{
    for (c++; *c && *c != quote; c++)
        if (*c == '\\' && c[1]) c++;
    return *c ? c + 1 : c;
}

// Returns the end of the comment, text, expression or special token that starts at c. Returns c + 1 if no such part
// starts there.
static const char *lark_part_end(const char *c)
{
    if (*c == '#' || strncmp(c, "//", 2) == 0) return c + strcspn(c, "\n");
    if (*c == '"' || *c == '/') return quoted_end(c, *c);
    size_t n = *c == '<' ? 1 + strcspn(c + 1, "<> \t\r\n") : 0;
    return c[n] == '>' ? c + n + 1 : c + 1;
}

// Only a %json outside of texts, expressions and comments starts a schema.
static void lark_add_costs(const char *text, struct costs *costs)
{
    static const char mark[] = "%json";
    for (const char *end; *text; text = end) {
        if (strncmp(text, mark, sizeof mark - 1) != 0) {
            end = lark_part_end(text);
            regex_add_costs(text, (size_t)(end - text), costs);
            continue;
        }
        json_error_t read;
        json_t *schema = json_loads(text + sizeof mark - 1, JSON_DISABLE_EOF_CHECK | GRAMMAR_JSON_FLAGS, &read);
        if (!schema) {
            not_json_add_costs(text, costs);
            return;
        }
        document_add_costs(schema, costs);
        end = text + sizeof mark - 1 + read.position;
        json_decref(schema);
    }
}

// Counts the regular expressions of a grammar: the patterns of a JSON schema, a whole regular expression that is more
// than a choice of texts, a Lark grammar without its JSON schemas.
static struct costs grammar_costs(const struct grammar_spec *spec)
{
    struct costs costs = {0};
    if (spec->kind == GRAMMAR_JSON_SCHEMA) schema_text_add_costs(spec->text, &costs);
    if (spec->kind == GRAMMAR_REGEX) regex_add_costs(spec->text, strlen(spec->text), &costs);
    if (spec->kind == GRAMMAR_REGEX && is_choice(spec->text)) costs.parts = costs.operators = 0;
    if (spec->kind == GRAMMAR_LARK) lark_add_costs(spec->text, &costs);
    return costs;
}

static enum status endless_refuse(char *ref)
{
    enum status status =
        status_fail(STATUS_INVALID,
                    "the JSON schema has a dead end: \"$ref\" %.100s requires itself, so no answer could "
                    "end: make a member on the way optional, or allow another value",
                    ref);
    free(ref);
    return status;
}

enum status grammar_limits_set(const struct grammar_spec *spec, struct llg_limits *limits)
{
    const struct costs costs = grammar_costs(spec);
    if (costs.endless) return endless_refuse(costs.endless);
    if (costs.bytes > REGEX_BYTES_MAX)
        return status_fail(STATUS_INVALID,
                           "the regular expressions, rules and text that is not JSON have %zu bytes: at most %d",
                           costs.bytes, REGEX_BYTES_MAX);
    if (costs.operators > REGEX_OPERATORS_MAX)
        return status_fail(
            STATUS_INVALID,
            "the regular expressions and rules have %zu operators and groups (? * + { | and parentheses): at most %d",
            costs.operators, REGEX_OPERATORS_MAX);
    if (costs.values > VALUE_BYTES_MAX)
        return status_fail(STATUS_INVALID, "the values of \"enum\" and \"const\" have more than %d bytes of JSON",
                           VALUE_BYTES_MAX);
    if (costs.units > UNITS_MAX)
        return status_fail(
            STATUS_INVALID,
            "the JSON schema has too many members: one object may have about 2,000 required or 890 "
            "optional ones, all schemas together %d parts, and all objects and lists among the values of "
            "\"enum\" and \"const\" about %d members",
            UNITS_MAX / UNITS_OBJECT, UNITS_MAX / UNITS_VALUE);
    bool is_small = costs.parts <= REGEX_SMALL_PARTS;
    limits->initial_lexer_fuel = is_small ? FUEL_SMALL_REGEX : FUEL_LARGE_REGEX;
    if (!is_small) limits->step_lexer_fuel = STEP_FUEL_LARGE_REGEX;
    limits->max_lexer_states = LEXER_STATES;
    limits->max_items_in_row = ROW_ITEMS;
    return STATUS_OK;
}
