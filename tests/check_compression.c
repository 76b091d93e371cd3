// SPDX-License-Identifier: Apache-2.0
// Tests what a compression keeps: the roles, ids and calls of all messages, whole texts where the rules say so, and
// otherwise the most important units within the budget, as an independent and slow choice finds them.
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "lib/base/random.h"
#include "lib/base/utf8.h"
#include "router/front/request/compression.h"
#include "tests/suite.h"

static struct front front = {.model_names = (char *[]){"demo"}, .n_model_names = 1, .config = {.max_context = 4096}};

static void setup(void)
{
    const char *source = getenv("FOREPACK_SOURCE");
    char *dir = mem_format("%s/deploy/demo-model/main", source ? source : ".");
    ck_assert_int_eq(tokenizer_open(dir, &front.tokenizer), STATUS_OK);
    free(dir);
}

static void teardown(void)
{
    tokenizer_free(front.tokenizer);
}

static json_t *parse(const char *text)
{
    json_error_t error;
    json_t *value = json_loads(text, JSON_DECODE_ANY, &error);
    ck_assert_msg(value != NULL, "%s: %s", text, error.text);
    return value;
}

// Compresses `input` (JSON), of which it takes ownership. The importance of a token is 9 if it begins in `wanted`,
// else 1. The caller frees the compression.
static struct compression *compress(json_t *input, bool cut_system, const char *wanted, double keep_rate)
{
    struct compression *c = NULL;
    int32_t *tokens = NULL;
    ck_assert_int_eq(compression_create(input, cut_system, &c), STATUS_OK);
    ck_assert_int_eq(compression_tokenise(&front, c, &tokens), STATUS_OK);
    float *importance = mem_alloc_array((size_t)c->tokens_before, sizeof *importance);
    for (int t = 0; t < c->tokens_before; t++) {
        importance[t] = 1;
        for (int i = 0; i < c->n_texts; i++) {
            const char *text = json_string_value(c->texts[i].value), *at = strstr(text, wanted);
            size_t start = c->texts[i].joined.start + (size_t)(at ? at - text : 0);
            if (at && c->starts[t] >= start && c->starts[t] < start + strlen(wanted)) importance[t] = 9;
        }
    }
    compression_apply(&front, c, importance, &(struct compress_goal){keep_rate, false});
    free(importance);
    free(tokens);
    return c;
}

static const char *content(const struct compression *c, size_t i)
{
    return json_string_value(json_object_get(json_array_get(c->input, i), "content"));
}

static const char facts[] = "The lighthouse was built by the harbour. The code of the gate is 4892 today. "
                            "The gulls circled over the old town. The painter waited near the bridge.";
static const char fact[] = "The code of the gate is 4892 today. ";

START_TEST(a_tool_result_is_cut_and_its_ids_stay)
{
    json_t *input =
        parse("[{\"role\":\"system\",\"content\":\"Be brief. Be kind and do as you are told to do, always.\"},"
              "{\"role\":\"user\",\"content\":\"What is the code?\"},"
              "{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"id\":\"call_1\",\"type\":\"function\","
              "\"function\":{\"name\":\"read\",\"arguments\":\"{\\\"path\\\":\\\"a. b\\\"}\"}}]},"
              "{\"role\":\"tool\",\"tool_call_id\":\"call_1\",\"name\":\"read\",\"x\":[1.5,null]}]");
    json_object_set_new(json_array_get(input, 3), "content", json_string(facts));
    json_t *expected = json_deep_copy(input);
    json_object_set_new(json_array_get(expected, 3), "content", json_string(fact));
    struct compression *c = compress(input, false, "4892", 0.1);
    ck_assert(json_equal(c->input, expected));
    ck_assert_int_lt(c->tokens_after, c->tokens_before);
    json_decref(expected);
    compression_free(c);
}
END_TEST

START_TEST(system_messages_are_cut_if_the_client_says_so)
{
    for (int cut = 0; cut < 2; cut++) {
        json_t *input = parse("[{\"role\":\"system\"},{\"role\":\"user\",\"content\":\"Which code?\"}]");
        json_object_set_new(json_array_get(input, 0), "content", json_string(facts));
        struct compression *c = compress(input, cut, "4892", 0.1);
        ck_assert_str_eq(content(c, 0), cut ? fact : facts);
        ck_assert_str_eq(compress_rule_name(c->texts[0].rule), cut ? "prose" : "system");
        compression_free(c);
    }
}
END_TEST

START_TEST(only_the_last_message_of_the_user_is_whole)
{
    json_t *input = json_pack("[{s:s,s:s},{s:s,s:s},{s:s,s:s}]", "role", "user", "content", facts, "role", "user",
                              "content", facts, "role", "assistant", "content", facts);
    struct compression *c = compress(input, false, "4892", 0.1);
    ck_assert_str_eq(content(c, 0), fact);
    ck_assert_str_eq(content(c, 1), facts);
    ck_assert_str_eq(content(c, 2), fact);
    compression_free(c);
}
END_TEST

START_TEST(parts_are_cut_one_by_one)
{
    json_t *input =
        json_pack("[{s:s,s:[{s:s,s:s},{s:s,s:{s:s}},{s:s,s:s,s:s}]},{s:s,s:s}]", "role", "user", "content", "type",
                  "text", "text", facts, "type", "image_url", "image_url", "url", "data:x", "type", "tool_result",
                  "tool_use_id", "t1", "content", facts, "role", "user", "content", "Which code?");
    json_t *expected = json_deep_copy(input), *parts = json_object_get(json_array_get(expected, 0), "content");
    json_object_set_new(json_array_get(parts, 0), "text", json_string(fact));
    json_object_set_new(json_array_get(parts, 2), "content", json_string(fact));
    struct compression *c = compress(input, false, "4892", 0.1);
    ck_assert(json_equal(c->input, expected));
    ck_assert_int_eq(c->texts[1].part, 2);
    json_decref(expected);
    compression_free(c);
}
END_TEST

START_TEST(a_prompt_keeps_its_last_paragraph)
{
    char *prompt = mem_format("%s %s %s\n\nWhat is the code of the gate?\nAnswer:", facts, facts, facts);
    struct compression *c = compress(json_string(prompt), false, "4892", 0.4);
    ck_assert(strstr(json_string_value(c->input), "4892") != NULL);
    ck_assert(strstr(json_string_value(c->input), "What is the code of the gate?\nAnswer:") != NULL);
    ck_assert_int_le(c->tokens_after, c->tokens_before * 2 / 5 + 1);
    compression_free(c);
    free(prompt);
}
END_TEST

// --- errors

static const struct error_case {
    const char *input, *sentence;
} errors[] = {
    {"[]", "messages: at least one is required"},
    {"[1]", "messages[0]: must be an object with role and content"},
    {"[{}]", "messages[0]: role must be a string"},
    {"[{\"role\":\"user\"},{\"role\":\"robot\"}]",
     "messages[1]: role 'robot' is not known: give system, developer, user, assistant, tool or function"},
    {"[{\"role\":\"user\",\"content\":3}]", "messages[0]: content must be a string, a list of parts or null"},
    {"[{\"role\":\"user\",\"content\":[\"x\"]}]", "messages[0]: each part of content must be an object with a type"},
    {"[{\"role\":\"user\",\"content\":[{\"type\":\"text\"}]}]", "messages[0]: the text of a part must be a string"},
    {"[{\"role\":\"user\",\"content\":[{\"type\":\"tool_result\",\"content\":{}}]}]",
     "messages[0]: content must be a string, a list of parts or null"},
};

START_TEST(malformed_messages_are_refused)
{
    struct compression *c = NULL;
    ck_assert_int_eq(compression_create(parse(errors[_i].input), false, &c), STATUS_INVALID);
    ck_assert_str_eq(status_message(), errors[_i].sentence);
    ck_assert_ptr_null(c);
}
END_TEST

START_TEST(as_many_messages_as_allowed_are_accepted)
{
    for (int more = 0; more < 2; more++) {
        json_t *input = json_array();
        for (int i = 0; i < INTAKE_MESSAGES_MAX + more; i++)
            json_array_append_new(input, json_pack("{s:s,s:s}", "role", "user", "content", "x"));
        struct compression *c = NULL;
        ck_assert_int_eq(compression_create(input, false, &c), more ? STATUS_INVALID : STATUS_OK);
        compression_free(c);
    }
    ck_assert_str_eq(status_message(), "messages: 4097 given, at most 4096 are allowed");
}
END_TEST

START_TEST(texts_over_the_context_are_refused)
{
    struct bytes text = {0};
    for (int i = 0; i < front.config.max_context; i++)
        bytes_add(&text, " a", 2);
    for (int more = 0; more < 2; more++) {
        struct compression *c = NULL;
        int32_t *tokens = NULL;
        size_t n = text.n - (more ? 0 : 2); // BOS is a token, too
        ck_assert_int_eq(compression_create(json_stringn(text.data, n), false, &c), STATUS_OK);
        ck_assert_int_eq(compression_tokenise(&front, c, &tokens), more ? STATUS_OUT_OF_RANGE : STATUS_OK);
        compression_free(c);
        if (!more) free(tokens);
    }
    ck_assert_msg(strstr(status_message(), "maximum context length is 4096 tokens") != NULL, "%s", status_message());
    bytes_free(&text);
}
END_TEST

// --- random messages

static const char *const parts[] = {"The gulls circled over the town. ",
                                    "A letter came. ",
                                    "\n",
                                    "\n\n",
                                    "```\nx = 1;\n```\n",
                                    "    indented;\n",
                                    "4892",
                                    "é。",
                                    "🙂 ",
                                    "[1, 2, 3]",
                                    "word "};
static const char *const roles[] = {"system", "user", "assistant", "tool"};

static char *random_text(struct random_source *random)
{
    struct bytes text = {0};
    if (random_below(random, 6) == 0) bytes_add(&text, "[{\"a\": 1}, {\"b\": \"x. y\"}, 3]", 28);
    for (int n = text.n ? 0 : random_below(random, 20); n > 0; n--) {
        const char *part = parts[random_below(random, sizeof parts / sizeof *parts)];
        bytes_add(&text, part, strlen(part));
    }
    bytes_add(&text, "", 1);
    return text.data;
}

static json_t *random_messages(struct random_source *random)
{
    json_t *messages = json_array();
    for (int n = 1 + random_below(random, 6); n > 0; n--) {
        char *text = random_text(random);
        json_t *message = json_pack("{s:s,s:s}", "role", roles[random_below(random, 4)], "content", text);
        if (random_below(random, 3) == 0) json_object_set_new(message, "tool_call_id", json_string("call_7"));
        json_array_append_new(messages, message);
        free(text);
    }
    return messages;
}

// Finds the units of one text that are kept within `budget` tokens, by searching for the best unit again and again.
// Returns true if `keep` is this choice; texts with blocks are left out, because their frames are kept with units.
static bool choice_is_right(const struct compress_text *text, const float *importance, const size_t *starts,
                            int n_tokens, int budget)
{
    int n = text->units.n;
    double *scores = mem_alloc_array((size_t)n + 1, sizeof *scores);
    int *sizes = mem_alloc_array((size_t)n + 1, sizeof *sizes), used = n_tokens;
    bool *taken = mem_alloc_array((size_t)n + 1, sizeof *taken), right = true, any_fixed = false;
    for (int u = 0; u < n; u++) {
        const struct text_range *range = &text->units.units[u].range;
        for (int t = 0; t < n_tokens; t++) {
            if (starts[t] < range->start || starts[t] >= range->end) continue;
            scores[u] += importance[t];
            sizes[u]++;
        }
        if (sizes[u]) scores[u] /= sizes[u];
        if (!text->units.units[u].fixed) used -= sizes[u];
        any_fixed |= text->units.units[u].fixed;
    }
    for (int round = 0; round < n; round++) {
        int best = -1;
        for (int u = 0; u < n; u++)
            if (!taken[u] && (best < 0 || scores[u] > scores[best])) best = u;
        taken[best] = true;
        bool fixed = text->units.units[best].fixed;
        bool kept = fixed || used + sizes[best] <= budget;
        if (!fixed && kept) used += sizes[best];
        if (kept != text->keep[best]) right = false;
    }
    free(scores);
    free(sizes);
    free(taken);
    return right && any_fixed;
}

START_TEST(the_best_units_are_kept)
{
    struct random_source random = random_stream(3, (uint64_t)_i);
    struct bytes prompt = {0};
    for (int i = 0; i < 30; i++) {
        char line[128];
        int n = snprintf(line, sizeof line, "The number of box %d is %d, and nobody knows why.\n", i, i * i);
        bytes_add(&prompt, line, (size_t)n);
    }
    bytes_add(&prompt, "\nWhy does nobody know about all of this?\n", 41);
    struct compression *c = NULL;
    int32_t *tokens = NULL;
    ck_assert_int_eq(compression_create(json_stringn(prompt.data, prompt.n), false, &c), STATUS_OK);
    ck_assert_int_eq(compression_tokenise(&front, c, &tokens), STATUS_OK);
    float *importance = mem_alloc_array((size_t)c->tokens_before, sizeof *importance);
    for (int t = 0; t < c->tokens_before; t++)
        importance[t] = (float)random_unit(&random);
    int budget = 30 + random_below(&random, c->tokens_before - 30);
    compression_apply(&front, c, importance, &(struct compress_goal){(double)budget / c->tokens_before, false});
    ck_assert_int_le(c->tokens_after, budget);
    // Lines end with tokens of their own, so no attempt is repeated.
    json_string_setn(c->input, prompt.data, prompt.n);
    ck_assert(choice_is_right(&c->texts[0], importance, c->starts, c->tokens_before, budget));
    free(importance);
    free(tokens);
    bytes_free(&prompt);
    compression_free(c);
}
END_TEST

// Checks that the text is its kept ranges, in order.
static void check_ranges(const struct compress_text *text, const char *before, const char *after)
{
    struct bytes joined = {0};
    size_t end = 0;
    for (int k = 0; k < text->n_kept; k++) {
        ck_assert_uint_ge(text->kept[k].start, end);
        ck_assert_uint_le(text->kept[k].end, strlen(before));
        end = text->kept[k].end;
        bytes_add(&joined, before + text->kept[k].start, end - text->kept[k].start);
    }
    bytes_add(&joined, "", 1);
    ck_assert_str_eq(after, joined.data);
    ck_assert(utf8_valid(after, strlen(after), NULL));
    if (*before) ck_assert_str_ne(after, "");
    bytes_free(&joined);
}

static void check_messages(const json_t *before, const struct compression *c)
{
    size_t n = json_array_size(before), last_user = n;
    ck_assert_uint_eq(json_array_size(c->input), n);
    for (size_t i = 0; i < n; i++)
        if (!strcmp(json_string_value(json_object_get(json_array_get(before, i), "role")), "user")) last_user = i;
    for (size_t i = 0; i < n; i++) {
        json_t *old = json_copy(json_array_get(before, i)), *new = json_copy(json_array_get(c->input, i));
        const char *was = json_string_value(json_object_get(old, "content")), *is = content(c, i);
        bool system = !strcmp(json_string_value(json_object_get(old, "role")), "system");
        if (i == last_user || system) ck_assert_str_eq(was, is);
        if (c->texts[i].rule == COMPRESS_JSON) json_decref(parse(is));
        check_ranges(&c->texts[i], was, is);
        json_object_del(old, "content");
        json_object_del(new, "content");
        ck_assert(json_equal(old, new));
        json_decref(old);
        json_decref(new);
    }
}

START_TEST(random_messages_keep_what_must_stay)
{
    struct random_source random = random_stream(5, (uint64_t)_i);
    for (int round = 0; round < 100; round++) {
        json_t *before = random_messages(&random);
        double keep_rate = 0.01 + random_unit(&random) * 0.98;
        struct compression *c = compress(json_deep_copy(before), false, "4892", keep_rate);
        ck_assert_int_eq(c->n_texts, (int)json_array_size(before));
        check_messages(before, c);
        compression_free(c);
        json_decref(before);
    }
}
END_TEST

SUITE("compression")
{
    FIXTURE_ONCE(setup, teardown);
    TEST(a_tool_result_is_cut_and_its_ids_stay);
    TEST(system_messages_are_cut_if_the_client_says_so);
    TEST(only_the_last_message_of_the_user_is_whole);
    TEST(parts_are_cut_one_by_one);
    TEST(a_prompt_keeps_its_last_paragraph);
    EACH(malformed_messages_are_refused, errors);
    TEST(as_many_messages_as_allowed_are_accepted);
    TEST(texts_over_the_context_are_refused);
    LOOP(the_best_units_are_kept, 0, 20);
    LOOP(random_messages_keep_what_must_stay, 0, 10);
}
