// SPDX-License-Identifier: Apache-2.0
// Reads members of a JSON object and checks their types. `where` names the object in messages ("model",
// "decoder.decoders[1]"). An absent or null member gives the fallback. Returned values are borrowed from the object. A
// wrong type or range gives STATUS_DATA.
#pragma once

#include <jansson.h>
#include <stdbool.h>

#include "lib/base/status.h"

enum status member_bool(const json_t *object, const char *where, const char *key, bool fallback, bool *value_p);
enum status member_int(const json_t *object, const char *where, const char *key, int fallback, int min, int max,
                       int *value_p);
enum status member_string(const json_t *object, const char *where, const char *key, const char *fallback,
                          const char **value_p);
enum status member_array(const json_t *object, const char *where, const char *key, const json_t **value_p);  // or NULL
enum status member_object(const json_t *object, const char *where, const char *key, const json_t **value_p); // or NULL
