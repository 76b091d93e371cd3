// SPDX-License-Identifier: Apache-2.0
// UTF-8 as defined by RFC 3629: no overlong forms, no surrogates, nothing above U+10FFFF.
#pragma once

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// Returns true if all `size_bytes` bytes are well-formed. Otherwise `*bad_p` (may be NULL) is the index of the first
// byte of the first malformed character.
bool utf8_valid(const char *text, size_t size_bytes, size_t *bad_p);

// Returns the size (0 to 3 bytes) of an incomplete character at the end of `text`, which further bytes could complete.
// Further bytes do not change whether the text before this character is well-formed.
size_t utf8_incomplete_tail(const char *text, size_t size_bytes);

// Returns the code point of a character of `n` well-formed bytes. Returns 0xffff for all characters beyond U+FFFF.
uint32_t utf8_code_point(const char *character, size_t n);

// Returns true if a terminal or a pager acts on the code point: C0 and C1 controls, line separators, and marks and
// overrides of the text direction, which change the order in which a line is shown.
bool utf8_is_control(uint32_t c);
bool utf8_has_control(const char *text, size_t size_bytes); // true if a character of the well-formed text is a control

// Replaces each byte that is not part of a well-formed character by a question mark.
void utf8_mend(char *text);

// Makes a text of unknown origin fit to be shown: mends it, and replaces controls by blanks. The time of the worst case
// grows with the square of the size.
void utf8_clean(char *text);

// Format text like snprintf() and vsnprintf(), but never cut inside a character.
void utf8_format(char *text, size_t size_bytes, const char *format, ...) __attribute__((format(printf, 3, 4)));
void utf8_format_list(char *text, size_t size_bytes, const char *format, va_list args)
    __attribute__((format(printf, 3, 0)));
