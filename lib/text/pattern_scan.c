// SPDX-License-Identifier: Apache-2.0
#include "lib/text/pattern_scan.h"

#include <stdint.h>
#include <string.h>

#include "lib/text/unicode.h"

#define CONTRACTIONS "'s|'t|'re|'ve|'m|'ll|'d"
#define ANY_BEFORE   "(?i:" CONTRACTIONS ")|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|"
#define LINE_ENDS    "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

static const struct pattern_scan scans[] = {
    {.source = CONTRACTIONS "| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"}, // GPT-2
    {.source = ANY_BEFORE "\\p{N}{1,3}" LINE_ENDS,                                          // Llama 3
     .any_case = true,
     .any_before_word = true,
     .digits_max = 3,
     .line_ends = true},
    {.source = ANY_BEFORE "\\p{N}" LINE_ENDS, // Qwen 2
     .any_case = true,
     .any_before_word = true,
     .digits_max = 1,
     .line_ends = true},
};

const struct pattern_scan *pattern_scan_find(const char *source)
{
    for (size_t i = 0; i < sizeof scans / sizeof *scans; i++)
        if (!strcmp(scans[i].source, source)) return &scans[i];
    return NULL;
}

// ---- Classes of characters.

enum { LETTER = 1, NUMBER = 2, SPACE = 4, OTHER = 8, LINE_END = 16 }; // a line end is also a SPACE

static const uint8_t ascii_class[128] = {
    ['\t'] = SPACE,
    ['\n'] = SPACE | LINE_END,
    ['\v'] = SPACE,
    ['\f'] = SPACE,
    ['\r'] = SPACE | LINE_END,
    [' '] = SPACE,
    ['0' ... '9'] = NUMBER,
    ['A' ... 'Z'] = LETTER,
    ['a' ... 'z'] = LETTER,
    [0 ... '\b'] = OTHER, // control characters and punctuation
    ['\v' + 3 ... 31] = OTHER,
    ['!' ... '/'] = OTHER,
    [':' ... '@'] = OTHER,
    ['[' ... '`'] = OTHER,
    ['{' ... 127] = OTHER,
};

// Returns the class of the character at `at`, and its length.
static unsigned class_at(const char *text, size_t at, size_t *length_p)
{
    unsigned char c = (unsigned char)text[at];
    if (c < 128) {
        *length_p = 1;
        return ascii_class[c];
    }
    int32_t wide = utf8_decode(text + at, length_p);
    if (unicode_is_letter(wide)) return LETTER;
    if (unicode_is_number(wide)) return NUMBER;
    return unicode_is_space(wide) ? SPACE : OTHER;
}

// Returns the end of the longest run of characters of `classes` that starts at `at`, which may be the end of the text.
static size_t run_end(const char *text, size_t n, size_t at, unsigned classes)
{
    for (size_t length; at < n && class_at(text, at, &length) & classes; at += length)
        ;
    return at;
}

// ---- The alternatives of the patterns.

// Returns the end of a contraction at `at`, which is an apostrophe, or `at` if there is none.
static size_t contraction_end(const struct pattern_scan *scan, const char *text, size_t n, size_t at)
{
    static const char *const endings[] = {"s", "t", "re", "ve", "m", "ll", "d"};
    char next[2] = {0};
    for (size_t i = 0; i < 2 && at + 1 + i < n; i++) {
        next[i] = text[at + 1 + i];
        if (scan->any_case && next[i] >= 'A' && next[i] <= 'Z') next[i] = (char)(next[i] - 'A' + 'a');
    }
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++)
        if (next[0] == endings[i][0] && (!endings[i][1] || next[1] == endings[i][1]))
            return at + 1 + strlen(endings[i]);
    // Regular expressions take the long s (U+017F) as another case of "s".
    return scan->any_case && !memcmp(next, "\xC5\xBF", 2) ? at + 3 : at;
}

// Returns the end of the word at `at`, with the character before it if the pattern takes one, or `at`.
static size_t word_end(const struct pattern_scan *scan, const char *text, size_t n, size_t at, unsigned class,
                       size_t length)
{
    if (class & LETTER) return run_end(text, n, at + length, LETTER);
    bool before = scan->any_before_word ? !(class & (NUMBER | LINE_END)) : text[at] == ' ';
    if (!before) return at;
    size_t end = run_end(text, n, at + length, LETTER);
    return end > at + length ? end : at;
}

static size_t number_end(const struct pattern_scan *scan, const char *text, size_t n, size_t at)
{
    if (!scan->digits_max) {
        size_t start = at + (text[at] == ' '), end = run_end(text, n, start, NUMBER);
        return end > start ? end : at;
    }
    for (size_t i = 0, length; i < scan->digits_max && at < n && class_at(text, at, &length) & NUMBER; i++)
        at += length;
    return at;
}

static size_t punctuation_end(const struct pattern_scan *scan, const char *text, size_t n, size_t at)
{
    size_t start = at + (text[at] == ' '), end = run_end(text, n, start, OTHER);
    if (end == start) return at;
    if (!scan->line_ends) return end;
    while (end < n && (text[end] == '\r' || text[end] == '\n'))
        end++;
    return end;
}

// Returns the end of the blanks that match at `at`: up to the last line end where that counts, else all but the last
// blank before a character, which belongs to the next match.
static size_t blanks_end(const struct pattern_scan *scan, const char *text, size_t n, size_t at)
{
    size_t end = at, last = at, line_end = 0;
    for (size_t length, class; end < n && (class = class_at(text, end, &length)) & SPACE; end += length) {
        last = end;
        if (class & LINE_END) line_end = end + 1;
    }
    if (scan->line_ends && line_end) return line_end;
    return end < n && last > at ? last : end;
}

size_t pattern_scan_match(const struct pattern_scan *scan, const char *text, size_t n, size_t from)
{
    size_t length, end;
    if (text[from] == '\'' && (end = contraction_end(scan, text, n, from)) > from) return end;
    unsigned class = class_at(text, from, &length);
    if ((end = word_end(scan, text, n, from, class, length)) > from) return end;
    if ((end = number_end(scan, text, n, from)) > from) return end;
    if ((end = punctuation_end(scan, text, n, from)) > from) return end;
    return blanks_end(scan, text, n, from);
}
