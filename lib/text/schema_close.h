// SPDX-License-Identifier: Apache-2.0
// Closes the objects of a JSON schema: an object then has only members that its schema names. An open object
// allows any member, and a small model may add members until max_tokens.
#pragma once

#include <jansson.h>

#include "lib/base/status.h"

// Adds "additionalProperties": false to each object's schema in `schema` that has no such member. Leaves schemas open
// that are combined with another schema that names members, by allOf, anyOf, oneOf or $ref: each would exclude the
// members of the other. `schema` is the root of its document.
void schema_close(json_t *schema);

// Replaces the text of a JSON schema, which the caller frees, by the text of the closed schema. A text that is not JSON
// stays as it is. INVALID: it has a number that cannot be kept.
enum status schema_text_close(char **text);
