// SPDX-License-Identifier: Apache-2.0
#include "grammar/limits.h"

#include <ctype.h>
#include <jansson.h>
#include <stdbool.h>
#include <string.h>

// Measured with llguidance 1.9.1: 16,000 units of fuel build at most 4,000 parts that may be empty, in 100 ms and
// 32 MiB; a thousand such parts, all that fits 2 KiB, take 10 ms. A schema of 36 KiB with 600 members takes 57,000
// units, 1,000 lexer states take about 1 MiB.
enum {
    REGEX_SMALL_BYTES = 2048,
    FUEL_SMALL_REGEX = 100000,
    FUEL_LARGE_REGEX = 16000,
    STEP_FUEL_LARGE_REGEX = 20000,
    LEXER_STATES = 50000,
};

// Whether the expression is literal text and `|` only.
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

static size_t strings_bytes(const json_t *value)
{
    size_t n = json_string_length(value), i;
    const char *name;
    json_t *member;
    json_object_foreach((json_t *)value, name, member) n += strings_bytes(member);
    json_array_foreach(value, i, member) n += strings_bytes(member);
    return n;
}

static size_t names_bytes(const json_t *object)
{
    size_t n = 0;
    const char *name;
    json_t *member;
    json_object_foreach((json_t *)object, name, member) n += strlen(name);
    return n;
}

static size_t schema_regex_bytes(const json_t *schema)
{
    size_t n = 0, i;
    const char *name;
    json_t *member;
    json_object_foreach((json_t *)schema, name, member)
    {
        if (strcmp(name, "pattern") == 0 || strcmp(name, "x-guidance") == 0) n += strings_bytes(member);
        if (strcmp(name, "patternProperties") == 0) n += names_bytes(member);
        n += schema_regex_bytes(member);
    }
    json_array_foreach(schema, i, member) n += schema_regex_bytes(member);
    return n;
}

static size_t schema_text_regex_bytes(const char *text)
{
    json_t *schema = json_loads(text, JSON_DECODE_ANY, NULL);
    size_t n = schema ? schema_regex_bytes(schema) : 0; // llguidance refuses what is not JSON
    json_decref(schema);
    return n;
}

static size_t lark_regex_bytes(const char *text)
{
    static const char mark[] = "%json";
    size_t n = 0;
    for (const char *at; (at = strstr(text, mark));) {
        const char *json = at + sizeof mark - 1;
        json_error_t end;
        json_t *schema = json_loadb(json, strlen(json), JSON_DISABLE_EOF_CHECK, &end);
        n += (size_t)(json - text) + (schema ? schema_regex_bytes(schema) : 0);
        text = json + (schema ? end.position : 0);
        json_decref(schema);
    }
    return n + strlen(text);
}

size_t grammar_regex_bytes(const struct grammar_spec *spec)
{
    switch (spec->kind) {
    case GRAMMAR_JSON_SCHEMA: return schema_text_regex_bytes(spec->text);
    case GRAMMAR_REGEX: return is_choice(spec->text) ? 0 : strlen(spec->text);
    case GRAMMAR_LARK: return lark_regex_bytes(spec->text);
    default: return 0;
    }
}

void grammar_limits_set(const struct grammar_spec *spec, struct llg_limits *limits)
{
    bool is_small = grammar_regex_bytes(spec) <= REGEX_SMALL_BYTES;
    limits->initial_lexer_fuel = is_small ? FUEL_SMALL_REGEX : FUEL_LARGE_REGEX;
    if (!is_small) limits->step_lexer_fuel = STEP_FUEL_LARGE_REGEX;
    limits->max_lexer_states = LEXER_STATES;
}
