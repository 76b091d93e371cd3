// SPDX-License-Identifier: Apache-2.0
// Reasoning, content and tool calls of answers in the forms of published templates, however the text is cut into
// pieces.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "lib/text/output_parser.h"
#include "tests/suite.h"
#include "tests/test_data.h"
#include "text_data.h"

static const struct output_syntax hermes = {OUTPUT_CALLS_HERMES, "<think>", "</think>"},
                                  llama3 = {OUTPUT_CALLS_LLAMA3, NULL, NULL},
                                  mistral = {OUTPUT_CALLS_MISTRAL, "[THINK]", "[/THINK]"},
                                  plain = {OUTPUT_CALLS_NONE, NULL, NULL};

static json_t *tools; // the request has the tools f, g and g_2

static void create_tools(void)
{
    tools = json_pack("{s:b,s:b,s:b}", "f", 1, "g", 1, "g_2", 1);
}

static void free_tools(void)
{
    json_decref(tools);
}

// Parts are joined to "{r:reasoning}{c:content}{f:name}{a:arguments}".
static const struct answer_case {
    const struct output_syntax *syntax;
    bool reasoning;
    const char *text, *parts;
} cases[] = {
    {&plain, false, " <tool_call>{}</tool_call> <think> \n", "{c: <tool_call>{}</tool_call> <think> \n}"},
    {&hermes, false, "", ""},
    {&hermes, false, " \n", "{c: \n}"},
    {&hermes, false, " \n <tool_call>{\"name\":\"f\"}</tool_call> \n <tool_call> x",
     "{f:f}{a:{}}{c: \n <tool_call> x}"},
    {&hermes, false, " \n <tool_call> <tool_call> \n", "{c: \n <tool_call> <tool_call> \n}"},
    {&hermes, false, " Hello\n\nworld. \n", "{c: Hello\n\nworld. \n}"},
    {&hermes, false, "2 < 3 <tool", "{c:2 < 3 <tool}"},
    // Reasoning
    {&hermes, false, "<think>\nHm.\n\nYes\n</think>\n\nGood. ", "{r:Hm.\n\nYes}{c:Good. }"},
    {&hermes, false, "\n<think></think>\n\nGood", "{c:Good}"},
    {&hermes, false, "<think>cut ", "{r:cut }"},
    {&hermes, true, "\nfrom the prompt</think>x", "{r:from the prompt}{c:x}"},
    {&hermes, false, "a <think>b</think>", "{c:a <think>b</think>}"},
    {&hermes, false, "<think>a</think><think>b</think>", "{r:a}{c:<think>b</think>}"},
    {&mistral, false, "[THINK]a[/THINK]b", "{r:a}{c:b}"},
    // Hermes
    {&hermes, false, "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": [1, {\"y\": \"}\\\"\"}]}}\n</tool_call>",
     "{f:f}{a:{\"x\": [1, {\"y\": \"}\\\"\"}]}}"},
    {&hermes, false,
     "<think>a</think>\n\nI call.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>\n"
     "<tool_call>\n{\"arguments\": {\"a\":1}, \"name\": \"g\"}\n</tool_call>\n",
     "{r:a}{c:I call.\n}{f:f}{a:{}}{f:g}{a:{\"a\":1}}"},
    {&hermes, false, "<tool_call>{\"name\": \"f\"}</tool_call> and text", "{f:f}{a:{}}{c: and text}"},
    {&hermes, false, "<tool_call>{\"name\": \"f\", \"arguments\": \"{\\\"a\\\": 1}\"}</tool_call>",
     "{f:f}{a:{\"a\": 1}}"},
    {&hermes, false, "<tool_call>{\"name\": \"f\", \"arguments\": null, \"more\": [2]}", "{f:f}{a:{}}"},
    {&hermes, false, "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1}, \"arguments\": \"x\"}",
     "{f:f}{a:{\"a\": 1}}"},
    {&hermes, false, "<tool_call>{\"arguments\": {}, \"parameters\": {}, \"name\": \"f\"}", "{f:f}{a:{}}"},
    {&hermes, false, "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"cut", "{f:f}{a:{\"a\": \"cut}"},
    {&hermes, false, "a <tool_call> none </tool_call>\n", "{c:a <tool_call> none </tool_call>\n}"},
    {&hermes, false, "<tool_call>{\"name\": 1, \"arguments\": {}}", "{c:<tool_call>{\"name\": 1, \"arguments\": {}}}"},
    {&hermes, false, "<tool_call>{\"arguments\": {}}", "{c:<tool_call>{\"arguments\": {}}}"},
    {&hermes, false, "<tool_call>{\"name\": \"f", "{c:<tool_call>{\"name\": \"f}"},
    {&hermes, false, "<tool_call>", "{c:<tool_call>}"},
    {&hermes, false,
     "Sure. <tool_call>{\"name\": \"f\"}</tool_call>\nand\n<tool_call>{\"name\": \"g\"}</tool_call> done \n",
     "{c:Sure. }{f:f}{a:{}}{c:\nand\n}{f:g}{a:{}}{c: done \n}"},
    {&hermes, false, "\n<tool_call>{\"name\": \"f\"}</tool_call>\n \n", "{f:f}{a:{}}"},
    {&hermes, false, "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1}}</tool_call>\n <tool",
     "{f:f}{a:{\"a\": 1}}{c:\n <tool}"},
    // Arguments that are not an object
    {&hermes, false, "<tool_call>{\"name\": \"f\", \"arguments\": \"x\"}</tool_call>", "{f:f}{a:\"x\"}"},
    {&hermes, false, "<tool_call>{\"name\": \"f\", \"arguments\": \"[1]\"}</tool_call>", "{f:f}{a:\"[1]\"}"},
    {&hermes, false, "<tool_call>{\"name\": \"f\", \"arguments\": [1, \"}\"] }</tool_call>", "{f:f}{a:[1, \"}\"]}"},
    {&hermes, false, "<tool_call>{\"name\": \"f\", \"arguments\": 1.50}</tool_call>", "{f:f}{a:1.50}"},
    {&hermes, false, "<tool_call>{\"name\": \"f\", \"arguments\": x}</tool_call>",
     "{c:<tool_call>{\"name\": \"f\", \"arguments\": x}</tool_call>}"},
    {&hermes, false, "<tool_call>{\"name\": \"f\", \"arguments\": [x]}</tool_call>",
     "{c:<tool_call>{\"name\": \"f\", \"arguments\": [x]}</tool_call>}"},
    // Names: two of marker, tool and arguments make a call
    {&hermes, false, "<tool_call>{\"name\": \"Alice\", \"arguments\": {}}</tool_call>", "{f:Alice}{a:{}}"},
    {&hermes, false, "<tool_call>{\"id\": 7, \"name\": \"Alice\"}</tool_call>",
     "{c:<tool_call>{\"id\": 7, \"name\": \"Alice\"}</tool_call>}"},
    {&hermes, false, "<tool_call>{\"arguments\": {}, \"name\": \"f\", \"name\": \"h\"}</tool_call>", "{f:f}{a:{}}"},
    {&mistral, false, "[TOOL_CALLS][{\"name\": \"Alice\"}]", "{c:[TOOL_CALLS][{\"name\": \"Alice\"}]}"},
    {&mistral, false, "[TOOL_CALLS][{\"name\": \"f\"}]", "{f:f}{a:{}}"},
    {&mistral, false, "[TOOL_CALLS]Alice[ARGS]{}", "{f:Alice}{a:{}}"},
    {&llama3, false, "<|python_tag|>{\"name\": \"Alice\", \"parameters\": {}}", "{f:Alice}{a:{}}"},
    {&llama3, false, "{\"id\": 7, \"name\": \"Alice\"}", "{c:{\"id\": 7, \"name\": \"Alice\"}}"},
    {&llama3, false, "{\"name\": \"Alice\"} is the record", "{c:{\"name\": \"Alice\"} is the record}"},
    {&llama3, false, "{\"type\": \"dog\", \"name\": \"f\"}", "{c:{\"type\": \"dog\", \"name\": \"f\"}}"},
    {&llama3, false, "{\"name\": \"Alice\", \"parameters\": {\"age\": 7}}",
     "{c:{\"name\": \"Alice\", \"parameters\": {\"age\": 7}}}"},
    {&llama3, false, "{\"parameters\": {}, \"name\": \"Alice\"}", "{c:{\"parameters\": {}, \"name\": \"Alice\"}}"},
    {&llama3, false, "{\"name\": \"f\", \"parameters\": \"x\"}", "{f:f}{a:\"x\"}"},
    {&llama3, false, "{\"name\": \"f\", \"parameters\": null}", "{f:f}{a:{}}"},
    // Llama 3
    {&llama3, false, "{\"name\": \"f\", \"parameters\": {\"q\": \"x\"}}", "{f:f}{a:{\"q\": \"x\"}}"},
    {&llama3, false,
     "\n<|python_tag|>{\"type\": \"function\", \"name\": \"f\", \"parameters\": {}}; {\"name\": \"g\", \"parameters\": "
     "{}}",
     "{f:f}{a:{}}{f:g}{a:{}}"},
    {&llama3, false, "{\"items\": [1]}", "{c:{\"items\": [1]}}"},
    {&llama3, false, "{\"name\": \"f\", \"age\": 3}", "{c:{\"name\": \"f\", \"age\": 3}}"},
    {&llama3, false, "It is {\"name\": \"f\", \"parameters\": {}}", "{c:It is {\"name\": \"f\", \"parameters\": {}}}"},
    {&llama3, false, "<|python_tag|>print(1)", "{c:<|python_tag|>print(1)}"},
    {&llama3, false, "{\"name\": \"f\", \"parameters\": {\"q\": \"a {b} \\\"[c\\\"\", \"r\": {\"s\": {\"t\": {}}}}}",
     "{f:f}{a:{\"q\": \"a {b} \\\"[c\\\"\", \"r\": {\"s\": {\"t\": {}}}}}"},
    {&llama3, false,
     "{\"name\": \"f\", \"parameters\": {}} ;\n{\"name\": \"g\", \"arguments\": {\"name\": \"Alice\"}}\n"
     "{\"name\": \"f\", \"parameters\": {}};",
     "{f:f}{a:{}}{f:g}{a:{\"name\": \"Alice\"}}{f:f}{a:{}}"},
    {&llama3, false, "{\"name\": \"f\", \"parameters\": {}} I used {f} with {\"q\": 1}",
     "{f:f}{a:{}}{c: I used {f} with {\"q\": 1}}"},
    {&llama3, false, "{\"name\": \"f\", \"parameters\": {}}\n{\"name\": \"Alice\"}",
     "{f:f}{a:{}}{c:\n{\"name\": \"Alice\"}}"},
    // Mistral
    {&mistral, false, "[TOOL_CALLS] [{\"arguments\": {\"name\": \"Alice\"}, \"name\": \"f\"}]\nmore",
     "{f:f}{a:{\"name\": \"Alice\"}}{c:\nmore}"},
    {&mistral, false, "Hi [TOOL_CALLS]f{\"a\": \"}{\"}[TOOL_CALLS]g{\"b\": {\"c\": []}}",
     "{c:Hi }{f:f}{a:{\"a\": \"}{\"}}{f:g}{a:{\"b\": {\"c\": []}}}"},
    {&mistral, false,
     "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {\"a\": 1}}, {\"name\": \"g\", \"arguments\": {}}]",
     "{f:f}{a:{\"a\": 1}}{f:g}{a:{}}"},
    {&mistral, false, "text[TOOL_CALLS]f[ARGS]{\"a\": {}}[TOOL_CALLS]g_2[CALL_ID]a1B2c3D4e[ARGS]{}",
     "{c:text}{f:f}{a:{\"a\": {}}}{f:g_2}{a:{}}"},
    {&mistral, false, "[TOOL_CALLS]f{\"a\": 1}", "{f:f}{a:{\"a\": 1}}"},
    {&mistral, false, "[TOOL_CALLS] what?", "{c:[TOOL_CALLS] what?}"},
    {&mistral, false, "[TOOL_CALLS][1]", "{c:[TOOL_CALLS][1]}"},
    {&mistral, false, "[TOOL_CALLS]f[ARGS]", "{c:[TOOL_CALLS]f[ARGS]}"},
};

// Answers that a limit or a stop string cut, and where they end.
static const struct cut_case {
    const struct output_syntax *syntax;
    const char *text, *parts;
    enum output_cut ended;
} cuts[] = {
    {&hermes, "So: <tool_call>", "{c:So: }", OUTPUT_CUT_NAME},
    {&hermes, "<tool_call>\n{\"name\": \"f", "", OUTPUT_CUT_NAME},
    {&hermes, "\n<tool_call>\n{\"arguments\": {\"a\": 1}, \"na", "", OUTPUT_CUT_NAME},
    {&hermes, "<tool_call>\n{\"name\": \"f\"", "{f:f}", OUTPUT_CUT_CALL},
    {&hermes, "<tool_call>\n{\"name\": \"Alice\", \"argu", "{f:Alice}", OUTPUT_CUT_CALL},
    {&hermes, "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"x}", "{f:f}{a:{\"a\": \"x}}", OUTPUT_CUT_CALL},
    {&hermes, "<tool_call>\n{\"name\": \"f\", \"arguments\": \"{", "{f:f}", OUTPUT_CUT_CALL},
    {&hermes, "<tool_call>\n{\"name\": \"f\", \"arguments\": {}", "{f:f}{a:{}}", OUTPUT_CUT_NONE},
    {&hermes, "<tool_call>{\"name\": \"f\"}\n", "{f:f}{a:{}}", OUTPUT_CUT_NONE},
    {&hermes, "<tool_call>{\"name\": \"f\"}\n</tool", "{f:f}{a:{}}", OUTPUT_CUT_NONE},
    {&hermes, "<tool_call>{\"name\": \"f\"}</tool_call>\n<tool_call>{\"name\": \"g\", \"arguments\": {\"",
     "{f:f}{a:{}}{f:g}{a:{\"}", OUTPUT_CUT_CALL},
    {&hermes, "2 <tool", "{c:2 <tool}", OUTPUT_CUT_NONE},
    {&hermes, "<tool_call> none", "{c:<tool_call> none}", OUTPUT_CUT_NONE},
    {&llama3, "{\"name\": \"f", "{c:{\"name\": \"f}", OUTPUT_CUT_NONE},
    {&llama3, "{\"name\": \"f\", \"para", "{f:f}", OUTPUT_CUT_CALL},
    {&llama3, "{\"name\": \"Alice\", \"para", "{c:{\"name\": \"Alice\", \"para}", OUTPUT_CUT_NONE},
    {&llama3, "<|python_tag|>{\"na", "", OUTPUT_CUT_NAME},
    {&llama3, "{\"name\": \"f\", \"parameters\": {}}; ", "{f:f}{a:{}}", OUTPUT_CUT_NONE},
    {&mistral, "[TOOL_CALLS]", "", OUTPUT_CUT_NAME},
    {&mistral, "[TOOL_CALLS]f", "", OUTPUT_CUT_NAME},
    {&mistral, "[TOOL_CALLS]f[ARGS]", "{f:f}", OUTPUT_CUT_CALL},
    {&mistral, "[TOOL_CALLS]f[CALL_ID]a1B2c3D4e[ARGS]{\"a\"", "{f:f}{a:{\"a\"}", OUTPUT_CUT_CALL},
    {&mistral, "[TOOL_CALLS][{\"name\": \"f\"}, {\"name\": \"g\", \"arguments\": {", "{f:f}{a:{}}{f:g}{a:{}",
     OUTPUT_CUT_CALL},
};

struct joined {
    char text[4096];
    size_t n;
    int last; // kind, -1: none
    const struct output_parser *parser;
    const char *answer;
    enum output_cut ended;
};

static void joined_add(struct joined *all, const char *text, size_t n)
{
    ck_assert_uint_lt(all->n + n, sizeof all->text);
    memcpy(all->text + all->n, text, n);
    all->text[all->n += n] = 0;
}

static void add_part(void *user, enum output_kind kind, const char *text, size_t n)
{
    static const char *const begin[] = {"{r:", "{c:", "{f:", "{a:"};
    struct joined *all = user;
    ck_assert_uint_gt(n, 0);
    if (kind == OUTPUT_REASONING || kind == OUTPUT_CONTENT)
        ck_assert_mem_eq(all->answer + output_parser_used(all->parser), text, n);
    if (all->last != (int)kind) {
        if (all->last >= 0) joined_add(all, "}", 1);
        joined_add(all, begin[kind], 3);
    }
    all->last = (int)kind;
    joined_add(all, text, n);
}

// Parses the text in pieces that end at `first` and `second`, or after every byte if these are -1.
static void parse(const struct answer_case *c, bool cut, int first, int second, struct joined *all)
{
    struct output_parser *p = output_parser_create(c->syntax, c->reasoning, tools);
    int n = (int)strlen(c->text);
    *all = (struct joined){.last = -1, .parser = p, .answer = c->text};
    for (int i = 0, next; i < n; i = next) {
        next = first < 0 ? i + 1 : i < first ? first : i < second ? second : n;
        char *piece = mem_copy(c->text + i, (size_t)(next - i)); // so that the sanitizer detects reads beyond the piece
        output_parser_push(p, piece, (size_t)(next - i), add_part, all);
        free(piece);
    }
    output_parser_finish(p, cut, add_part, all);
    all->ended = output_parser_cut(p);
    if (all->last >= 0) joined_add(all, "}", 1);
    output_parser_free(p);
}

static void count_part(void *user, enum output_kind kind, const char *text, size_t n)
{
    *(size_t *)user += n;
}

START_TEST(parts_of_answers_however_they_are_cut)
{
    const struct answer_case *c = &cases[_i];
    struct joined all;
    int n = (int)strlen(c->text);
    parse(c, false, -1, 0, &all);
    ck_assert_str_eq(all.text, c->parts);
    for (int first = 0; first <= n; first++)
        for (int second = first; second <= n; second++) {
            parse(c, false, first, second, &all);
            ck_assert_msg(strcmp(all.text, c->parts) == 0, "cut at %d and %d: %s", first, second, all.text);
        }
}
END_TEST

START_TEST(a_cut_call_is_an_incomplete_call)
{
    const struct answer_case c = {cuts[_i].syntax, false, cuts[_i].text, NULL};
    for (int at = -1; at <= (int)strlen(c.text); at++) {
        struct joined all;
        parse(&c, true, at, at, &all);
        ck_assert_str_eq(all.text, cuts[_i].parts);
        ck_assert_int_eq(all.ended, cuts[_i].ended);
    }
}
END_TEST

START_TEST(an_answer_that_ends_inside_a_call_is_not_a_complete_call)
{
    static const struct {
        const char *text;
        bool cut;
    } ends[] = {{"<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1", true},
                {"<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1}", false},
                {"<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>", false},
                {"<tool_call>{\"name\": \"f\", \"argu", false}}; // content
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        struct joined all;
        parse(&(struct answer_case){&hermes, false, ends[i].text, NULL}, false, 0, 0, &all);
        ck_assert_int_eq(all.ended == OUTPUT_CUT_CALL, ends[i].cut);
    }
}
END_TEST

// In some answers the parser knows only after many pieces what a part is. If it parsed the part again for each piece,
// this test would take minutes.
START_TEST(work_grows_with_the_answer)
{
    static const struct {
        const struct output_syntax *syntax;
        bool reasoning;
        const char *begin, *piece;
    } answers[] = {
        {&hermes, false, "", "        "},
        {&hermes, false, "a", "        "},
        {&hermes, true, "a", "        "},
        {&hermes, false, "<tool_call>{\"name\":\"f\"}", "        "},
        {&hermes, false, "<tool_call>{\"name\":\"f\"}</tool_call>", "        "},
        {&llama3, false, "{\"name\":\"f\",\"parameters\":{}}", "        "},
        {&hermes, false, "<tool_call>{\"", "aaaaaaaa"},
        {&mistral, false, "[TOOL_CALLS]", "aaaaaaaa"},
        {&mistral, false, "[TOOL_CALLS]a[CALL_ID]", "aaaaaaaa"},
        {&mistral, false, "[TOOL_CALLS]a[ARGS]", "        "},
    };
    enum { PIECES = 200000 };
    size_t n = 0;
    struct output_parser *p = output_parser_create(answers[_i].syntax, answers[_i].reasoning, tools);
    output_parser_push(p, answers[_i].begin, strlen(answers[_i].begin), count_part, &n);
    for (int i = 0; i < PIECES; i++)
        output_parser_push(p, answers[_i].piece, 8, count_part, &n);
    output_parser_finish(p, false, count_part, &n);
    const size_t call = strlen("f{}"), all = strlen(answers[_i].begin) + 8 * (size_t)PIECES;
    ck_assert_uint_eq(n, strstr(answers[_i].begin, "\"f\"}") || strstr(answers[_i].begin, "{}") ? call : all);
    output_parser_free(p);
}
END_TEST

START_TEST(heads_of_bare_calls_are_bounded)
{
    static const char *const forms[] = {"[TOOL_CALLS]%0*d[ARGS]{}", "[TOOL_CALLS]%0*d[CALL_ID]x[ARGS] {}"};
    for (int length = 1000; length <= 1030; length++) {
        char text[1100];
        struct joined whole, bytes;
        snprintf(text, sizeof text, forms[_i], length, 1);
        const struct answer_case c = {&mistral, false, text, NULL};
        parse(&c, false, 0, 0, &whole);
        parse(&c, false, -1, 0, &bytes);
        ck_assert_str_eq(whole.text, bytes.text);
        if (length < 1003) ck_assert(strstr(whole.text, "{f:0") == whole.text);
        if (length > 1024) ck_assert(strstr(whole.text, "{c:[TOOL_CALLS]0") == whole.text);
    }
}
END_TEST

START_TEST(syntax_of_published_templates)
{
    static const struct {
        const char *name;
        enum output_calls calls;
        const char *reasoning_end;
    } expected[] = {
        {"Qwen-Qwen3-0.6B", OUTPUT_CALLS_HERMES, "</think>"},
        {"Qwen-Qwen2.5-7B-Instruct", OUTPUT_CALLS_HERMES, NULL},
        {"NousResearch-Hermes-3-Llama-3.1-8B-tool_use", OUTPUT_CALLS_HERMES, NULL},
        {"meta-llama-Llama-3.1-8B-Instruct", OUTPUT_CALLS_LLAMA3, NULL},
        {"meta-llama-Llama-3.2-3B-Instruct", OUTPUT_CALLS_LLAMA3, NULL},
        {"Mistral-Small-3.2-24B-Instruct-2506", OUTPUT_CALLS_MISTRAL, NULL},
        {"mistralai-Ministral-3-14B-Reasoning-2512", OUTPUT_CALLS_MISTRAL, "[/THINK]"},
        {"deepseek-ai-DeepSeek-R1-Distill-Llama-8B", OUTPUT_CALLS_NONE, "</think>"},
        {"Qwen3.5-4B", OUTPUT_CALLS_NONE, "</think>"},
        {"GLM-4.6", OUTPUT_CALLS_NONE, "</think>"},
    };
    for (size_t i = 0; i < sizeof expected / sizeof *expected; i++) {
        char name[96];
        snprintf(name, sizeof name, "chat_templates/%s.jinja", expected[i].name);
        char *path = external_data(name), *template = file_read(path, NULL);
        free(path);
        struct output_syntax syntax = output_syntax_detect(template);
        ck_assert_msg(syntax.calls == expected[i].calls, "%s: calls %d", expected[i].name, syntax.calls);
        ck_assert_pstr_eq(syntax.reasoning_end, expected[i].reasoning_end);
        free(template);
    }
}
END_TEST

SUITE("output parser")
{
    if (external_data_wanted(argc, argv)) {
        TEST(syntax_of_published_templates);
    } else {
        FIXTURE_ONCE(create_tools, free_tools);
        EACH(parts_of_answers_however_they_are_cut, cases);
        EACH(a_cut_call_is_an_incomplete_call, cuts);
        TEST(an_answer_that_ends_inside_a_call_is_not_a_complete_call);
        LOOP(work_grows_with_the_answer, 0, 10);
        LOOP(heads_of_bare_calls_are_bounded, 0, 2);
    }
}
