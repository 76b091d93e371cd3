// SPDX-License-Identifier: Apache-2.0
#include "lib/grammar/limits.h"

#include <ctype.h>
#include <stdbool.h>
#include <string.h>

// Measured with llguidance 1.9.1: 16,000 units of fuel build at most 4,000 parts that may be empty, in 100 ms and 32
// MiB. A thousand such parts, which is the most that fits 2 KiB, take 10 ms. A schema of 36 KiB with 600 members takes
// 57,000 units. 1,000 lexer states take about 1 MiB.
enum {
    REGEX_SMALL_BYTES = 2048,
    FUEL_SMALL_REGEX = 100000,
    FUEL_LARGE_REGEX = 16000,
    STEP_FUEL_LARGE_REGEX = 20000,
    LEXER_STATES = 50000,
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
    json_t *schema = json_loads(text, JSON_DECODE_ANY | GRAMMAR_JSON_FLAGS, NULL);
    size_t n = schema ? schema_regex_bytes(schema) : strlen(text); // llguidance may read text that jansson does not
    json_decref(schema);
    return n;
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

// Counts the bytes of regular expressions. Only a %json outside of texts, expressions and comments starts a schema.
static size_t lark_regex_bytes(const char *text)
{
    static const char mark[] = "%json";
    size_t n = 0;
    for (const char *end; *text; text = end) {
        if (strncmp(text, mark, sizeof mark - 1) != 0) {
            end = lark_part_end(text);
            n += (size_t)(end - text);
            continue;
        }
        json_error_t read;
        json_t *schema = json_loads(text + sizeof mark - 1, JSON_DISABLE_EOF_CHECK | GRAMMAR_JSON_FLAGS, &read);
        if (!schema) return n + strlen(text);
        n += sizeof mark - 1 + schema_regex_bytes(schema);
        end = text + sizeof mark - 1 + read.position;
        json_decref(schema);
    }
    return n;
}

// Returns how many bytes of the grammar are or may be regular expressions: patterns of a JSON schema, a whole regular
// expression that is more than a choice of texts, a Lark grammar without its JSON schemas.
static size_t grammar_regex_bytes(const struct grammar_spec *spec)
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
