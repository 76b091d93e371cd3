// SPDX-License-Identifier: Apache-2.0
// Handles characters of well-formed UTF-8 and the Unicode classes that tokenizers use, and has a growable byte buffer.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct bytes {
    char *data; // owned, NULL while empty
    size_t n, capacity;
};

void bytes_add(struct bytes *bytes, const char *data, size_t n);
void bytes_reserve(struct bytes *bytes, size_t more);
void bytes_free(struct bytes *bytes);

// Returns the bytes of the character that starts with `lead`: 1 to 4 in well-formed text.
static inline size_t utf8_length(char lead)
{
    unsigned char c = (unsigned char)lead;
    return c < 0x80 ? 1 : c < 0xE0 ? 2 : c < 0xF0 ? 3 : 4;
}

// Returns the character at `text` (well-formed) and its length.
int32_t utf8_decode(const char *text, size_t *length_p);
size_t utf8_encode(int32_t c, char out[4]);

// Returns the start of the character that ends before `end` (well-formed text, end > 0).
size_t utf8_before(const char *text, size_t end);

// The classes of Unicode 16, which Hugging Face's library has. utf8proc has the classes of an older version.
bool unicode_is_space(int32_t c);  // White_Space
bool unicode_is_letter(int32_t c); // L
bool unicode_is_number(int32_t c); // N
bool unicode_is_word(int32_t c);   // \w of Unicode regular expressions: letters, marks, digits, connectors

// Appends `data` to `out` and replaces each ill-formed part by one U+FFFD ("maximal subparts", Unicode chapter 3.9). An
// incomplete character at the end is not consumed unless `final` is true. Returns the number of bytes consumed.
size_t utf8_repair(struct bytes *out, const char *data, size_t n, bool final);
