// SPDX-License-Identifier: Apache-2.0
// Bounds the memory that parsed JSON of clients takes. Parsed JSON is many times larger than its text: in jansson an
// object takes about 400 bytes and a number about 40. The text is counted before it is parsed. Any thread may call.
#pragma once

#include <stddef.h>

#include "lib/base/status.h"

// Counts of one text, or of several texts that are parsed together. Zero it to initialise.
struct json_count {
    size_t containers, commas;
};

// Counts brackets and commas outside strings. The counts of malformed text are meaningless: the parser refuses such
// text.
void json_count_add(struct json_count *count, const char *text, size_t n);

// Returns INVALID if there are too many containers or commas. The error message starts with `what`, such as "the body
// has".
enum status json_count_check(const struct json_count *count, const char *what);
