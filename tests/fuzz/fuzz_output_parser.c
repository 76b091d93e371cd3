// SPDX-License-Identifier: Apache-2.0
// A byte for the form of calls and for how the answer ends, then the answer. The parts do not depend on how the answer
// is cut into pieces. Content and reasoning are text of the answer in its order. An answer without calls has all of its
// text but blanks.
#include "lib/text/output_parser.h"
#include "lib/text/unicode.h"
#include "tests/fuzz/fuzz.h"

enum { ANSWER_MAX = 4096 };

struct parts {
    struct bytes text; // a byte for the kind before each change of kind
    int last;
    const struct output_parser *parser;
    const uint8_t *answer;
    size_t size, at; // end of the last part of the answer
    enum output_cut cut;
    int n_calls;
};

static void add_part(void *user, enum output_kind kind, const char *text, size_t n)
{
    struct parts *parts = user;
    FUZZ_CHECK(n > 0);
    if (kind == OUTPUT_REASONING || kind == OUTPUT_CONTENT) {
        size_t at = output_parser_used(parts->parser);
        FUZZ_CHECK(at >= parts->at && at + n <= parts->size && memcmp(parts->answer + at, text, n) == 0);
        parts->at = at + n;
    }
    FUZZ_CHECK(kind != OUTPUT_ARGUMENTS || parts->last == OUTPUT_CALL || parts->last == OUTPUT_ARGUMENTS);
    parts->n_calls += kind == OUTPUT_CALL;
    if (parts->last != (int)kind || kind == OUTPUT_CALL) bytes_add(&parts->text, &"rcfa"[kind], 1);
    parts->last = (int)kind;
    bytes_add(&parts->text, text, n);
}

static void parse(const struct output_syntax *syntax, int options, const json_t *tools, const uint8_t *answer,
                  size_t size, size_t piece, struct parts *parts)
{
    struct output_parser *p = output_parser_create(syntax, options & 1, tools);
    *parts = (struct parts){.last = -1, .parser = p, .answer = answer, .size = size};
    for (size_t i = 0; i < size; i += piece)
        output_parser_push(p, (const char *)answer + i, piece < size - i ? piece : size - i, add_part, parts);
    output_parser_finish(p, options & 2, add_part, parts);
    parts->cut = output_parser_cut(p);
    FUZZ_CHECK(output_parser_used(p) <= size);
    output_parser_free(p);
}

static bool is_word(char c)
{
    return c != ' ' && c != '\n' && c != '\r' && c != '\t';
}

static void check_text(const struct parts *parts, const uint8_t *answer, size_t size)
{
    size_t shown = 0, words = 0;
    for (size_t i = 0; i < parts->text.n; i++)
        shown += is_word(parts->text.data[i]);
    for (size_t i = 0; i < size; i++)
        words += is_word((char)answer[i]);
    FUZZ_CHECK(parts->n_calls || parts->cut || shown == words + (parts->last >= 0));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!size || size > ANSWER_MAX) return 0;
    const enum output_calls form = data[0] % 4;
    const int options = data[0] / 4 % 4;
    const struct output_syntax syntax = {form, data[0] & 16 ? "<think>" : NULL, data[0] & 16 ? "</think>" : NULL};
    const int known = syntax.reasoning_end ? options : options & ~1;
    json_t *tools = data[0] & 32 ? NULL : json_pack("{s:b,s:b}", "f", 1, "get_weather", 1);
    struct parts whole, bytes;
    parse(&syntax, known, tools, data + 1, size - 1, size, &whole);
    parse(&syntax, known, tools, data + 1, size - 1, 1, &bytes);
    FUZZ_CHECK(whole.text.n == bytes.text.n && whole.cut == bytes.cut);
    FUZZ_CHECK(!whole.text.n || memcmp(whole.text.data, bytes.text.data, whole.text.n) == 0);
    FUZZ_CHECK(whole.cut != OUTPUT_CUT_CALL || whole.n_calls);
    FUZZ_CHECK(form != OUTPUT_CALLS_NONE || !whole.n_calls);
    if (!syntax.reasoning_end) check_text(&whole, data + 1, size - 1);
    bytes_free(&whole.text);
    bytes_free(&bytes.text);
    json_decref(tools);
    return 0;
}
