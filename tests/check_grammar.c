// SPDX-License-Identifier: Apache-2.0
// Answers drawn at random from the masks of a grammar match the grammar, end where the grammar is complete, and
// continue with the same masks after a replay. Argument: a model's folder.
#include <jansson.h>
#include <regex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "lib/base/mem.h"
#include "lib/grammar/grammar.h"
#include "lib/text/output_parser.h"
#include "lib/text/tool_grammar.h"
#include "lib/text/unicode.h"
#include "tests/suite.h"

enum { ANSWERS = 200, TOKENS_MAX = 400 };

static const char *model; // the argument
static struct tokenizer *tokenizer;
static struct grammar_library *library;
static int32_t eos;

static const char schema[] =
    "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\",\"maxLength\":8},"
    "\"age\":{\"type\":\"integer\",\"minimum\":0,\"maximum\":150},\"tags\":{\"type\":\"array\","
    "\"items\":{\"enum\":[\"a\",\"b\"]},\"maxItems\":3}},\"required\":[\"name\",\"age\"],"
    "\"additionalProperties\":false}";

static struct grammar_matcher *matcher_for(enum grammar_kind kind, const char *text)
{
    struct grammar_matcher *m;
    struct grammar_spec spec = grammar_spec_of(kind, (char *)text);
    ck_assert_msg(grammar_matcher_create(library, &spec, &m) == STATUS_OK, "%s", status_message());
    return m;
}

static bool allowed(const uint32_t *mask, int32_t token)
{
    return mask[token / 32] >> (token % 32) & 1;
}

// Draws a token. Returns -1 if none is allowed.
static int32_t draw(const uint32_t *mask, int n_tokens, uint64_t *random)
{
    int32_t chosen = -1;
    int n = 0;
    for (int32_t t = 0; t < n_tokens; t++) {
        *random = *random * 6364136223846793005u + 1442695040888963407u;
        if (allowed(mask, t) && (*random >> 33) % (unsigned)++n == 0) chosen = t;
    }
    return chosen;
}

// A copy allows the same tokens. Tokens that it accepts do not change the original.
static void check_copy(const struct grammar_matcher *m, const uint32_t *mask, uint64_t random)
{
    size_t n_words = (size_t)grammar_matcher_mask_words(m);
    uint32_t *again = mem_alloc_array(n_words, 4);
    struct grammar_matcher *copy = grammar_matcher_copy(m);
    ck_assert_int_eq(grammar_matcher_mask(copy, again), STATUS_OK);
    ck_assert_mem_eq(mask, again, n_words * 4);
    int32_t token = draw(mask, tokenizer_vocab_size(tokenizer), &random);
    if (token != eos) ck_assert_int_eq(grammar_matcher_accept(copy, &token, 1), STATUS_OK);
    grammar_matcher_free(copy);
    free(again);
}

// Draws an answer. Every mask equals the mask of a new matcher that accepted the tokens so far. Returns true if the
// answer ended.
static bool answer(enum grammar_kind kind, const char *text, uint64_t random, bool replay, struct bytes *out)
{
    struct grammar_matcher *m = matcher_for(kind, text);
    int n_words = grammar_matcher_mask_words(m), n = 0;
    uint32_t *mask = mem_alloc_array((size_t)n_words, 4), *again = mem_alloc_array((size_t)n_words, 4);
    int32_t tokens[TOKENS_MAX];
    bool ended = false;
    while (n < TOKENS_MAX && !(ended = grammar_matcher_is_complete(m))) {
        ck_assert_msg(grammar_matcher_mask(m, mask) == STATUS_OK, "%s after %.*s", status_message(), (int)out->n,
                      out->data ? out->data : "");
        if (replay) {
            struct grammar_matcher *second = matcher_for(kind, text);
            ck_assert_int_eq(grammar_matcher_accept(second, tokens, n), STATUS_OK);
            ck_assert_int_eq(grammar_matcher_mask(second, again), STATUS_OK);
            ck_assert_mem_eq(mask, again, (size_t)n_words * 4);
            grammar_matcher_free(second);
            check_copy(m, mask, random + 1);
        }
        tokens[n] = draw(mask, tokenizer_vocab_size(tokenizer), &random);
        ck_assert_int_ge(tokens[n], 0);
        if ((ended = tokens[n] == eos)) break;
        ck_assert_int_eq(grammar_matcher_accept(m, &tokens[n], 1), STATUS_OK);
        const char *piece;
        size_t size;
        tokenizer_piece(tokenizer, tokens[n++], &piece, &size);
        bytes_add(out, piece, size);
    }
    grammar_matcher_free(m);
    free(mask);
    free(again);
    return ended;
}

static void check_json(const struct bytes *text)
{
    json_t *value = json_loadb(text->data, text->n, 0, NULL), *age = json_object_get(value, "age"), *tag;
    ck_assert_msg(json_is_object(value), "%.*s", (int)text->n, text->data);
    ck_assert(json_is_string(json_object_get(value, "name")));
    ck_assert(json_is_integer(age));
    ck_assert_int_ge(json_integer_value(age), 0);
    ck_assert_int_le(json_integer_value(age), 150);
    size_t i;
    json_array_foreach(json_object_get(value, "tags"), i, tag)
        ck_assert(strcmp(json_string_value(tag), "a") == 0 || strcmp(json_string_value(tag), "b") == 0);
    json_decref(value);
}

START_TEST(answers_are_valid_against_a_schema)
{
    int ended = 0;
    for (int i = 0; i < ANSWERS; i++) {
        struct bytes text = {0};
        if (answer(GRAMMAR_JSON_SCHEMA, schema, (uint64_t)i, i < 10, &text)) {
            check_json(&text);
            ended++;
        }
        bytes_free(&text);
    }
    ck_assert_int_gt(ended, ANSWERS / 2);
}
END_TEST

START_TEST(answers_match_a_regex)
{
    regex_t regex;
    ck_assert_int_eq(regcomp(&regex, "^(yes|no), [0-9]{3}$", REG_EXTENDED | REG_NOSUB), 0);
    for (int i = 0; i < ANSWERS; i++) {
        struct bytes text = {0};
        ck_assert(answer(GRAMMAR_REGEX, "(yes|no), [0-9]{3}", (uint64_t)i, false, &text));
        bytes_add(&text, "", 1);
        ck_assert_msg(regexec(&regex, text.data, 0, NULL, 0) == 0, "%s", text.data);
        bytes_free(&text);
    }
    regfree(&regex);
}
END_TEST

START_TEST(answers_match_a_grammar)
{
    struct bytes text = {0};
    ck_assert(answer(GRAMMAR_LARK, "start: \"a\" b \"c\"\nb: \"x\" | \"y\" b", 1, true, &text));
    ck_assert_int_eq(text.data[0], 'a');
    ck_assert_int_eq(text.data[text.n - 1], 'c');
    bytes_free(&text);
}
END_TEST

START_TEST(wrong_grammars_are_refused)
{
    static const struct grammar_spec wrong[] = {
        {GRAMMAR_JSON_SCHEMA, "{\"type\":", 0},
        {GRAMMAR_JSON_SCHEMA, "{\"type\":\"nothing\"}", 0},
        {GRAMMAR_REGEX, "(a", 0},
        {GRAMMAR_LARK, "start: missing", 0},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct grammar_matcher *m;
        ck_assert_int_eq(grammar_matcher_create(library, &wrong[i], &m), STATUS_INVALID);
        ck_assert_int_gt(strlen(status_message()), 10);
    }
}
END_TEST

static void count_calls(void *user, enum output_kind kind, const char *text, size_t n)
{
    int *n_calls = user;
    ck_assert(kind == OUTPUT_CALL || kind == OUTPUT_ARGUMENTS);
    if (kind != OUTPUT_CALL) return;
    ck_assert_uint_eq(n, 1);
    ck_assert(*text == 'f' || *text == 'g');
    ++*n_calls;
}

START_TEST(a_required_call_is_parsed_as_a_call)
{
    json_t *tools = json_loads(
        "[{\"type\":\"function\",\"function\":{\"name\":\"f\"}},{\"type\":\"function\",\"function\":"
        "{\"name\":\"g\",\"parameters\":{\"type\":\"object\",\"properties\":{\"x\":{\"$ref\":\"#/$defs/x\"}},"
        "\"additionalProperties\":false,\"$defs\":{\"x\":{\"type\":\"boolean\"}}}}}]",
        0, NULL);
    const struct tool_choice choice = {.tools = tools, .name = "g"};
    json_t *names = json_pack("{s:b,s:b}", "f", 1, "g", 1);
    for (enum output_calls form = OUTPUT_CALLS_HERMES; form <= OUTPUT_CALLS_MISTRAL; form++) {
        const struct output_syntax syntax = {.calls = form};
        for (uint64_t i = 0; i < 20; i++) {
            struct grammar_spec spec;
            struct bytes text = {0};
            int n_calls = 0;
            ck_assert_int_eq(tool_grammar_create(form, -1, &choice, &spec), STATUS_OK);
            if (answer(spec.kind, spec.text, i, false, &text)) {
                struct output_parser *parser = output_parser_create(&syntax, false, names);
                output_parser_push(parser, text.data, text.n, count_calls, &n_calls);
                output_parser_finish(parser, false, count_calls, &n_calls);
                output_parser_free(parser);
                ck_assert_int_ge(n_calls, 1);
            }
            bytes_free(&text);
            grammar_spec_free(&spec);
        }
    }
    // A special token as the marker: the one that starts each prompt.
    struct grammar_spec spec;
    int32_t *marker;
    int n_markers;
    ck_assert_int_eq(tokenizer_encode(tokenizer, "", 0, TOKENIZER_ADD_SPECIAL, &marker, &n_markers), STATUS_OK);
    ck_assert_int_eq(n_markers, 1);
    ck_assert_int_eq(tool_grammar_create(OUTPUT_CALLS_MISTRAL, marker[0], &choice, &spec), STATUS_OK);
    struct grammar_matcher *m = matcher_for(spec.kind, spec.text);
    uint32_t *mask = mem_alloc_array((size_t)grammar_matcher_mask_words(m), sizeof *mask);
    ck_assert_int_eq(grammar_matcher_mask(m, mask), STATUS_OK);
    ck_assert(allowed(mask, marker[0]));
    ck_assert(!allowed(mask, eos));
    free(marker);
    free(mask);
    grammar_matcher_free(m);
    grammar_spec_free(&spec);
    json_decref(names);
    json_decref(tools);
}
END_TEST

static void count_content(void *user, enum output_kind kind, const char *text, size_t n)
{
    int *counts = user;
    counts[kind] += kind == OUTPUT_CONTENT ? (int)n : 1;
}

// Of answers that may call tools and have a format, some call and some have the format. Both happen, and nothing else.
START_TEST(an_answer_with_a_format_is_a_call_or_has_the_format)
{
    json_t *tools = json_loads("[{\"type\":\"function\",\"function\":{\"name\":\"g\",\"parameters\":{\"$id\":\"a\","
                               "\"properties\":{\"x\":{\"$id\":\"b\"}}}}}]",
                               0, NULL);
    const struct tool_choice choice = {.tools = tools,
                                       .format = "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"boolean\"}},"
                                                 "\"required\":[\"a\"],\"additionalProperties\":false}"};
    json_t *names = json_pack("{s:b}", "g", 1);
    for (enum output_calls form = OUTPUT_CALLS_HERMES; form <= OUTPUT_CALLS_MISTRAL; form++) {
        const struct output_syntax syntax = {.calls = form};
        int calls = 0, formatted = 0;
        for (uint64_t i = 0; i < 60; i++) {
            struct grammar_spec spec;
            struct bytes text = {0};
            int counts[OUTPUT_ARGUMENTS + 1] = {0};
            ck_assert_int_eq(tool_grammar_create(form, -1, &choice, &spec), STATUS_OK);
            if (answer(spec.kind, spec.text, i, false, &text)) {
                struct output_parser *parser = output_parser_create(&syntax, false, names);
                output_parser_push(parser, text.data, text.n, count_content, counts);
                output_parser_finish(parser, false, count_content, counts);
                output_parser_free(parser);
                json_t *object = json_loadb(text.data, text.n, 0, NULL);
                const bool fits = json_is_boolean(json_object_get(object, "a"));
                ck_assert_msg(fits != (counts[OUTPUT_CALL] > 0), "%.*s", (int)text.n, text.data);
                ck_assert_ptr_null(memmem(text.data, text.n, "\n\n", 2)); // blanks are bounded
                calls += !fits;
                formatted += fits;
                json_decref(object);
            }
            bytes_free(&text);
            grammar_spec_free(&spec);
        }
        ck_assert_int_gt(calls, 0);
        ck_assert_int_gt(formatted, 0);
    }
    json_decref(names);
    json_decref(tools);
}
END_TEST

// Checks a tree of {"v": true, "child": TREE}.
static void check_tree(const json_t *tree)
{
    ck_assert(json_is_object(tree));
    ck_assert(json_is_boolean(json_object_get(tree, "v")));
    const json_t *child = json_object_get(tree, "child");
    ck_assert_uint_eq(json_object_size(tree), child ? 2 : 1);
    if (child) check_tree(child);
}

// References of a tool's schema stay within that schema, though the grammar's schema contains those of all tools.
START_TEST(a_recursive_tool_schema_stays_itself)
{
    static const char *const schemas[] = {
        "{'type':'object','properties':{'v':{'type':'boolean'},'child':{'$ref':'#'}},'required':['v'],"
        "'additionalProperties':false}",
        "{'$id':'https://example.com/tree','$ref':'#/$defs/tree','$defs':{'tree':{'type':'object','properties':{'v':"
        "{'type':'boolean'},'child':{'$ref':'#/$defs/tree'}},'required':['v'],'additionalProperties':false}}}",
        "{'type':'object','properties':{'v':{'type':'boolean','default':{'$ref':'#/"
        "nowhere'}},'child':{'anyOf':[{'$ref':"
        "'#'}]}},'required':['v'],'additionalProperties':false}",
    };
    for (size_t s = 0; s < sizeof schemas / sizeof *schemas; s++) {
        char *text =
            mem_format("[{'type':'function','function':{'name':'f','parameters':{'type':'object','$defs':{'tree':"
                       "{'type':'null'}}}}},{'type':'function','function':{'name':'g','parameters':%s}}]",
                       schemas[s]);
        for (char *c = text; *c; c++)
            if (*c == '\'') *c = '"';
        json_t *tools = json_loads(text, 0, NULL);
        const struct tool_choice choice = {.tools = tools, .name = "g"};
        struct grammar_spec spec;
        ck_assert_int_eq(tool_grammar_create(OUTPUT_CALLS_LLAMA3, -1, &choice, &spec), STATUS_OK);
        int deep = 0;
        for (uint64_t i = 0; i < 40; i++) {
            struct bytes out = {0};
            if (answer(spec.kind, spec.text, i, false, &out)) {
                json_t *call = json_loadb(out.data, out.n, 0, NULL), *tree = json_object_get(call, "parameters");
                ck_assert_msg(json_is_object(call), "%.*s", (int)out.n, out.data);
                check_tree(tree);
                deep += json_object_get(tree, "child") != NULL;
                json_decref(call);
            }
            bytes_free(&out);
        }
        ck_assert_int_gt(deep, 0);
        grammar_spec_free(&spec);
        json_decref(tools);
        free(text);
    }
}
END_TEST

START_TEST(references_to_other_documents_are_refused)
{
    static const char *const schemas[] = {"{\"$ref\":\"https://example.com/x\"}", "{\"items\":[{\"$ref\":\"#name\"}]}",
                                          "{\"properties\":{\"a\":{\"$id\":\"b\"}}}"};
    for (size_t i = 0; i < sizeof schemas / sizeof *schemas; i++) {
        json_t *parameters = json_loads(schemas[i], 0, NULL);
        json_t *tools = json_pack("[{s:{s:s, s:o}}]", "function", "name", "f", "parameters", parameters);
        const struct tool_choice choice = {.tools = tools};
        struct grammar_spec spec;
        ck_assert_int_eq(tool_grammar_create(OUTPUT_CALLS_LLAMA3, -1, &choice, &spec), STATUS_UNSUPPORTED);
        json_decref(tools);
    }
}
END_TEST

// Returns `n` copies of `part` between `before` and `after`.
static struct bytes repeated(const char *before, const char *part, int n, const char *after)
{
    struct bytes text = {0};
    bytes_add(&text, before, strlen(before));
    for (int i = 0; i < n; i++)
        bytes_add(&text, part, strlen(part));
    bytes_add(&text, after, strlen(after) + 1);
    return text;
}

// Returns the megabytes that compiling the grammar and computing some masks add to the peak memory of this process.
static long memory_added_mb(enum grammar_kind kind, const char *text)
{
    struct rusage before, after;
    struct grammar_matcher *m;
    struct grammar_spec spec = grammar_spec_of(kind, (char *)text);
    getrusage(RUSAGE_SELF, &before);
    if (grammar_matcher_create(library, &spec, &m) == STATUS_OK) {
        uint32_t *mask = mem_alloc_array((size_t)grammar_matcher_mask_words(m), sizeof *mask);
        uint64_t random = 1;
        for (int i = 0; i < 20 && grammar_matcher_mask(m, mask) == STATUS_OK; i++) {
            int32_t token = draw(mask, tokenizer_vocab_size(tokenizer), &random);
            if (token < 0 || token == eos || grammar_matcher_accept(m, &token, 1) != STATUS_OK) break;
        }
        free(mask);
        grammar_matcher_free(m);
    }
    getrusage(RUSAGE_SELF, &after);
    return (after.ru_maxrss - before.ru_maxrss) >> 10;
}

#ifdef __SANITIZE_THREAD__
enum { MEMORY_MB = 512 }; // with the sanitizer's shadow of it
#else
enum { MEMORY_MB = 64 };
#endif

START_TEST(hostile_grammars_take_little_memory)
{
    static const struct {
        enum grammar_kind kind;
        const char *before, *part;
        int n;
        const char *after;
    } hostile[] = {
        {GRAMMAR_REGEX, "", "a?", 16000, ""},
        {GRAMMAR_REGEX, "", "(|a)", 8000, ""},
        {GRAMMAR_REGEX, "", "\\p{L}?", 9000, ""},
        {GRAMMAR_REGEX, "", "a?", 1000, ""},
        {GRAMMAR_REGEX, "(", ".*a", 10000, "){1,100}"},
        {GRAMMAR_JSON_SCHEMA, "{\"type\":\"string\",\"pattern\":\"", "a?", 16000, "\"}"},
        {GRAMMAR_JSON_SCHEMA, "{\"patternProperties\":{\"", "b*", 16000, "\":{}}}"},
        {GRAMMAR_JSON_SCHEMA, "{\"x-guidance\":{\"whitespace_pattern\":\"", "b*", 16000, "\"}}"},
        {GRAMMAR_LARK, "start: /", "a?", 16000, "/\n"},
        {GRAMMAR_LARK, "start: a b\na: %json {\"type\":\"null\"}\nb: /", "a?", 16000, "/\n"},
        {GRAMMAR_LARK, "start: %json {\"type\":\"string\",\"pattern\":\"", "a?", 16000, "\"}\n"},
        // llguidance reads more JSON than jansson does.
        {GRAMMAR_JSON_SCHEMA, "{\"title\":\"\\u0000\",\"type\":\"string\",\"pattern\":\"", "a?", 16000, "\"}"},
        {GRAMMAR_JSON_SCHEMA, "{\"\\u0000\":1,\"type\":\"string\",\"pattern\":\"", "a?", 16000, "\"}"},
        {GRAMMAR_JSON_SCHEMA, "{\"maximum\":99999999999999999999,\"pattern\":\"", "a?", 16000, "\"}"},
        // A %json that starts no schema.
        {GRAMMAR_LARK, "start: \"%json [\" /", "a?", 16000, "/ \"]\"\n"},
        {GRAMMAR_LARK, "start: /%json{\"/ \"/:/\" /", "a?", 16000, "/ /\"}/\n"},
        {GRAMMAR_LARK, "start: b // %json [\"\nb: /", "a?", 16000, "/ # \"]\n"},
        {GRAMMAR_LARK, "start: <\"> \"%json [\" /", "a?", 16000, "/ \"]\"\n"},
    };
    struct bytes text = repeated(hostile[_i].before, hostile[_i].part, hostile[_i].n, hostile[_i].after);
    long mb = memory_added_mb(hostile[_i].kind, text.data);
    ck_assert_msg(mb <= MEMORY_MB, "%ld MiB", mb);
    bytes_free(&text);
}
END_TEST

// The sentences that refuse such grammars are the product's own: they have no text of a panic.
START_TEST(values_that_take_too_much_work_are_refused)
{
    static const struct {
        const char *before, *part;
        int n;
        const char *after, *words;
    } large[] = {
        {"{\"enum\":[\"x\"", ",\"abcdefghi\"", 30000, "]}", "have more than 262144 bytes of JSON"},
        {"{\"const\":\"", "abcdefghij", 30000, "\"}", "have more than 262144 bytes of JSON"},
        {"{\"items\":{\"enum\":[0", ",{\"a\":1,\"b\":[2]}", 10000, "]}}", "about 6666 members"},
        {"{\"enum\":[0", ",[1,2]", 15000, "]}", "about 6666 members"},
        {"{\"allOf\":[{\"enum\":[\"x\"", ",\"a\"", 40000, "]},{\"pattern\":\"^a\"}],\"type\":\"string\"}", "more work"},
    };
    struct bytes text = repeated(large[_i].before, large[_i].part, large[_i].n, large[_i].after);
    struct grammar_spec spec = grammar_spec_of(GRAMMAR_JSON_SCHEMA, text.data);
    struct grammar_matcher *m;
    ck_assert_int_eq(grammar_matcher_create(library, &spec, &m), STATUS_INVALID);
    ck_assert_ptr_nonnull(strstr(status_message(), large[_i].words));
    bytes_free(&text);
}
END_TEST

// Every level holds the same values. Counting them on every level would take longer than a test may.
START_TEST(values_in_values_are_counted_once)
{
    static const struct {
        const char *open, *value, *words;
    } nested[] = {{"{\"const\":", "1,", "more than 262144 bytes of JSON"},
                  {"{\"enum\":[", "1,", "more than 262144 bytes of JSON"},
                  {"{\"pattern\":", "\"aaaaaaaa\",", "regular expressions"}};
    enum { LEVELS = 900 };
    const bool is_list = strchr(nested[_i].open, '[');
    struct bytes open = repeated("", nested[_i].open, LEVELS, "["),
                 close = repeated("1]", is_list ? "]}" : "}", LEVELS, "");
    struct bytes text = repeated(open.data, nested[_i].value, 80000, close.data);
    struct grammar_spec spec = grammar_spec_of(GRAMMAR_JSON_SCHEMA, text.data);
    struct grammar_matcher *m;
    ck_assert_int_eq(grammar_matcher_create(library, &spec, &m), STATUS_INVALID);
    ck_assert_msg(strstr(status_message(), nested[_i].words) != NULL, "%s", status_message());
    bytes_free(&open);
    bytes_free(&close);
    bytes_free(&text);
}
END_TEST

// Names, enumerated texts and choices are not regular expressions.
START_TEST(large_ordinary_grammars_are_accepted)
{
    struct bytes members = {0}, choice = {0};
    for (int i = 0; i < 500; i++) {
        char *part = mem_format("%s\"member%d\":{\"enum\":[\"red %d\",\"green\"]}",
                                i ? "," : "{\"type\":\"object\",\"properties\":{", i, i);
        bytes_add(&members, part, strlen(part));
        free(part);
    }
    bytes_add(&members, "}}", 3);
    for (int i = 0; i < 3000; i++) {
        char *part = mem_format("%stext %d\\.", i ? "|" : "", i * 7919);
        bytes_add(&choice, part, strlen(part));
        free(part);
    }
    bytes_add(&choice, "", 1);
    char *lark = mem_format("start: body\nbody: %%json %s\n", members.data);
    grammar_matcher_free(matcher_for(GRAMMAR_JSON_SCHEMA, members.data));
    grammar_matcher_free(matcher_for(GRAMMAR_REGEX, choice.data));
    grammar_matcher_free(matcher_for(GRAMMAR_LARK, lark));
    free(lark);
    bytes_free(&members);
    bytes_free(&choice);
}
END_TEST

START_TEST(a_token_outside_the_grammar_is_refused)
{
    struct grammar_matcher *m = matcher_for(GRAMMAR_REGEX, "[0-9]");
    int32_t *ids;
    int n;
    ck_assert_int_eq(tokenizer_encode(tokenizer, "x", 1, 0, &ids, &n), STATUS_OK);
    ck_assert_int_eq(grammar_matcher_accept(m, ids + n - 1, 1), STATUS_INVALID);
    free(ids);
    grammar_matcher_free(m);
}
END_TEST

// A schema of 5,000 definitions, each of which refers to the next, and a grammar of 5,000 such rules.
START_TEST(long_chains_do_not_overflow_the_stack)
{
    struct bytes texts[2] = {{0}};
    char part[64];
    for (int i = 0; i < 5000; i++) {
        int n = snprintf(part, sizeof part, "%s\"a%d\":{\"$ref\":\"#/$defs/a%d\"}", i ? "," : "{\"$defs\":{", i, i + 1);
        bytes_add(&texts[0], part, (size_t)n);
        n = snprintf(part, sizeof part, "%s%d: r%d \"x\" | \"y\"\n", i ? "r" : "start: r0\nr", i, i + 1);
        bytes_add(&texts[1], part, (size_t)n);
    }
    static const char schema_end[] = ",\"a5000\":{}},\"$ref\":\"#/$defs/a0\"}", grammar_end[] = "r5000: \"z\"\n";
    bytes_add(&texts[0], schema_end, sizeof schema_end);
    bytes_add(&texts[1], grammar_end, sizeof grammar_end);
    grammar_matcher_free(matcher_for(GRAMMAR_JSON_SCHEMA, texts[0].data));
    grammar_matcher_free(matcher_for(GRAMMAR_LARK, texts[1].data));
    bytes_free(&texts[0]);
    bytes_free(&texts[1]);
}
END_TEST

START_TEST(other_files_are_refused)
{
    struct grammar_library *other;
    ck_assert_int_eq(grammar_library_open("/nowhere/libllguidance.so", tokenizer, 10, &eos, 1, &other),
                     STATUS_NOT_FOUND);
    ck_assert_int_eq(grammar_library_open("libm.so.6", tokenizer, 10, &eos, 1, &other), STATUS_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(status_message(), "libm.so.6"));
}
END_TEST

static void open_library(void)
{
    ck_assert_msg(tokenizer_open(model, &tokenizer) == STATUS_OK, "%s", status_message());
    eos = tokenizer_eos(tokenizer);
    const int vocab = tokenizer_vocab_size(tokenizer) + 40;
    ck_assert_msg(grammar_library_open(NULL, tokenizer, vocab, &eos, 1, &library) == STATUS_OK, "%s", status_message());
}

static void close_library(void)
{
    grammar_library_free(library);
    tokenizer_free(tokenizer);
}

static bool has_arguments(int argc)
{
    if (argc != 2) printf("skipped: usage: check_grammar MODEL\n");
    return argc == 2;
}

SUITE("grammar")
{
    SKIP_UNLESS(has_arguments(argc));
    model = argv[1];
    TIMEOUT(60);
    FIXTURE_ONCE(open_library, close_library);
    TEST(answers_are_valid_against_a_schema);
    TEST(answers_match_a_regex);
    TEST(answers_match_a_grammar);
    TEST(wrong_grammars_are_refused);
    TEST(a_required_call_is_parsed_as_a_call);
    TEST(an_answer_with_a_format_is_a_call_or_has_the_format);
    TEST(a_recursive_tool_schema_stays_itself);
    TEST(references_to_other_documents_are_refused);
    LOOP(hostile_grammars_take_little_memory, 0, 18);
    LOOP(values_that_take_too_much_work_are_refused, 0, 5);
    LOOP(values_in_values_are_counted_once, 0, 3);
    TEST(large_ordinary_grammars_are_accepted);
    TEST(a_token_outside_the_grammar_is_refused);
    TEST(long_chains_do_not_overflow_the_stack);
    TEST(other_files_are_refused);
}
