// SPDX-License-Identifier: Apache-2.0
// router/front: the JSON bodies of clients. If a field has a wrong type or a number out of range, the error names the
// field and the allowed values. Bodies that are not JSON are refused.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "router/front/http/json_body.h"
#include "router/front/http/json_generation.h"
#include "router/front/http/json_writer.h"
#include "tests/suite.h"

static json_t *parse(const char *text)
{
    json_t *body = NULL;
    ck_assert_msg(json_body_parse(text, strlen(text), &body) == STATUS_OK, "%s: %s", text, status_message());
    return body;
}

static void ck_sentence(const char *text, enum status status, enum status wanted, const char *sentence)
{
    ck_assert_msg(status == wanted, "%.80s: %s: %.400s", text, status_name(status), status_message());
    ck_assert_msg(strstr(status_message(), sentence) == status_message(), "%.80s: %.400s", text, status_message());
}

// --- bodies

static void ck_body_refused(const char *bytes, size_t n, const char *sentence)
{
    json_t *body;
    ck_sentence(bytes, json_body_parse(bytes, n, &body), STATUS_INVALID, sentence);
}

START_TEST(bodies_that_are_not_json_objects_are_refused)
{
    static const struct {
        const char *text, *sentence;
    } cases[] = {
        {"", "the body is not valid JSON: line 1, column 0: "},
        {"{", "the body is not valid JSON: line 1, column 1: "},
        {"[]", "the body must be a JSON object"},
        {"\"a\"", "the body is not valid JSON"},
        {"{\"a\":1} x", "the body is not valid JSON"},
        {"{\"a\":NaN}", "the body is not valid JSON"},
        {"{\"a\":Infinity}", "the body is not valid JSON"},
        {"{\"a\":1e999}", "a: the number is out of range: line 1, column 10: real number overflow"},
        {"{\"a\":99999999999999999999}", "a: the number is out of range: line 1, column 25: too big integer"},
        {"{\"n\":1,\"b\":{\"c\":[{\"d\":\"}\"},-99999999999999999999]}}", "b: the number is out of range"},
        {"{\"x\\\"\":1,\"tokens\":[7,99999999999999999999]}", "tokens: the number is out of range"},
        {"{\"no field\":99999999999999999999}", "the body is not valid JSON: line 1, column 32: too big integer"},
        {"[99999999999999999999]", "the body is not valid JSON"},
        {"{\"a\":1,\"a\":1}", "the body is not valid JSON: line 1, column 10: duplicate object key"},
        {"{\"a\":\"\xff\"}", "the body is not valid JSON: line 1, column 6: unable to decode byte 0xff"},
        {"{\"a\":\"\\ud800\"}", "the body is not valid JSON"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        ck_body_refused(cases[i].text, strlen(cases[i].text), cases[i].sentence);
}
END_TEST

// Sentences of refused requests are logged, prompts are not.
START_TEST(the_sentence_of_a_malformed_body_quotes_none_of_it)
{
    static const char *const bodies[] = {"{\"prompt\":secret}", "{\"prompt\":\"my secret",
                                         "{\"secret\":1,\"secret\":2}", "{\"a\":1 secret}", "[\"secret\""};
    for (size_t i = 0; i < sizeof bodies / sizeof *bodies; i++) {
        ck_body_refused(bodies[i], strlen(bodies[i]), "the body is not valid JSON: line 1, column ");
        ck_assert_msg(!strstr(status_message(), "secret"), "%s", status_message());
    }
}
END_TEST

// Returns `text` n times between `head` and "}".
static char *repeat(const char *head, const char *text, size_t n)
{
    size_t start = strlen(head), each = strlen(text);
    char *body = mem_alloc(start + n * each + 2);
    memcpy(body, head, start);
    for (size_t i = 0; i < n; i++)
        memcpy(body + start + i * each, text, each);
    body[start + n * each] = '}';
    return body;
}

START_TEST(bodies_that_would_take_much_memory_are_refused)
{
    char *nested = repeat("{\"a\":", "[", 5000), *objects = repeat("{\"a\":[", "{},", 70000),
         *numbers = repeat("{\"a\":[", "0,", 2200000);
    ck_body_refused(nested, strlen(nested), "the body is not valid JSON: line 1, column 2053: maximum parsing depth");
    ck_body_refused(objects, strlen(objects), "the body has over 65536 lists and objects: send fewer per request");
    ck_body_refused(numbers, strlen(numbers), "the body has over 2097152 values: send fewer per request");
    free(nested);
    free(objects);
    free(numbers);
}
END_TEST

START_TEST(brackets_within_strings_do_not_count)
{
    char *text = repeat("{\"a\":\"\\\"", "[,", 70000);
    size_t n = strlen(text);
    text[n - 1] = '"';
    char *whole = mem_format("%s}", text);
    json_decref(parse(whole));
    free(whole);
    free(text);
}
END_TEST

// --- fields of a generation

static enum status generation_read(const char *text, struct json_generation *g)
{
    json_t *body = parse(text);
    enum status status = json_generation_read(body, g);
    if (status == STATUS_OK) status = json_generation_finish(g);
    json_decref(body);
    return status;
}

static void ck_generation_refused(const char *text, enum status wanted, const char *sentence)
{
    struct json_generation g;
    ck_sentence(text, generation_read(text, &g), wanted, sentence);
    json_generation_fini(&g);
}

static const struct {
    const char *name, *right, *wrong; // `wrong`: the first letters of the JSON types that are refused
    const char *sentence;
} fields[] = {
    {"model", "\"m\"", "nrblo", "model: must be a string"},
    {"stream", "true", "nrslo", "stream: must be true or false"},
    {"n", "2", "rbslo", "n: must be a whole number"},
    {"best_of", "1", "rbslo", "best_of: must be a whole number"},
    {"stop", "\"x\"", "nrbo", "stop: must be a string or a list of strings"},
    {"stop_token_ids", "[1]", "nrbso", "stop_token_ids: must be a list of token ids"},
    {"user", "\"u\"", "nrblo", "user: must be a string"},
    {"tenant", "\"t\"", "nrblo", "tenant: must be a string"},
    {"priority", "-3", "rbslo", "priority: must be a whole number"},
    {"ttft_deadline_ms", "100", "rbslo", "ttft_deadline_ms: must be a whole number"},
    {"prefill", "\"off\"", "nrblo", "prefill: must be a string"},
    {"pinned", "[[0,1]]", "nrbso", "pinned: must be a list"},
    {"return_kept", "true", "nrslo", "return_kept: must be true or false"},
    {"return_token_ids", "true", "nrslo", "return_token_ids: must be true or false"},
    {"max_tokens", "8", "rbslo", "max_tokens: must be a whole number"},
    {"max_completion_tokens", "8", "rbslo", "max_completion_tokens: must be a whole number"},
    {"min_tokens", "1", "rbslo", "min_tokens: must be a whole number"},
    {"temperature", "0.5", "bslo", "temperature: must be a number"},
    {"top_k", "3", "rbslo", "top_k: must be a whole number"},
    {"top_p", "0.5", "bslo", "top_p: must be a number"},
    {"min_p", "0.5", "bslo", "min_p: must be a number"},
    {"seed", "7", "rbslo", "seed: must be a whole number"},
    {"repetition_penalty", "1.5", "bslo", "repetition_penalty: must be a number"},
    {"presence_penalty", "-1.5", "bslo", "presence_penalty: must be a number"},
    {"frequency_penalty", "1.5", "bslo", "frequency_penalty: must be a number"},
    {"ignore_eos", "true", "nrslo", "ignore_eos: must be true or false"},
    {"keep_rate", "0.5", "bslo", "keep_rate: must be a number"},
    {"look_ahead", "3", "rbslo", "look_ahead: must be a whole number"},
    {"chunk_tokens", "16", "rbslo", "chunk_tokens: must be \"auto\" or a whole number"},
    {"pool_window", "3", "rbslo", "pool_window: must be a whole number"},
    {"paper_exact", "true", "nrslo", "paper_exact: must be true or false"},
    {"drafts", "\"off\"", "nrblo", "drafts: must be a string"},
};

static const char *const values[] = {"7", "1.5", "true", "\"text\"", "[true]", "{}"};
static const char letters[] = "nrbslo"; // number, real, boolean, string, list, object

START_TEST(every_field_refuses_wrong_types_by_name)
{
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        for (const char *wrong = fields[i].wrong; *wrong; wrong++) {
            char *text = mem_format("{\"%s\":%s}", fields[i].name, values[strchr(letters, *wrong) - letters]);
            ck_generation_refused(text, STATUS_INVALID, fields[i].sentence);
            free(text);
        }
    }
}
END_TEST

START_TEST(null_means_not_given)
{
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        char *text = mem_format("{\"%s\":null}", fields[i].name);
        struct json_generation g, none;
        ck_assert_msg(generation_read(text, &g) == STATUS_OK, "%s: %s", text, status_message());
        ck_assert_int_eq(generation_read("{\"unknown\":1}", &none), STATUS_OK);
        ck_assert_uint_eq(g.sampling_given, none.sampling_given);
        ck_assert_mem_eq(&g.sampling, &none.sampling, sizeof g.sampling);
        json_generation_fini(&g);
        json_generation_fini(&none);
        free(text);
    }
}
END_TEST

START_TEST(every_field_takes_its_type)
{
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        char *text = mem_format("{\"%s\":%s%s}", fields[i].name, fields[i].right,
                                strcmp(fields[i].name, "best_of") ? "" : ",\"n\":1");
        struct json_generation g;
        ck_assert_msg(generation_read(text, &g) == STATUS_OK, "%s: %s", text, status_message());
        json_generation_fini(&g);
        free(text);
    }
}
END_TEST

START_TEST(numbers_out_of_range_are_refused_by_name)
{
    static const struct {
        const char *text, *sentence;
    } cases[] = {
        {"{\"n\":0}", "n 0: must be from 1 to 128"},
        {"{\"n\":9223372036854775807}", "n 9223372036854775807: must be from 1 to 128"},
        {"{\"priority\":3000000000}", "priority 3000000000: must be from -2147483648 to 2147483647"},
        {"{\"ttft_deadline_ms\":-1}", "ttft_deadline_ms -1: must be from 0 to 4294967295"},
        {"{\"max_tokens\":2147483648}", "max_tokens 2147483648: must be from 1 to 2147483647"},
        {"{\"max_completion_tokens\":3000000000}", "max_completion_tokens 3000000000: must be from 1 to 2147483647"},
        {"{\"min_tokens\":9223372036854775807}", "min_tokens 9.223372037e+18: must be from 0 to 2147483647"},
        {"{\"look_ahead\":-3000000000}", "look_ahead -3000000000: must be from 1 to 64"},
        {"{\"max_tokens\":0}", "max_tokens 0: must be 1 or more"},
        {"{\"max_tokens\":-1}", "max_tokens -1: must be 1 or more"},
        {"{\"max_completion_tokens\":0}", "max_completion_tokens 0: must be 1 or more"},
        {"{\"min_tokens\":-5}", "min_tokens -5: must be 0 or more"},
        {"{\"min_tokens\":5,\"max_tokens\":4}", "min_tokens 5: must be at most max_tokens (4)"},
        {"{\"temperature\":-0.5}", "temperature -0.5: must be from 0 to 2"},
        {"{\"temperature\":9}", "temperature 9: must be from 0 to 2"},
        {"{\"temperature\":1e300}", "temperature 1e+300: must be from 0 to 2"},
        {"{\"top_k\":-2}", "top_k -2: must be 0 or more"},
        {"{\"top_p\":-0.1}", "top_p -0.1: must be over 0 and at most 1"},
        {"{\"min_p\":2}", "min_p 2: must be from 0 to 1"},
        {"{\"repetition_penalty\":0}", "repetition_penalty 0: must be over 0 and at most 100"},
        {"{\"presence_penalty\":3}", "presence_penalty 3: must be from -2 to 2"},
        {"{\"keep_rate\":0}", "keep_rate 0: must be over 0 and at most 1"},
        {"{\"quality\":0}", "quality 0: must be over 0 and at most 1"},
        {"{\"quality\":1.5}", "quality 1.5: must be over 0 and at most 1"},
        {"{\"pool_window\":4}", "pool_window 4: must be odd"},
        {"{\"look_ahead\":0}", "look_ahead 0: must be from 1 to 64"},
        {"{\"stop_token_ids\":[-1]}", "stop_token_ids: must be at most 64 token ids of 0 or more"},
        {"{\"stop\":[1]}", "stop: must be a string or a list of strings"},
        {"{\"pinned\":[1]}", "pinned: must be a list of [first, last] token ranges"},
        {"{\"pinned\":[[1,-1]]}", "pinned: must be a list of [first, last] token ranges"},
        {"{\"prefill\":\"maybe\"}", "prefill: must be auto, on, off or required"},
        {"{\"model\":\"a\\u0000b\"}", "model: must be a string without U+0000"},
        {"{\"guided_json\":3}", "guided_json: must be a JSON schema"},
        {"{\"guided_regex\":[]}", "guided_regex: must be a string without U+0000"},
        {"{\"guided_choice\":[\"\"]}", "guided_choice: must be a list of strings that are not empty"},
        {"{\"guided_choice\":[\"a\"],\"guided_regex\":\"b\"}", "guided_choice: not allowed together with guided_regex"},
        {"{\"structured_outputs\":{\"regex\":\"a\"},\"response_format\":{\"type\":\"json_object\"}}",
         "response_format: not allowed together with structured_outputs"},
        {"{\"response_format\":{\"type\":\"xml\"}}",
         "response_format.type 'xml': must be text, json_object or json_schema"},
        {"{\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{}}}",
         "response_format.json_schema.schema: must be an object"},
        {"{\"structured_outputs\":{\"grammar\":\"a\"},\"guided_grammar\":\"b\"}",
         "structured_outputs: not allowed together with guided_grammar, which differs"},
        {"{\"max_tokens\":2.5}", "max_tokens: must be a whole number"},
        {"{\"max_tokens\":1e300}", "max_tokens: must be a whole number"},
        {"{\"max_tokens\":3000000000.0}", "max_tokens 3000000000: must be from 1 to 2147483647"},
        {"{\"stream_options\":5}", "stream_options: must be an object"},
        {"{\"stream\":true,\"stream_options\":{\"include_usage\":1}}", "include_usage: must be true or false"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        ck_generation_refused(cases[i].text, STATUS_INVALID, cases[i].sentence);
}
END_TEST

START_TEST(unsupported_parameters_are_refused_unless_they_are_harmless)
{
    static const char *const refused[] = {
        "{\"logprob_start\":1,\"bad_words\":[\"a\"]}",
        "{\"use_beam_search\":true}",
        "{\"skip_special_tokens\":false}",
        "{\"n\":2,\"best_of\":3}",
        "{\"truncate_prompt_tokens\":10}",
    };
    static const char *const harmless[] = {
        "{\"use_beam_search\":false}", "{\"skip_special_tokens\":true}",   "{\"quality\":null}",
        "{\"n\":2,\"best_of\":2}",     "{\"store\":true,\"metadata\":{}}",
    };
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        ck_generation_refused(refused[i], STATUS_UNSUPPORTED, "");
        ck_assert_msg(strstr(status_message(), "not supported") != NULL, "%s", status_message());
    }
    for (size_t i = 0; i < sizeof harmless / sizeof *harmless; i++) {
        struct json_generation g;
        ck_assert_msg(generation_read(harmless[i], &g) == STATUS_OK, "%s: %s", harmless[i], status_message());
        json_generation_fini(&g);
    }
}
END_TEST

// Reads a body that is accepted.
static struct json_generation accept(const char *text)
{
    struct json_generation g;
    ck_assert_msg(generation_read(text, &g) == STATUS_OK, "%s: %s", text, status_message());
    return g;
}

// Clients in languages without integers send 2.0.
START_TEST(a_whole_number_may_have_a_fraction_of_zero)
{
    struct json_generation g = accept("{\"max_tokens\":2.0,\"n\":3.0,\"seed\":-1.0,\"top_k\":-1.0,\"min_tokens\":1.0,"
                                      "\"stop_token_ids\":[9.0],\"pinned\":[[2.0,4.0]],\"chunk_tokens\":16.0,"
                                      "\"ttft_deadline_ms\":5e2}");
    ck_assert_uint_eq(g.sampling.max_tokens, 2);
    ck_assert_int_eq(g.n, 3);
    ck_assert_uint_eq(g.sampling.seed, UINT64_MAX);
    ck_assert_int_eq(g.sampling.stop_ids[0], 9);
    ck_assert_uint_eq(g.pinned[0].last, 4);
    ck_assert_uint_eq(g.message.ttft_deadline_ms, 500);
    json_generation_fini(&g);
}
END_TEST

START_TEST(top_p_zero_leaves_the_most_likely_token)
{
    struct json_generation g = accept("{\"top_p\":0,\"top_k\":5}");
    ck_assert_uint_eq(g.message.sampling->top_k, 1);
    ck_assert(g.sampling.top_p == 1);
    json_generation_fini(&g);
}
END_TEST

START_TEST(options_of_a_stream_have_no_effect_without_one)
{
    struct json_generation g = accept("{\"stream\":false,\"stream_options\":{\"include_usage\":true}}");
    ck_assert(!g.stream);
    json_generation_fini(&g);
}
END_TEST

START_TEST(equal_grammars_in_two_fields_are_one_grammar)
{
    static const char *const bodies[] = {
        "{\"structured_outputs\":{\"grammar\":\"start: \\\"a\\\"\"},\"guided_grammar\":\"start: \\\"a\\\"\"}",
        "{\"structured_outputs\":{\"regex\":\"a+\"},\"guided_regex\":\"a+\"}",
        "{\"structured_outputs\":{\"choice\":[\"a\",\"b\"]},\"guided_choice\":[\"a\",\"b\"]}",
        "{\"guided_json\":{\"type\":\"object\"},\"response_format\":{\"type\":\"json_object\"}}",
    };
    for (size_t i = 0; i < sizeof bodies / sizeof *bodies; i++) {
        struct json_generation g = accept(bodies[i]);
        ck_assert_int_ne(g.sampling.grammar.kind, GRAMMAR_NONE);
        json_generation_fini(&g);
    }
}
END_TEST

START_TEST(fields_arrive_in_the_message)
{
    struct json_generation g;
    json_t *body = parse("{\"model\":\"m\",\"tenant\":\"t\",\"priority\":-2,\"ttft_deadline_ms\":500,\"n\":3,"
                         "\"stream\":true,\"stream_options\":{\"include_usage\":true},\"stop\":[\"a\\u0000\",\"b\"],"
                         "\"seed\":-1,\"top_k\":-1,\"max_tokens\":5,\"max_completion_tokens\":6,\"stop_token_ids\":[9],"
                         "\"prefill\":\"required\",\"keep_rate\":0.25,\"pinned\":[[2,4]],\"return_kept\":true}");
    ck_assert_msg(json_generation_read(body, &g) == STATUS_OK, "%s", status_message());
    ck_assert_int_eq(json_generation_finish(&g), STATUS_OK);
    const Forepack__V1__SamplingOptions *s = g.message.sampling;
    const Forepack__V1__PrefillOptions *p = g.message.prefill;
    ck_assert_str_eq(g.message.model, "m");
    ck_assert_str_eq(g.message.tenant, "t");
    ck_assert_int_eq(g.message.priority, -2);
    ck_assert_uint_eq(g.message.ttft_deadline_ms, 500);
    ck_assert_int_eq(g.n, 3);
    ck_assert(g.stream);
    ck_assert(g.include_usage);
    ck_assert(!g.continuous_usage);
    ck_assert_uint_eq(s->n_stop, 2);
    ck_assert_uint_eq(s->stop[0].len, 2);
    ck_assert_uint_eq(s->seed, UINT64_MAX);
    ck_assert_uint_eq(s->top_k, 0);
    ck_assert_uint_eq(s->max_tokens, 6);
    ck_assert(s->temperature == 1);
    ck_assert_uint_eq(s->n_stop_token_ids, 1);
    ck_assert_int_eq(s->stop_token_ids[0], 9);
    ck_assert_int_eq(p->mode, FOREPACK__V1__PREFILL_MODE__PREFILL_MODE_REQUIRED);
    ck_assert(p->keep_rate == 0.25);
    ck_assert(p->return_kept);
    ck_assert_uint_eq(p->n_pinned, 1);
    ck_assert_int_eq(p->pinned[0]->first, 2);
    ck_assert_int_eq(p->pinned[0]->last, 4);
    json_generation_fini(&g);
    json_decref(body);
}
END_TEST

START_TEST(max_completion_tokens_wins_over_max_tokens_zero)
{
    struct json_generation g;
    json_t *body = parse("{\"max_tokens\":0,\"max_completion_tokens\":6}");
    ck_assert_int_eq(json_generation_read(body, &g), STATUS_OK);
    ck_assert(!g.sampling.no_output);
    ck_assert_int_eq(json_generation_finish(&g), STATUS_OK);
    ck_assert_uint_eq(g.message.sampling->max_tokens, 6);
    json_generation_fini(&g);
    json_decref(body);
}
END_TEST

// --- writing

static void ck_written(const char *text, size_t n, const char *json)
{
    struct bytes out = {0};
    json_add_text(&out, text, n);
    bytes_add(&out, "", 1);
    ck_assert_str_eq(out.data, json);
    bytes_free(&out);
}

START_TEST(written_text_is_valid_json)
{
    ck_written("", 0, "\"\"");
    ck_written("a\"b\\c\n\r\t\b\f\v\0\x1f/", 14, "\"a\\\"b\\\\c\\n\\r\\t\\b\\f\\u000b\\u0000\\u001f/\"");
    ck_written("\xc3\xa4\xf0\x9f\x99\x82", 6, "\"\xc3\xa4\xf0\x9f\x99\x82\"");
    ck_written("a\xff\xc3", 3, "\"a\xef\xbf\xbd\xef\xbf\xbd\"");
    for (int c = 0; c < 256; c++) { // every byte gives valid JSON
        char byte = (char)c;
        struct bytes out = {0};
        json_add_text(&out, &byte, 1);
        json_t *back = json_loadb(out.data, out.n, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
        ck_assert_msg(json_is_string(back), "byte %d", c);
        if (c < 128) {
            ck_assert_uint_eq(json_string_length(back), 1);
            ck_assert_int_eq(json_string_value(back)[0], byte);
        }
        json_decref(back);
        bytes_free(&out);
    }
}
END_TEST

START_TEST(written_numbers_are_finite)
{
    struct bytes out = {0};
    JSON_ADD(&out, "[");
    json_add_real(&out, -0.1234567890123);
    json_add_comma(&out);
    json_add_real(&out, -(double)INFINITY);
    json_add_comma(&out);
    json_add_integer(&out, INT64_MIN);
    JSON_ADD(&out, "]");
    bytes_add(&out, "", 1);
    ck_assert_str_eq(out.data, "[-0.123456789,-9999,-9223372036854775808]");
    bytes_free(&out);
}
END_TEST

SUITE("json_request")
{
    TCASE("bodies");
    TEST(bodies_that_are_not_json_objects_are_refused);
    TEST(the_sentence_of_a_malformed_body_quotes_none_of_it);
    TEST(bodies_that_would_take_much_memory_are_refused);
    TEST(brackets_within_strings_do_not_count);

    TCASE("fields");
    TEST(every_field_refuses_wrong_types_by_name);
    TEST(null_means_not_given);
    TEST(every_field_takes_its_type);
    TEST(numbers_out_of_range_are_refused_by_name);
    TEST(unsupported_parameters_are_refused_unless_they_are_harmless);
    TEST(a_whole_number_may_have_a_fraction_of_zero);
    TEST(top_p_zero_leaves_the_most_likely_token);
    TEST(options_of_a_stream_have_no_effect_without_one);
    TEST(equal_grammars_in_two_fields_are_one_grammar);
    TEST(fields_arrive_in_the_message);
    TEST(max_completion_tokens_wins_over_max_tokens_zero);

    TCASE("writing");
    TEST(written_text_is_valid_json);
    TEST(written_numbers_are_finite);
}
