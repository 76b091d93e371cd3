// SPDX-License-Identifier: Apache-2.0
// Bounds the memory of parsed JSON from clients, which is many times the size of its text: in jansson an object has
// about 400 bytes and a number about 40. Counts before the text is parsed. Any thread.
#pragma once

#include <stddef.h>

#include "lib/base/status.h"

// Counts of one text, or of several texts that are parsed together. Starts as zero.
struct json_count {
    size_t containers, commas;
};

// Counts brackets and commas outside strings. The counts of malformed text are meaningless: the parser refuses such
// text.
void json_count_add(struct json_count *count, const char *text, size_t n);

// Returns INVALID if there are too many containers or commas. The error message starts with `what`, such as "the body
// has".
enum status json_count_check(const struct json_count *count, const char *what);
