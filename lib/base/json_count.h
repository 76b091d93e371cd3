// SPDX-License-Identifier: Apache-2.0
// Bounds the memory that JSON text of a client takes once it is parsed, which is a multiple of its bytes: in jansson an
// object takes some 400 bytes and a number some 40. Counted before the text is parsed. Any thread.
#pragma once

#include <stddef.h>

#include "lib/base/status.h"

// Of one text, or of several that are parsed together. Starts as zero.
struct json_count {
    size_t containers, commas;
};

// Counts brackets and commas outside strings. Of malformed text the counts mean nothing: the parser refuses it.
void json_count_add(struct json_count *count, const char *text, size_t n);

// INVALID: too many. The sentence starts with `what`, such as "the body has".
enum status json_count_check(const struct json_count *count, const char *what);
