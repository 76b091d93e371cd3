// SPDX-License-Identifier: Apache-2.0
// Characters of well-formed UTF-8 and the few Unicode classes that tokenizers rely on, plus a growable byte buffer.
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

// Length of the character that `lead` starts; 1..4 in well-formed text.
static inline size_t utf8_length(char lead)
{
    unsigned char c = (unsigned char)lead;
    return c < 0x80 ? 1 : c < 0xE0 ? 2 : c < 0xF0 ? 3 : 4;
}

// The character at `text` (well-formed), its length in `*length_p`.
int32_t utf8_decode(const char *text, size_t *length_p);
size_t utf8_encode(int32_t c, char out[4]);

// Start of the character that ends before `end` (well-formed text, end > 0).
size_t utf8_before(const char *text, size_t end);

bool unicode_is_space(int32_t c); // White_Space
bool unicode_is_word(int32_t c);  // what \w means in Unicode regular expressions: letters, marks, digits, connectors

// Appends `data` to `out` with every ill-formed part as one U+FFFD ("maximal subparts", Unicode chapter 3.9). With
// `final` false an unfinished character at the end is left; the bytes consumed are returned.
size_t utf8_repair(struct bytes *out, const char *data, size_t n, bool final);
