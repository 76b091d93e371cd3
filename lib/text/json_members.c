// SPDX-License-Identifier: Apache-2.0
#include "lib/text/json_members.h"

#include "lib/text/json_file.h"

static const json_t *member_get(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    return json_is_null(value) ? NULL : value;
}

static enum status member_wrong_type(const char *where, const char *key, const json_t *value, const char *allowed)
{
    return status_fail(STATUS_DATA, "%s.%s is %s: must be %s", where, key, json_type_name(value), allowed);
}

enum status member_bool(const json_t *object, const char *where, const char *key, bool fallback, bool *value_p)
{
    const json_t *value = member_get(object, key);
    if (value && !json_is_boolean(value)) return member_wrong_type(where, key, value, "true or false");
    *value_p = value ? json_is_true(value) : fallback;
    return STATUS_OK;
}

enum status member_int(const json_t *object, const char *where, const char *key, int fallback, int min, int max,
                       int *value_p)
{
    const json_t *value = member_get(object, key);
    if (value && !json_is_integer(value)) return member_wrong_type(where, key, value, "an integer");
    json_int_t number = value ? json_integer_value(value) : fallback;
    if (number < min || number > max)
        return status_fail(STATUS_DATA, "%s.%s is %lld: must be %d to %d", where, key, (long long)number, min, max);
    *value_p = (int)number;
    return STATUS_OK;
}

enum status member_string(const json_t *object, const char *where, const char *key, const char *fallback,
                          const char **value_p)
{
    const json_t *value = member_get(object, key);
    if (value && !json_is_string(value)) return member_wrong_type(where, key, value, "a string");
    *value_p = value ? json_string_value(value) : fallback;
    return STATUS_OK;
}

enum status member_array(const json_t *object, const char *where, const char *key, const json_t **value_p)
{
    const json_t *value = member_get(object, key);
    if (value && !json_is_array(value)) return member_wrong_type(where, key, value, "an array");
    *value_p = value;
    return STATUS_OK;
}

enum status member_object(const json_t *object, const char *where, const char *key, const json_t **value_p)
{
    const json_t *value = member_get(object, key);
    if (value && !json_is_object(value)) return member_wrong_type(where, key, value, "an object");
    *value_p = value;
    return STATUS_OK;
}
