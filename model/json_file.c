// SPDX-License-Identifier: Apache-2.0
// JSON files of a checkpoint, through jansson.
#include "model/json_file.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/mem.h"

enum status json_text_read(const char *path, const char *text, size_t text_bytes, json_t **object_p)
{
    json_error_t error;
    json_t *root = json_loadb(text, text_bytes, JSON_REJECT_DUPLICATES, &error);
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

enum status json_file_read(const char *path, size_t max_bytes, json_t **object_p)
{
    struct stat info;
    FILE *file = fopen(path, "rb");
    if (!file)
        return status_fail(errno == ENOENT ? STATUS_NOT_FOUND : STATUS_INTERNAL, "%s: %s", path, strerror(errno));
    enum status status = STATUS_OK;
    char *text = NULL;
    size_t bytes = 0;
    if (fstat(fileno(file), &info) != 0 || !S_ISREG(info.st_mode))
        status = status_fail(STATUS_DATA, "%s: not a regular file", path);
    else if ((size_t)info.st_size > max_bytes)
        status =
            status_fail(STATUS_DATA, "%s: %lld bytes: must be at most %zu", path, (long long)info.st_size, max_bytes);
    if (status == STATUS_OK) {
        text = mem_alloc((size_t)info.st_size + 1);
        bytes = fread(text, 1, (size_t)info.st_size, file);
        if (ferror(file)) status = status_fail(STATUS_INTERNAL, "%s: %s", path, strerror(errno));
    }
    fclose(file);
    if (status == STATUS_OK) status = json_text_read(path, text, bytes, object_p);
    free(text);
    return status;
}

enum status json_file_read_reals(const char *path, json_t **object_p)
{
    json_error_t error;
    json_t *root = json_load_file(path, JSON_REJECT_DUPLICATES | JSON_DECODE_INT_AS_REAL, &error);
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
