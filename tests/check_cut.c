// SPDX-License-Identifier: Apache-2.0
// Tests that texts are divided at sentences, lines, blocks of code and elements of JSON, and that what remains of them
// is well formed.
#include <jansson.h>
#include <string.h>

#include "lib/base/mem.h"
#include "lib/base/random.h"
#include "lib/base/utf8.h"
#include "lib/text/cut.h"
#include "lib/text/unicode.h"
#include "tests/suite.h"

// Returns the text with '|' between its units.
static char *divided(const char *text)
{
    struct cut_units units = cut_units_create(text, strlen(text));
    struct bytes out = {0};
    for (int i = 0; i < units.n; i++) {
        if (i) bytes_add(&out, "|", 1);
        bytes_add(&out, text + units.units[i].range.start, units.units[i].range.end - units.units[i].range.start);
    }
    bytes_add(&out, "", 1);
    cut_units_free(&units);
    return out.data;
}

// Returns what remains if the units for which `pattern` has a '1' are kept.
static char *remains(const char *text, const char *pattern)
{
    struct cut_units units = cut_units_create(text, strlen(text));
    bool *keep = mem_alloc_array((size_t)units.n + 1, sizeof *keep);
    struct text_range *ranges = mem_alloc_array((size_t)units.n + 1, sizeof *ranges);
    ck_assert_int_eq((int)strlen(pattern), units.n);
    for (int i = 0; i < units.n; i++)
        keep[i] = pattern[i] == '1';
    int n = cut_kept(&units, keep, ranges);
    struct bytes out = {0};
    for (int i = 0; i < n; i++)
        bytes_add(&out, text + ranges[i].start, ranges[i].end - ranges[i].start);
    bytes_add(&out, "", 1);
    free(keep);
    free(ranges);
    cut_units_free(&units);
    return out.data;
}

#define ASSERT_DIVIDED(text, expected)                                                                                 \
    do {                                                                                                               \
        char *found = divided(text);                                                                                   \
        ck_assert_str_eq(found, expected);                                                                             \
        free(found);                                                                                                   \
    } while (0)
#define ASSERT_REMAINS(text, pattern, expected)                                                                        \
    do {                                                                                                               \
        char *found = remains(text, pattern);                                                                          \
        ck_assert_str_eq(found, expected);                                                                             \
        free(found);                                                                                                   \
    } while (0)

START_TEST(prose_is_divided_at_sentences_and_lines)
{
    ASSERT_DIVIDED("The lighthouse was built in the year 1875. It has a height of 31.5 metres (over 100 feet).\n\n"
                   "Nobody has lived there since the war ended.\n",
                   "The lighthouse was built in the year 1875. |It has a height of 31.5 metres (over 100 feet).|\n\n|"
                   "Nobody has lived there since the war ended.\n");
    ASSERT_DIVIDED(
        "Yes. No. It depends on the weather of that day, he said. \"Ask her about it tomorrow morning!\" Fine.",
        "Yes. No. It depends on the weather of that day, he said. |\"Ask her about it tomorrow morning!\" Fine.");
    ASSERT_DIVIDED("灯台は千八百七十五年に建てられました。高さは三十一メートルです。今は誰も住んでいません。",
                   "灯台は千八百七十五年に建てられました。|高さは三十一メートルです。|今は誰も住んでいません。");
}
END_TEST

START_TEST(a_heading_is_joined_with_its_line)
{
    ASSERT_DIVIDED(
        "# Results\n\nThe second run was faster than the first.\nThe third one failed because of a full disk.\n",
        "# Results\n\nThe second run was faster than the first.\n|"
        "The third one failed because of a full disk.\n");
}
END_TEST

START_TEST(the_end_of_a_line_remains_with_a_part_of_the_line)
{
    const char *text = "The first sentence of the line is here. The second sentence of it is here.\n```\nx = 1\n```\n";
    ASSERT_REMAINS(text, "1001", "The first sentence of the line is here. \n```\nx = 1\n```\n");
    ASSERT_REMAINS(text, "0001", "```\nx = 1\n```\n");
}
END_TEST

START_TEST(a_long_sentence_is_divided_at_a_blank)
{
    char text[3000];
    memset(text, 'a', sizeof text);
    text[sizeof text - 1] = 0;
    struct cut_units units = cut_units_create(text, sizeof text - 1);
    ck_assert_int_eq(units.n, 1);
    cut_units_free(&units);
    for (int i = 99; i < 2900; i += 100)
        text[i] = ' ';
    units = cut_units_create(text, sizeof text - 1);
    ck_assert_int_eq(units.n, 3);
    ck_assert_uint_eq(units.units[0].range.end, 1000 + 0);
    cut_units_free(&units);
}
END_TEST

// Code is divided at blank lines only.
START_TEST(code_is_not_shredded)
{
    const char *code = "def f(x):\n    y = x. real\n    return y\n\ndef g(x):\n    # Note. A comment. Another one.\n"
                       "    return f(x)\n";
    ASSERT_DIVIDED(code, "def f(x):\n    y = x. real\n    return y\n\n|"
                         "def g(x):\n    # Note. A comment. Another one.\n    return f(x)\n");
}
END_TEST

static char *fenced_block(int lines)
{
    struct bytes text = {0};
    bytes_add(&text, "```c\n", 5);
    for (int i = 0; i < lines; i++) {
        char line[64];
        bytes_add(&text, line,
                  (size_t)snprintf(line, sizeof line, "value[%d] = next(value[%d]);\n%s", i, i, i % 4 ? "" : "\n"));
    }
    bytes_add(&text, "```\n", 5);
    return text.data;
}

START_TEST(a_short_fenced_block_is_one_unit)
{
    char *block = fenced_block(6);
    ASSERT_REMAINS(block, "0", "");
    ASSERT_REMAINS(block, "1", block);
    free(block);
}
END_TEST

START_TEST(both_fences_remain_with_any_part_of_a_long_block)
{
    char *block = fenced_block(60);
    struct cut_units units = cut_units_create(block, strlen(block));
    ck_assert_int_eq(units.kind, CUT_CODE);
    ck_assert_int_eq(units.n, 18);
    cut_units_free(&units);
    ASSERT_REMAINS(block, "000000000000000000", "");
    ASSERT_REMAINS(block, "100000000000000001", ""); // fences alone
    ASSERT_REMAINS(block, "010000000000000000", "```c\nvalue[0] = next(value[0]);\n\n```\n");
    free(block);
}
END_TEST

START_TEST(json_remains_json)
{
    const char *list = "[{\"a\": \"x, ]\"}, [1, 2],\n 3e5 , \"\\\"\" ]";
    ASSERT_DIVIDED(list, "[|{\"a\": \"x, ]\"}, |[1, 2],\n |3e5 , |\"\\\"\" |]");
    ASSERT_REMAINS(list, "000000", "[]");
    ASSERT_REMAINS(list, "001000", "[[1, 2]]");
    ASSERT_REMAINS(list, "010100", "[{\"a\": \"x, ]\"}, 3e5]");
    ASSERT_REMAINS(list, "000010", "[\"\\\"\" ]");
    ASSERT_REMAINS("{\"n\": 3, \"note\": \"a. b\", \"rows\": {\"of\": [10, 20, 30]}, \"x\": [1]}", "00100",
                   "{\"n\": 3, \"note\": \"a. b\", \"rows\": {\"of\": [20]}, \"x\": [1]}");
    ASSERT_DIVIDED("{\"note\": \"A sentence that is long enough. Another sentence that is long enough.\"}",
                   "{\"note\": \"A sentence that is long enough. Another sentence that is long enough.\"}");
    ASSERT_DIVIDED(" [ ] ", " [ |] ");
}
END_TEST

START_TEST(lines_of_json_are_not_divided)
{
    const char *text = "{\"text\": \"A sentence that is long enough. Another sentence that is long enough.\"}\n"
                       "{\"text\": \"A third sentence that is long enough. A fourth one that is long.\"} trailing\n";
    struct cut_units units = cut_units_create(text, strlen(text));
    ck_assert_int_eq(units.n, 2);
    cut_units_free(&units);
}
END_TEST

// --- random texts

static const char *const parts[] = {"word ",
                                    "Sentence end. ",
                                    "\n",
                                    "\n\n",
                                    "```\n",
                                    "```c\n",
                                    "~~~\n",
                                    "    indented;\n",
                                    "}\n",
                                    "{\"a\": [1, 2]}\n",
                                    "[",
                                    "]",
                                    ", ",
                                    "\"",
                                    "é",
                                    "。",
                                    "🙂",
                                    "- item\n",
                                    "x",
                                    ". ",
                                    "\t",
                                    "\r\n",
                                    "a long part of a sentence without any end ",
                                    "`code`",
                                    "```",
                                    "\u2026",
                                    ") "};

static struct bytes random_text(struct random_source *state)
{
    struct bytes text = {0};
    int n = (int)(random_next(state) % 60);
    for (int i = 0; i < n; i++) {
        const char *part = parts[random_next(state) % (sizeof parts / sizeof *parts)];
        for (uint64_t times = random_next(state) % 16 ? 1 : 40; times; times--)
            bytes_add(&text, part, strlen(part));
    }
    bytes_add(&text, "", 1);
    text.n--;
    return text;
}

// Counts the lines that open or close a block, as CommonMark does. Returns true if a block is open at the end.
static bool fence_is_open(const char *text)
{
    char open = 0;
    size_t length = 0;
    for (const char *line = text; *line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : line + strlen(line)) {
        const char *c = line;
        while (c < line + 3 && *c == ' ')
            c++;
        size_t n = strspn(c, *c == '~' ? "~" : "`"), rest = strcspn(c + n, "\n");
        if (n < 3) continue;
        if (open && *c == open && n >= length && strspn(c + n, " \t\r") == rest) {
            open = 0;
        } else if (!open && (*c == '~' || !memchr(c + n, '`', rest))) {
            open = *c;
            length = n;
        }
    }
    return open;
}

static void check_remains(const struct bytes *text, const struct cut_units *units, bool *keep)
{
    struct text_range *ranges = mem_alloc_array((size_t)units->n + 1, sizeof *ranges);
    int n = cut_kept(units, keep, ranges);
    struct bytes out = {0};
    for (int i = 0; i < n; i++) {
        ck_assert_uint_lt(ranges[i].start, ranges[i].end);
        ck_assert_uint_le(ranges[i].end, text->n);
        if (i) ck_assert_uint_gt(ranges[i].start, ranges[i - 1].end);
        bytes_add(&out, text->data + ranges[i].start, ranges[i].end - ranges[i].start);
    }
    ck_assert(utf8_valid(out.data ? out.data : "", out.n, NULL));
    bytes_add(&out, "", 1);
    if (!fence_is_open(text->data)) ck_assert_msg(!fence_is_open(out.data), "%s became %s", text->data, out.data);
    json_t *before = json_loadb(text->data, text->n, 0, NULL), *after = json_loads(out.data, 0, NULL);
    if (before) ck_assert_ptr_nonnull(after);
    json_decref(before);
    json_decref(after);
    bytes_free(&out);
    free(ranges);
}

START_TEST(random_texts_remain_well_formed)
{
    struct random_source state = random_stream(1, (uint64_t)_i);
    for (int round = 0; round < 500; round++) {
        struct bytes text = random_text(&state);
        struct cut_units units = cut_units_create(text.data, text.n);
        bool *keep = mem_alloc_array((size_t)units.n + 1, sizeof *keep);
        size_t at = 0;
        for (int i = 0; i < units.n; i++) {
            ck_assert_uint_eq(units.units[i].range.start, at);
            at = units.units[i].range.end;
            keep[i] = random_next(&state) % 2;
        }
        ck_assert_uint_eq(at, text.n);
        check_remains(&text, &units, keep);
        free(keep);
        cut_units_free(&units);
        bytes_free(&text);
    }
}
END_TEST

START_TEST(kept_units_remain_whole)
{
    const char *text = "One sentence that is long enough for a unit. Two sentences that are long enough for it.\n";
    struct cut_units units = cut_units_create(text, strlen(text));
    bool keep[8] = {true, true, true};
    struct text_range ranges[8];
    ck_assert_int_eq(cut_kept(&units, keep, ranges), 1);
    ck_assert_uint_eq(ranges[0].end, strlen(text));
    cut_units_free(&units);
}
END_TEST

SUITE("cut")
{
    TEST(prose_is_divided_at_sentences_and_lines);
    TEST(a_heading_is_joined_with_its_line);
    TEST(the_end_of_a_line_remains_with_a_part_of_the_line);
    TEST(a_long_sentence_is_divided_at_a_blank);
    TEST(code_is_not_shredded);
    TEST(a_short_fenced_block_is_one_unit);
    TEST(both_fences_remain_with_any_part_of_a_long_block);
    TEST(json_remains_json);
    TEST(lines_of_json_are_not_divided);
    LOOP(random_texts_remain_well_formed, 0, 20);
    TEST(kept_units_remain_whole);
}
