// SPDX-License-Identifier: Apache-2.0
#include "lib/text/call_reader.h"

#include <jansson.h>
#include <string.h>

void call_reader_reset(struct call_reader *reader, bool strict)
{
    reader->key.n = reader->value.n = reader->name.n = reader->arguments.n = 0;
    reader->state = CALL_READER_START;
    reader->named = reader->argued = reader->quoted = reader->escaped = false;
    reader->depth = 0;
    reader->strict = strict;
}

void call_reader_fini(struct call_reader *reader)
{
    bytes_free(&reader->key);
    bytes_free(&reader->value);
    bytes_free(&reader->name);
    bytes_free(&reader->arguments);
}

bool call_reader_is_call(const struct call_reader *reader)
{
    return reader->named && reader->arguments.n;
}

static bool is_key(const struct call_reader *reader, const char *name)
{
    return reader->key.n == strlen(name) && memcmp(reader->key.data, name, reader->key.n) == 0;
}

static bool is_arguments(const struct call_reader *reader)
{
    return is_key(reader, "arguments") || is_key(reader, "parameters");
}

bool call_reader_is_complete(const struct call_reader *reader)
{
    bool arguing = reader->state == CALL_READER_IN_VALUE && is_arguments(reader);
    return call_reader_is_call(reader) && !arguing;
}

static bool key_allowed(const struct call_reader *reader)
{
    return !reader->strict || is_arguments(reader) || is_key(reader, "name") || is_key(reader, "type") ||
           is_key(reader, "id");
}

// Ends a key. A second member with the name or the arguments is skipped, as unknown members are.
static enum call_reader_state key_end(struct call_reader *reader)
{
    if (!key_allowed(reader)) return CALL_READER_BROKEN;
    bool again = is_arguments(reader) ? reader->argued : is_key(reader, "name") && reader->named;
    if (again) reader->key.n = 0;
    return CALL_READER_COLON;
}

static json_t *value_decode(const struct bytes *json)
{
    return json_loadb(json->data, json->n, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
}

static bool name_end(struct call_reader *reader)
{
    json_t *value = value_decode(&reader->value);
    reader->named = json_string_length(value);
    if (reader->named) bytes_add(&reader->name, json_string_value(value), json_string_length(value));
    json_decref(value);
    return reader->named;
}

// Returns true if the value is a string that contains an object.
static bool is_object_text(const json_t *value)
{
    if (!json_is_string(value)) return false;
    json_t *inner = json_loadb(json_string_value(value), json_string_length(value), JSON_ALLOW_NUL, NULL);
    bool is_object = json_is_object(inner);
    json_decref(inner);
    return is_object;
}

// Sets the arguments unless they are an object, whose text is copied as it arrives. Returns false if the value is not
// JSON.
static bool arguments_end(struct call_reader *reader)
{
    if (reader->value.data[0] == '{') return true;
    json_t *value = value_decode(&reader->value);
    if (is_object_text(value)) {
        bytes_add(&reader->arguments, json_string_value(value), json_string_length(value));
    } else if (value && !json_is_null(value)) {
        bytes_add(&reader->arguments, reader->value.data, reader->value.n);
    }
    json_decref(value);
    return value != NULL;
}

static bool value_end(struct call_reader *reader)
{
    if (is_key(reader, "name")) return name_end(reader);
    return !is_arguments(reader) || arguments_end(reader);
}

static void value_add(struct call_reader *reader, char c)
{
    bytes_add(&reader->value, &c, 1);
    if (!is_arguments(reader)) return;
    reader->argued = true;
    if (reader->value.data[0] == '{') bytes_add(&reader->arguments, &c, 1);
}

// Adds the first byte of any value, or a later byte of a string, list or object. For these three it returns true at the
// last byte of the value. For other values the result has no meaning.
static bool value_step(struct call_reader *reader, char c)
{
    value_add(reader, c);
    if (reader->escaped) {
        reader->escaped = false;
    } else if (reader->quoted) {
        reader->escaped = c == '\\';
        reader->quoted = c != '"';
    } else if (c == '"') {
        reader->quoted = true;
    } else if (c == '{' || c == '[') {
        reader->depth++;
    } else if (c == '}' || c == ']') {
        reader->depth--;
    }
    return !reader->quoted && !reader->escaped && reader->depth == 0;
}

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

static enum call_reader_state object_end(struct call_reader *reader)
{
    if (!reader->named) return CALL_READER_BROKEN;
    if (!reader->arguments.n) bytes_add(&reader->arguments, "{}", 2); // a function without parameters
    return CALL_READER_DONE;
}

// Reads a byte that is not inside a value: a brace, comma, colon, a byte of a key, or the first byte of a value.
// Returns the next state.
static enum call_reader_state outside_step(struct call_reader *reader, char c)
{
    switch (reader->state) {
    case CALL_READER_START: return c == '{' ? CALL_READER_KEY : CALL_READER_BROKEN;
    case CALL_READER_KEY:
        if (c == ',') return CALL_READER_KEY;
        if (c == '}') return object_end(reader);
        reader->key.n = 0;
        return c == '"' ? CALL_READER_IN_KEY : CALL_READER_BROKEN;
    case CALL_READER_IN_KEY:
        if (c == '"') return key_end(reader);
        bytes_add(&reader->key, &c, 1);
        return CALL_READER_IN_KEY;
    case CALL_READER_COLON: return c == ':' ? CALL_READER_VALUE : CALL_READER_BROKEN;
    default: reader->value.n = 0; return strchr(",:]}", c) ? CALL_READER_BROKEN : CALL_READER_IN_VALUE;
    }
}

// Reads one byte. Returns false if the byte is not part of the value and must be read again.
static bool reader_step(struct call_reader *reader, char c)
{
    if (reader->state == CALL_READER_IN_VALUE) {
        bool nested = strchr("\"[{", reader->value.data[0]), used = nested || !(is_blank(c) || c == ',' || c == '}');
        bool last = nested ? value_step(reader, c) : !used;
        if (!nested && used) value_add(reader, c);
        if (last) reader->state = value_end(reader) ? CALL_READER_KEY : CALL_READER_BROKEN;
        return used;
    }
    if (is_blank(c) && reader->state != CALL_READER_IN_KEY) return true;
    reader->state = outside_step(reader, c);
    if (reader->state == CALL_READER_IN_VALUE) value_step(reader, c);
    return true;
}

size_t call_reader_push(struct call_reader *reader, const char *text, size_t n)
{
    size_t used = 0;
    while (used < n && reader->state < CALL_READER_DONE)
        used += reader_step(reader, text[used]);
    return used;
}
