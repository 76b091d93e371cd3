// SPDX-License-Identifier: Apache-2.0
// Appends JSON text to a buffer. The text is always valid UTF-8. Any thread may call.
#pragma once

#include "lib/text/generation.h"
#include "lib/text/unicode.h"

// Adds a literal that is JSON already.
#define JSON_ADD(out, literal) bytes_add(out, literal, sizeof(literal) - 1)

void json_add(struct bytes *out, const char *json); // adds text that is JSON already
// Adds a string with its quotes. Ill-formed parts of `text` become U+FFFD.
void json_add_text(struct bytes *out, const char *text, size_t n);
void json_add_string(struct bytes *out, const char *text); // NUL-terminated; NULL gives null
void json_add_integer(struct bytes *out, int64_t number);
// Adds a number with nine digits, enough for a float. A number that is not finite becomes -9999, as in vLLM, because
// JSON has no infinity.
void json_add_real(struct bytes *out, double number);
// Adds a comma, unless the buffer is empty or ends with an opening bracket or brace.
void json_add_comma(struct bytes *out);
// Appends the member "explain" of an answer after its other members; `object` is its JSON. Empty or NULL: nothing.
void json_add_explanation(struct bytes *out, const struct bytes *object);
// Add the items of a list of token ids, and of a list of ranges [first,last]. The caller adds the brackets.
void json_add_ids(struct bytes *out, const int32_t *ids, int n);
void json_add_ranges(struct bytes *out, const struct token_range *ranges, int n);
