// SPDX-License-Identifier: Apache-2.0
#include "lib/text/config_reader.h"

#include <stdarg.h>
#include <stdio.h>

#include "lib/text/json_file.h"

void config_reader_fail(struct config_reader *r, enum status code, const char *key, const char *format, ...)
{
    if (r->status != STATUS_OK) return;
    char text[400];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    r->status = status_fail(code, "%s: %s%s %s", r->path, r->prefix, key, text);
}

const json_t *config_reader_get(const struct config_reader *r, const char *key)
{
    const json_t *value = r->status == STATUS_OK ? json_object_get(r->object, key) : NULL;
    return json_is_null(value) ? NULL : value;
}

int config_read_int(struct config_reader *r, const char *key, int min, int max, int absent)
{
    const json_t *value = config_reader_get(r, key);
    if (!value) return absent;
    if (!json_is_integer(value))
        config_reader_fail(r, STATUS_DATA, key, "is %s: must be an integer in %d..%d", json_type_name(value), min, max);
    else if (json_integer_value(value) < min || json_integer_value(value) > max)
        config_reader_fail(r, STATUS_DATA, key, "is %lld: must be in %d..%d", (long long)json_integer_value(value), min,
                           max);
    return r->status == STATUS_OK ? (int)json_integer_value(value) : absent;
}

int config_read_size(struct config_reader *r, const char *key, int max)
{
    if (r->status == STATUS_OK && !config_reader_get(r, key))
        config_reader_fail(r, STATUS_DATA, key, "is missing: must be in 1..%d", max);
    return config_read_int(r, key, 1, max, 1);
}

double config_read_real(struct config_reader *r, const char *key, double above, double max, double absent)
{
    const json_t *value = config_reader_get(r, key);
    if (!value) return absent;
    if (!json_is_number(value))
        config_reader_fail(r, STATUS_DATA, key, "is %s: must be a number over %g, at most %g", json_type_name(value),
                           above, max);
    else if (!(json_number_value(value) > above && json_number_value(value) <= max))
        config_reader_fail(r, STATUS_DATA, key, "is %g: must be over %g, at most %g", json_number_value(value), above,
                           max);
    return r->status == STATUS_OK ? json_number_value(value) : absent;
}

bool config_read_bool(struct config_reader *r, const char *key, bool absent)
{
    const json_t *value = config_reader_get(r, key);
    if (!value) return absent;
    if (!json_is_boolean(value))
        config_reader_fail(r, STATUS_DATA, key, "is %s: must be true or false", json_type_name(value));
    return json_is_true(value);
}

const char *config_read_string(struct config_reader *r, const char *key)
{
    const json_t *value = config_reader_get(r, key);
    if (value && !json_is_string(value))
        config_reader_fail(r, STATUS_DATA, key, "is %s: must be a string", json_type_name(value));
    return json_string_value(value);
}
