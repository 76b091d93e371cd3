// SPDX-License-Identifier: Apache-2.0
#include "lib/text/generation_json.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum status json_refuse_type(const char *key, const char *expected)
{
    return status_fail(STATUS_INVALID, "%s: must be %s", key, expected);
}

bool json_whole(const json_t *value, json_int_t *number_p)
{
    const double exact = 9007199254740992; // 2^53: a double represents every whole number up to it
    double real = json_real_value(value);
    if (!json_is_integer(value) && (!json_is_real(value) || fabs(real) > exact || trunc(real) != real)) return false;
    *number_p = json_is_integer(value) ? json_integer_value(value) : (json_int_t)real;
    return true;
}

enum status json_read_int(const char *key, const json_t *value, int *number_p)
{
    json_int_t number;
    if (!json_whole(value, &number)) return json_refuse_type(key, "a whole number");
    *number_p = number > INT_MAX ? INT_MAX : number < INT_MIN ? INT_MIN : (int)number;
    return STATUS_OK;
}

enum status json_read_bool(const char *key, const json_t *value, bool *on_p)
{
    if (!json_is_boolean(value)) return json_refuse_type(key, "true or false");
    *on_p = json_is_true(value);
    return STATUS_OK;
}

static enum status int_from_json(const struct generation_field *f, const json_t *value, int *number_p)
{
    json_int_t number;
    if (json_whole(value, &number) && (number < INT_MIN || number > INT_MAX))
        return generation_field_check(f, (double)number);
    return json_read_int(f->name, value, number_p);
}

// Reads an optional number. The value -1 means "not given" for fields with that default.
static enum status optional_from_json(const struct generation_field *f, const json_t *value, int *number_p)
{
    TRY(int_from_json(f, value, number_p));
    bool none = *number_p < 0 && *number_p == f->default_value;
    return none ? STATUS_OK : generation_field_check(f, *number_p);
}

static enum status int_or_auto_from_json(const struct generation_field *f, const json_t *value, int *number_p)
{
    if (json_is_string(value) && strcmp(json_string_value(value), "auto") == 0) {
        *number_p = CHUNK_TOKENS_AUTO;
        return STATUS_OK;
    }
    if (!json_whole(value, &(json_int_t){0})) return json_refuse_type(f->name, "\"auto\" or a whole number");
    TRY(int_from_json(f, value, number_p));
    return generation_field_check(f, *number_p);
}

enum status generation_field_from_json(const struct generation_field *field, const json_t *value, void *object)
{
    void *to = (char *)object + field->offset;
    json_int_t number;
    switch (field->type) {
    case GENERATION_FIELD_INT: return int_from_json(field, value, to);
    case GENERATION_FIELD_OPTIONAL: return optional_from_json(field, value, to);
    case GENERATION_FIELD_INT_OR_AUTO: return int_or_auto_from_json(field, value, to);
    case GENERATION_FIELD_BOOL: return json_read_bool(field->name, value, to);
    case GENERATION_FIELD_UINT64:
        if (!json_whole(value, &number)) return json_refuse_type(field->name, "a whole number");
        *(uint64_t *)to = (uint64_t)number;
        return STATUS_OK;
    case GENERATION_FIELD_REAL:
    case GENERATION_FIELD_OPTIONAL_REAL:
        if (!json_is_number(value)) return json_refuse_type(field->name, "a number");
        *(double *)to = json_number_value(value);
        return field->type == GENERATION_FIELD_REAL ? STATUS_OK : generation_field_check(field, *(double *)to);
    }
    return STATUS_INTERNAL;
}

static enum status stop_id_from_json(const json_t *value, struct sampling *s)
{
    json_int_t id = -1;
    if (s->n_stop_ids == STOP_IDS_MAX || !json_whole(value, &id) || id < 0 || id > INT_MAX) {
        return status_fail(STATUS_INVALID, "stop_token_ids: must be at most %d token ids of 0 or more", STOP_IDS_MAX);
    }
    s->stop_ids[s->n_stop_ids++] = (int32_t)id;
    return STATUS_OK;
}

enum status sampling_stop_ids_from_json(const json_t *value, struct sampling *s)
{
    if (!json_is_array(value)) return json_refuse_type("stop_token_ids", "a list of token ids");
    s->n_stop_ids = 0;
    size_t i;
    json_t *item;
    json_array_foreach(value, i, item) TRY(stop_id_from_json(item, s));
    return STATUS_OK;
}

static enum status bias_refuse(void)
{
    return json_refuse_type("logit_bias", "an object of numbers by token id");
}

static enum status bias_from_json(const char *key, const json_t *number, struct logit_bias *bias)
{
    char *end;
    long long id = strtoll(key, &end, 10);
    if (*end || end == key || !json_is_number(number)) return bias_refuse();
    return logit_bias_add(bias, id, json_number_value(number));
}

enum status sampling_logit_bias_from_json(const json_t *value, struct sampling *s)
{
    if (!json_is_object(value)) return bias_refuse();
    logit_bias_free(&s->logit_bias);
    const char *key;
    json_t *number;
    json_object_foreach((json_t *)value, key, number) TRY(bias_from_json(key, number, &s->logit_bias));
    return STATUS_OK;
}
