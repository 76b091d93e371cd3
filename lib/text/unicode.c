// SPDX-License-Identifier: Apache-2.0
#include "lib/text/unicode.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "lib/base/mem.h"
#include "lib/base/utf8.h"

void bytes_reserve(struct bytes *bytes, size_t more)
{
    if (bytes->capacity - bytes->n >= more) return;
    size_t capacity = bytes->capacity ? bytes->capacity : 64;
    while (capacity - bytes->n < more)
        capacity *= 2;
    bytes->data = mem_resize(bytes->data, capacity, 1);
    bytes->capacity = capacity;
}

void bytes_add(struct bytes *bytes, const char *data, size_t n)
{
    if (!n) return;
    bytes_reserve(bytes, n);
    memcpy(bytes->data + bytes->n, data, n);
    bytes->n += n;
}

void bytes_free(struct bytes *bytes)
{
    free(bytes->data);
    *bytes = (struct bytes){0};
}

int32_t utf8_decode(const char *text, size_t *length_p)
{
    const unsigned char *s = (const unsigned char *)text;
    size_t length = utf8_length(text[0]);
    *length_p = length;
    switch (length) {
    case 1: return s[0];
    case 2: return (s[0] & 0x1F) << 6 | (s[1] & 0x3F);
    case 3: return (s[0] & 0x0F) << 12 | (s[1] & 0x3F) << 6 | (s[2] & 0x3F);
    default: return (s[0] & 0x07) << 18 | (s[1] & 0x3F) << 12 | (s[2] & 0x3F) << 6 | (s[3] & 0x3F);
    }
}

size_t utf8_encode(int32_t c, char out[4])
{
    return (size_t)utf8proc_encode_char(c, (utf8proc_uint8_t *)out);
}

size_t utf8_before(const char *text, size_t end)
{
    do
        end--;
    while (end > 0 && (text[end] & 0xC0) == 0x80);
    return end;
}

bool unicode_is_space(int32_t c)
{
    return (c >= 9 && c <= 13) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) ||
           c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

// Characters that Unicode 15.1 and 16 added.
struct range {
    int32_t first, last;
};

static const struct range new_letters[] = {
    {0x1C89, 0x1C8A},   {0xA7CB, 0xA7CD},   {0xA7DA, 0xA7DC},   {0x105C0, 0x105F3}, {0x10D4A, 0x10D65},
    {0x10D6F, 0x10D85}, {0x10EC2, 0x10EC4}, {0x11380, 0x11389}, {0x1138B, 0x1138B}, {0x1138E, 0x1138E},
    {0x11390, 0x113B5}, {0x113B7, 0x113B7}, {0x113D1, 0x113D1}, {0x113D3, 0x113D3}, {0x11BC0, 0x11BE0},
    {0x13460, 0x143FA}, {0x16100, 0x1611D}, {0x16D40, 0x16D6C}, {0x18CFF, 0x18CFF}, {0x1E5D0, 0x1E5ED},
    {0x1E5F0, 0x1E5F0}, {0x2EBF0, 0x2EE5D}};
static const struct range new_numbers[] = {{0x10D40, 0x10D49}, {0x116D0, 0x116E3}, {0x11BF0, 0x11BF9},
                                           {0x16130, 0x16139}, {0x16D70, 0x16D79}, {0x1CCF0, 0x1CCF9},
                                           {0x1E5F1, 0x1E5FA}};

// Returns true if the category of `c` is one of `first` to `last`, or if `c` is in one of the ranges [n].
static bool has_category(int32_t c, int first, int last, const struct range *ranges, size_t n)
{
    int category = utf8proc_category(c);
    if (category != UTF8PROC_CATEGORY_CN) return category >= first && category <= last;
    for (size_t i = 0; i < n; i++)
        if (c >= ranges[i].first && c <= ranges[i].last) return true;
    return false;
}

bool unicode_is_letter(int32_t c)
{
    if (c >= 0x4E00 && c <= 0x9FFF) return true; // the most frequent ideographs
    return has_category(c, UTF8PROC_CATEGORY_LU, UTF8PROC_CATEGORY_LO, new_letters,
                        sizeof new_letters / sizeof *new_letters);
}

bool unicode_is_number(int32_t c)
{
    return has_category(c, UTF8PROC_CATEGORY_ND, UTF8PROC_CATEGORY_NO, new_numbers,
                        sizeof new_numbers / sizeof *new_numbers);
}

bool unicode_is_word(int32_t c)
{
    if (c == 0x200C || c == 0x200D) return true; // zero-width joiners
    switch (utf8proc_category(c)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC: return true;
    default: return false;
    }
}

// Returns the length of the ill-formed part at `data`: the longest prefix of a character, at least one byte.
static size_t ill_formed_length(const char *data, size_t n)
{
    size_t most = n < 3 ? n : 3;
    for (size_t length = most; length > 1; length--)
        if (utf8_incomplete_tail(data, length) == length) return length;
    return 1;
}

size_t utf8_repair(struct bytes *out, const char *data, size_t n, bool final)
{
    size_t at = 0, keep = final ? 0 : utf8_incomplete_tail(data, n);
    while (at < n - keep) {
        size_t bad;
        if (utf8_valid(data + at, n - keep - at, &bad)) {
            bytes_add(out, data + at, n - keep - at);
            break;
        }
        bytes_add(out, data + at, bad);
        at += bad;
        bytes_add(out, "\xEF\xBF\xBD", 3);
        at += ill_formed_length(data + at, n - keep - at);
    }
    return n - keep;
}
