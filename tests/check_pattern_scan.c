// SPDX-License-Identifier: Apache-2.0
// The scanners of lib/text/pattern_scan.h find the same matches as PCRE2 does with the same pattern, in random texts of
// the characters that the patterns tell apart.
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "lib/text/pattern.h"
#include "lib/text/pattern_scan.h"
#include "lib/text/unicode.h"
#include "tests/suite.h"
#include "text_data.h"

#define CONTRACTIONS "'s|'t|'re|'ve|'m|'ll|'d"
#define GPT2         CONTRACTIONS "| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
#define NEWER(digits)                                                                                                  \
    "(?i:" CONTRACTIONS ")|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" digits                                                      \
    "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

static const char *const sources[] = {GPT2, NEWER("\\p{N}{1,3}"), NEWER("\\p{N}")};

// Characters that are frequent in the random texts, because the patterns treat them in their own way.
static const char *const frequent[] = {" ",
                                       " ",
                                       "\n",
                                       "\r",
                                       "\t",
                                       "'",
                                       "'",
                                       "s",
                                       "S",
                                       "t",
                                       "re",
                                       "VE",
                                       "Ll",
                                       "l",
                                       "d",
                                       "a",
                                       "1",
                                       "23",
                                       ".",
                                       "-",
                                       "\xC5\xBF",
                                       "\xC2\x85",
                                       "\xC2\xA0",
                                       "\xE3\x80\x80",
                                       "\xE1\x9A\x80",
                                       "\xE2\x80\x8B",
                                       "\xE6\x97\xA5",
                                       "\xD9\xA3",
                                       "\xC2\xBD",
                                       "\xCC\x81",
                                       "\xF0\x9F\x98\x80",
                                       "\xE2\x84\xAA",
                                       "\xEF\xBC\x87"};

static size_t random_text(uint64_t *state, size_t max, char *text)
{
    size_t n = 0, most = random_next(state) % max;
    while (n < most) {
        uint64_t r = random_next(state);
        if (r % 8) {
            const char *part = frequent[r / 8 % (sizeof frequent / sizeof *frequent)];
            memcpy(text + n, part, strlen(part));
            n += strlen(part);
        } else {
            // Up to U+07FF, PCRE2 and the scanners have the same classes, however old the Unicode version of PCRE2.
            n += utf8_encode((int32_t)(r / 8 % 0x800), text + n);
        }
    }
    return n;
}

START_TEST(scanners_and_pcre2_find_the_same_matches)
{
    enum { TEXTS = 20000, TEXT_MAX = 60 };
    const char *source = sources[_i];
    char text[TEXT_MAX + 8], *wrapped = mem_format("(?:%s)", source);
    struct pattern *slow, *fast;
    uint64_t state = 7;
    ck_assert_ptr_nonnull(pattern_scan_find(source));
    ck_assert_ptr_null(pattern_scan_find(wrapped)); // PCRE2 runs it
    ck_assert_int_eq(pattern_open_regex(wrapped, &slow), STATUS_OK);
    ck_assert_int_eq(pattern_open_regex(source, &fast), STATUS_OK);
    for (int i = 0; i < TEXTS; i++) {
        size_t n = random_text(&state, TEXT_MAX, text);
        struct pattern_scratch *scratch = pattern_scratch_create(n);
        struct pattern_walk a = pattern_walk_start(slow, scratch, text, n);
        struct pattern_walk b = pattern_walk_start(fast, scratch, text, n);
        for (bool found = true; found;) {
            size_t want_start = 0, want_end = 0, start = 0, end = 0;
            bool found_fast;
            ck_assert_int_eq(pattern_walk_next(&a, &want_start, &want_end, &found), STATUS_OK);
            ck_assert_int_eq(pattern_walk_next(&b, &start, &end, &found_fast), STATUS_OK);
            ck_assert_int_eq(found_fast, found);
            if (!found) break;
            ck_assert_msg(start == want_start, "text %d \"%.*s\": %zu, not %zu", i, (int)n, text, start, want_start);
            ck_assert_msg(end == want_end, "text %d \"%.*s\": %zu, not %zu", i, (int)n, text, end, want_end);
        }
        pattern_scratch_free(scratch);
    }
    pattern_free(slow);
    pattern_free(fast);
    free(wrapped);
}
END_TEST

START_TEST(letters_and_numbers_are_those_of_unicode_16)
{
    int letters = 0, numbers = 0;
    for (int32_t c = 0; c < 0x110000; c++) {
        ck_assert(!unicode_is_letter(c) || !unicode_is_number(c));
        letters += unicode_is_letter(c);
        numbers += unicode_is_number(c);
    }
    ck_assert_int_eq(letters, 141028);
    ck_assert_int_eq(numbers, 1911);
}
END_TEST

SUITE("pattern_scan")
{
    EACH(scanners_and_pcre2_find_the_same_matches, sources);
    TEST(letters_and_numbers_are_those_of_unicode_16);
}
