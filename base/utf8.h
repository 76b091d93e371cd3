// SPDX-License-Identifier: Apache-2.0
// UTF-8 as of RFC 3629: no overlong forms, no surrogates, nothing above U+10FFFF.
#pragma once

#include <stdbool.h>
#include <stddef.h>

// True when all `size_bytes` bytes are well-formed; else `*bad_p` (may be NULL) is the first wrong byte.
bool utf8_valid(const char *text, size_t size_bytes, size_t *bad_p);

// Bytes at the end of `text` that begin a character which more bytes could still complete (0..3).
// What comes before them is either well-formed or can never become so.
size_t utf8_incomplete_tail(const char *text, size_t size_bytes);
