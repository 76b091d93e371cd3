// SPDX-License-Identifier: Apache-2.0
// See json_file.h. Uses jansson.
#include "lib/text/json_file.h"

#include <stdlib.h>

#include "lib/base/file_text.h"
#include "lib/base/json_count.h"

// Limits of a file. The vocabulary and the merges of the largest tokenizers reach a fifth of these limits.
enum { CONTAINERS_MAX = 1 << 21, VALUES_MAX = 1 << 23 };

static enum status parse(const char *path, const char *text, size_t text_bytes, size_t flags, json_t **object_p)
{
    json_error_t error;
    struct json_count count = {0};
    json_count_add(&count, text, text_bytes);
    if (count.containers > CONTAINERS_MAX || count.commas > VALUES_MAX)
        return status_fail(STATUS_DATA, "%s: %zu lists and objects, %zu values: must be at most %d and %d", path,
                           count.containers, count.commas, CONTAINERS_MAX, VALUES_MAX);
    json_t *root = json_loadb(text, text_bytes, JSON_REJECT_DUPLICATES | flags, &error);
    if (!root)
        return status_fail(STATUS_DATA, "%s: not valid JSON: %s (line %d, column %d)", path, error.text, error.line,
                           error.column);
    if (!json_is_object(root)) {
        status_fail(STATUS_DATA, "%s: the JSON is %s: must be an object", path, json_type_name(root));
        json_decref(root);
        return STATUS_DATA;
    }
    *object_p = root;
    return STATUS_OK;
}

enum status json_text_read(const char *path, const char *text, size_t text_bytes, json_t **object_p)
{
    return parse(path, text, text_bytes, 0, object_p);
}

static enum status read_file(const char *path, size_t max_bytes, size_t flags, json_t **object_p)
{
    char *text;
    size_t bytes;
    TRY(file_text_read(path, max_bytes, &text, &bytes));
    enum status status = parse(path, text, bytes, flags, object_p);
    free(text);
    return status;
}

enum status json_file_read(const char *path, size_t max_bytes, json_t **object_p)
{
    return read_file(path, max_bytes, 0, object_p);
}

enum status json_file_read_reals(const char *path, size_t max_bytes, json_t **object_p)
{
    return read_file(path, max_bytes, JSON_DECODE_INT_AS_REAL, object_p);
}

const char *json_type_name(const json_t *value)
{
    switch (json_typeof(value)) {
    case JSON_OBJECT: return "an object";
    case JSON_ARRAY: return "an array";
    case JSON_STRING: return "a string";
    case JSON_INTEGER: return "an integer";
    case JSON_REAL: return "a number";
    case JSON_TRUE:
    case JSON_FALSE: return "true or false";
    default: return "null";
    }
}
