// SPDX-License-Identifier: Apache-2.0
#include "router/front/http/json_body.h"

#include <string.h>

#include "lib/base/json_count.h"
#include "lib/text/generation_json.h"

// Finds the body's member that contains the byte at `end`. Returns the length of its name, or 0 if there is no such
// member.
static size_t member_name(const char *bytes, size_t end, const char **name_p)
{
    int depth = 0;
    size_t text = 0, text_bytes = 0, name_bytes = 0; // offset and length of the last string; length of the last name
    for (size_t i = 0; i < end; i++) {
        char c = bytes[i];
        if (c == '"') {
            for (text = ++i; i < end && bytes[i] != '"'; i++)
                i += bytes[i] == '\\';
            text_bytes = i - text;
        } else if (c == ':' && depth == 1) {
            *name_p = bytes + text;
            name_bytes = text_bytes;
        }
        depth += (c == '{' || c == '[') - (c == '}' || c == ']');
    }
    return name_bytes;
}

static bool is_field_name(const char *name, size_t n)
{
    enum { NAME_MAX_BYTES = 64 };
    for (size_t i = 0; i < n; i++)
        if (!strchr("abcdefghijklmnopqrstuvwxyz_0123456789", name[i])) return false;
    return n > 0 && n <= NAME_MAX_BYTES;
}

// Returns the length of jansson's message without the bytes of the body that it quotes ("invalid token near 'abc'").
// Clients log error messages, and the body is private.
static int reason_length(const char *text)
{
    const char *quote = strstr(text, " near ");
    return (int)(quote ? (size_t)(quote - text) : strlen(text));
}

static enum status refuse_json(const char *bytes, const json_error_t *error)
{
    const char *name = NULL;
    int length = reason_length(error->text);
    bool overflow = json_error_code(error) == json_error_numeric_overflow;
    size_t n = overflow ? member_name(bytes, (size_t)error->position, &name) : 0;
    if (is_field_name(name, n))
        return status_fail(STATUS_INVALID, "%.*s: the number is out of range: line %d, column %d: %.*s", (int)n, name,
                           error->line, error->column, length, error->text);
    return status_fail(STATUS_INVALID, "the body is not valid JSON: line %d, column %d: %.*s", error->line,
                       error->column, length, error->text);
}

enum status json_body_parse(const char *bytes, size_t size, json_t **body_p)
{
    json_error_t error;
    struct json_count count = {0};
    json_count_add(&count, bytes, size);
    TRY(json_count_check(&count, "the body has"));
    json_t *body = json_loadb(bytes, size, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &error);
    if (!body) return refuse_json(bytes, &error);
    if (!json_is_object(body)) {
        json_decref(body);
        return status_fail(STATUS_INVALID, "the body must be a JSON object");
    }
    *body_p = body;
    return STATUS_OK;
}

static enum status read_int(const struct json_field *f, const json_t *value, int64_t *number_p)
{
    json_int_t number;
    if (!json_whole(value, &number)) return json_refuse_type(f->name, "a whole number");
    if (number < f->min || number > f->max) {
        return status_fail(STATUS_INVALID, "%s %lld: must be from %lld to %lld", f->name, (long long)number,
                           (long long)f->min, (long long)f->max);
    }
    *number_p = number;
    return STATUS_OK;
}

static enum status read_name(const struct json_field *f, const json_t *value, const char **name_p)
{
    if (!json_is_string(value)) return json_refuse_type(f->name, "a string");
    const char *name = json_string_value(value);
    if (strlen(name) != json_string_length(value)) return json_refuse_type(f->name, "a string without U+0000");
    *name_p = name;
    return STATUS_OK;
}

static enum status read_any(const struct json_field *f, const json_t *value, const json_t **value_p)
{
    if (f->type == JSON_FIELD_LIST && !json_is_array(value)) return json_refuse_type(f->name, "a list");
    if (f->type == JSON_FIELD_OBJECT && !json_is_object(value)) return json_refuse_type(f->name, "an object");
    *value_p = value;
    return STATUS_OK;
}

static enum status read_field(const struct json_field *f, const json_t *value, void *to)
{
    switch (f->type) {
    case JSON_FIELD_BOOL: return json_read_bool(f->name, value, to);
    case JSON_FIELD_INT: return read_int(f, value, to);
    case JSON_FIELD_NAME: return read_name(f, value, to);
    default: return read_any(f, value, to);
    }
}

json_names json_names_of(const json_t *object)
{
    json_names names = 0;
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)object, name, value)
    {
        names |= json_names_bit(name);
    }
    return names;
}

enum status json_fields_read(const json_t *object, const struct json_field *fields, void *values)
{
    const json_names names = json_names_of(object);
    for (const struct json_field *f = fields; f->name; f++) {
        const json_t *value = json_names_get(names, object, f->name);
        if (value && !json_is_null(value)) TRY(read_field(f, value, (char *)values + f->offset));
    }
    return STATUS_OK;
}

bool json_tables_name(const struct json_field *fields, const struct json_unsupported *unsupported, const char *name)
{
    for (const struct json_field *f = fields; f && f->name; f++)
        if (strcmp(f->name, name) == 0) return true;
    for (const struct json_unsupported *row = unsupported; row && row->name; row++)
        if (strcmp(row->name, name) == 0) return true;
    return false;
}

bool json_list_has(const char *const *names, const char *name)
{
    while (*names && strcmp(*names, name) != 0)
        names++;
    return *names != NULL;
}

static bool equals(const json_t *value, const char *json)
{
    json_t *other = json ? json_loads(json, JSON_DECODE_ANY, NULL) : NULL;
    bool same = other && json_equal(value, other);
    json_decref(other);
    return same;
}

enum status json_unsupported_check(const json_t *object, const struct json_unsupported *table)
{
    const json_names names = json_names_of(object);
    for (const struct json_unsupported *row = table; row->name; row++) {
        const json_t *value = json_names_get(names, object, row->name);
        if (!value || json_is_null(value) || equals(value, row->harmless)) continue;
        return status_fail(STATUS_UNSUPPORTED, "%s: not supported%s%s: %s", row->name, row->harmless ? ", except " : "",
                           row->harmless ? row->harmless : "", row->remedy ? row->remedy : "leave it out");
    }
    return STATUS_OK;
}
