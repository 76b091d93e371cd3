// SPDX-License-Identifier: Apache-2.0
// Reads sampling and prefill fields from a client's JSON. Checks types; sampling_check() and prefill_check() check most
// ranges. On INVALID the error message names the key and the allowed values. Values are not null: callers decide the
// meaning of null. Any thread may call.
#pragma once

#include <jansson.h>

#include "lib/text/generation.h"

enum status json_refuse_type(const char *key, const char *expected); // returns INVALID: "KEY: must be EXPECTED"

// Reads a whole number. As in JSON Schema, 2.0 is the whole number 2. Returns false for any other value.
bool json_whole(const json_t *value, json_int_t *number_p);
// Numbers beyond an int become INT_MIN or INT_MAX, which the range checks refuse.
enum status json_read_int(const char *key, const json_t *value, int *number_p);
enum status json_read_bool(const char *key, const json_t *value, bool *on_p);

// Stores the value in the field's member of a struct sampling or struct prefill. The default -1 of an OPTIONAL field
// may be given explicitly. The value of an INT_OR_AUTO field is a number or "auto".
enum status generation_field_from_json(const struct generation_field *field, const json_t *value, void *object);
enum status sampling_stop_ids_from_json(const json_t *value, struct sampling *s);
// Reads {"ID": BIAS}, as in OpenAI's API.
enum status sampling_logit_bias_from_json(const json_t *value, struct sampling *s);
