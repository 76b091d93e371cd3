// SPDX-License-Identifier: Apache-2.0
#include "lib/base/utf8.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

// Returns the length of a character that starts with `lead`, or 0 if no character starts with this byte.
static size_t utf8_sequence_bytes(unsigned char lead)
{
    if (lead < 0x80) return 1;
    if (lead >= 0xC2 && lead <= 0xDF) return 2;
    if (lead >= 0xE0 && lead <= 0xEF) return 3;
    if (lead >= 0xF0 && lead <= 0xF4) return 4;
    return 0;
}

// Returns true if `second` may follow `lead`. The range of the second byte excludes overlong forms (E0, F0), surrogates
// (ED) and characters above U+10FFFF (F4).
static bool utf8_second_byte_allowed(unsigned char lead, unsigned char second)
{
    switch (lead) {
    case 0xE0: return second >= 0xA0 && second <= 0xBF;
    case 0xED: return second >= 0x80 && second <= 0x9F;
    case 0xF0: return second >= 0x90 && second <= 0xBF;
    case 0xF4: return second >= 0x80 && second <= 0x8F;
    default: return second >= 0x80 && second <= 0xBF;
    }
}

// Returns how many bytes of the character at `s` are present: its whole length, fewer if the text ends inside it, or 0
// if it is malformed.
static size_t utf8_bytes_at(const unsigned char *s, size_t left, size_t *length_p)
{
    size_t length = utf8_sequence_bytes(s[0]);
    *length_p = length;
    for (size_t i = 1; i < length; i++) {
        if (i == left) return i;
        if (i == 1 ? !utf8_second_byte_allowed(s[0], s[1]) : (s[i] & 0xC0) != 0x80) return 0;
    }
    return length;
}

// Returns the number of ASCII characters before the first block of 8 bytes that has another character.
static size_t ascii_blocks(const unsigned char *s, size_t n)
{
    size_t i = 0;
    for (uint64_t block; i + sizeof block <= n; i += sizeof block) {
        memcpy(&block, s + i, sizeof block);
        if (block & 0x8080808080808080u) break;
    }
    return i;
}

bool utf8_valid(const char *text, size_t size_bytes, size_t *bad_p)
{
    const unsigned char *s = (const unsigned char *)text;
    for (size_t i = 0; i < size_bytes;) {
        size_t length;
        if (s[i] < 0x80) {
            i += 1 + ascii_blocks(s + i + 1, size_bytes - i - 1);
            continue;
        }
        size_t have = utf8_bytes_at(s + i, size_bytes - i, &length);
        if (have == 0 || have < length) {
            if (bad_p) *bad_p = i;
            return false;
        }
        i += length;
    }
    return true;
}

size_t utf8_incomplete_tail(const char *text, size_t size_bytes)
{
    const unsigned char *s = (const unsigned char *)text;
    size_t longest = size_bytes < 3 ? size_bytes : 3;
    for (size_t back = 1; back <= longest; back++) {
        size_t length;
        size_t have = utf8_bytes_at(s + size_bytes - back, back, &length);
        if (have == back && have < length) return back;
    }
    return 0;
}

uint32_t utf8_code_point(const char *character, size_t n)
{
    const unsigned char *b = (const unsigned char *)character;
    switch (n) {
    case 1: return b[0];
    case 2: return (b[0] & 0x1fu) << 6 | (b[1] & 0x3fu);
    case 3: return (b[0] & 0xfu) << 12 | (b[1] & 0x3fu) << 6 | (b[2] & 0x3fu);
    default: return 0xffff;
    }
}

bool utf8_is_control(uint32_t c)
{
    return c < 0x20 || (c >= 0x7f && c < 0xa0) || c == 0x200e || c == 0x200f || (c >= 0x2028 && c <= 0x202e) ||
           (c >= 0x2066 && c <= 0x2069);
}

bool utf8_has_control(const char *text, size_t size_bytes)
{
    for (size_t i = 0, n; i < size_bytes; i += n) {
        n = utf8_sequence_bytes((unsigned char)text[i]);
        if (utf8_is_control(utf8_code_point(text + i, n))) return true;
    }
    return false;
}

void utf8_mend(char *text)
{
    size_t bad;
    while (!utf8_valid(text, strlen(text), &bad))
        text[bad] = '?';
}

void utf8_clean(char *text)
{
    utf8_mend(text);
    for (size_t n; *text; text += n) {
        n = utf8_sequence_bytes((unsigned char)*text);
        if (utf8_is_control(utf8_code_point(text, n))) memset(text, ' ', n);
    }
}

void utf8_format_list(char *text, size_t size_bytes, const char *format, va_list args)
{
    int whole_bytes = vsnprintf(text, size_bytes, format, args);
    size_t have = size_bytes - 1;
    if (whole_bytes > 0 && (size_t)whole_bytes > have) text[have - utf8_incomplete_tail(text, have)] = 0;
}

void utf8_format(char *text, size_t size_bytes, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    utf8_format_list(text, size_bytes, format, args);
    va_end(args);
}
