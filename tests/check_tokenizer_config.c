// SPDX-License-Identifier: Apache-2.0
// Tokens that are not in tokenizer.json but in other files are recognised in texts, or refused with the key that names
// them.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "tests/suite.h"
#include "tests/text_data.h"

// Opens the fixture "bytes" with these additional files.
static struct tokenizer *open_files(const char *config, const char *map, const char *added, enum status *status_p)
{
    char *path = fixture_path("bytes/tokenizer.json"), *text = file_read(path, NULL);
    char *dir = scratch_create(text, config);
    struct tokenizer *t = NULL;
    if (map) scratch_write(dir, "special_tokens_map.json", map);
    if (added) scratch_write(dir, "added_tokens.json", added);
    *status_p = tokenizer_open(dir, &t);
    scratch_remove(dir);
    free(text);
    free(path);
    return t;
}

// Checks that the ids of "a<word>b" are those of "a", `id`, "b".
static void ck_recognised(const struct tokenizer *t, const char *word, int32_t id, bool special)
{
    char *text = mem_format("a%sb", word);
    int32_t *ids;
    int n;
    ck_assert_int_eq(tokenizer_encode(t, text, strlen(text), TOKENIZER_PARSE_SPECIAL, &ids, &n), STATUS_OK);
    ck_assert_msg(n == 3, "%s: %d tokens", text, n);
    ck_assert_msg(ids[1] == id, "%s: the second token is %d, not %d", text, ids[1], id);
    ck_assert_int_eq(tokenizer_is_special(t, id), special);
    free(ids);
    free(text);
}

static struct tokenizer *open_ok(const char *config, const char *map, const char *added)
{
    enum status status;
    struct tokenizer *t = open_files(config, map, added, &status);
    ck_assert_msg(status == STATUS_OK, "%s", status_message());
    return t;
}

static int32_t next_id(void)
{
    struct tokenizer *t = open_ok(NULL, NULL, NULL);
    int32_t next = tokenizer_vocab_size(t);
    tokenizer_free(t);
    return next;
}

START_TEST(tokens_of_added_tokens_decoder_are_recognised)
{
    const int32_t next = next_id();
    char *config = mem_format("{\"added_tokens_decoder\":{\"%d\":{\"content\":\"<two>\",\"special\":false},"
                              "\"%d\":{\"content\":\"<one>\",\"special\":true}}}",
                              next + 1, next);
    struct tokenizer *t = open_ok(config, NULL, NULL);
    ck_assert_int_eq(tokenizer_vocab_size(t), next + 2);
    ck_recognised(t, "<one>", next, true);
    ck_recognised(t, "<two>", next + 1, false);
    tokenizer_free(t);
    free(config);
}
END_TEST

START_TEST(flags_of_added_tokens_decoder_override_those_of_tokenizer_json)
{
    struct tokenizer *t = open_ok(NULL, NULL, NULL);
    ck_recognised(t, "</s>", 505, true);
    tokenizer_free(t);
    // A special token stays special. As a single word it is not recognised between letters.
    t = open_ok("{\"added_tokens_decoder\":{\"505\":{\"content\":\"</s>\",\"special\":false,\"single_word\":true}}}",
                NULL, NULL);
    ck_assert(tokenizer_is_special(t, 505));
    int32_t *ids;
    int n;
    ck_assert_int_eq(tokenizer_encode(t, "a</s>b", 6, TOKENIZER_PARSE_SPECIAL, &ids, &n), STATUS_OK);
    ck_assert_int_gt(n, 3);
    free(ids);
    tokenizer_free(t);
}
END_TEST

START_TEST(named_and_extra_tokens_of_the_vocabulary_become_special)
{
    static const char *const configs[] = {
        "{\"pad_token\":\"th\"}",
        "{\"image_token\":\"th\"}",
        "{\"pad_token\":{\"__type\":\"AddedToken\",\"content\":\"th\",\"lstrip\":false}}",
        "{\"extra_special_tokens\":[\"th\"]}",
        "{\"extra_special_tokens\":{\"image_token\":\"th\"}}",
        "{\"additional_special_tokens\":[\"th\"]}",
        "{\"additional_special_tokens\":[\"th\"],\"extra_special_tokens\":[]}",
        "{\"pad_token\":\"th\",\"sep_token\":{\"content\":\"th\",\"lstrip\":false}}",
    };
    struct tokenizer *t = open_ok(NULL, NULL, NULL);
    int32_t id = 0;
    while (!tokenizer_token(t, id) || strcmp(tokenizer_token(t, id), "th") != 0)
        id++;
    ck_assert(!tokenizer_is_special(t, id));
    tokenizer_free(t);
    for (size_t i = 0; i < sizeof configs / sizeof configs[0]; i++) {
        t = open_ok(configs[i], NULL, NULL);
        ck_recognised(t, "th", id, true);
        tokenizer_free(t);
    }
    t = open_ok("{}", "{\"pad_token\":{\"content\":\"th\"}}", NULL);
    ck_recognised(t, "th", id, true);
    tokenizer_free(t);
    t = open_ok("{\"added_tokens_decoder\":{}}", "{\"pad_token\":\"th\"}",
                NULL); // transformers 5 does not read the map
    ck_assert(!tokenizer_is_special(t, id));
    tokenizer_free(t);
}
END_TEST

START_TEST(tokens_of_added_tokens_json_are_recognised)
{
    const int32_t next = next_id();
    char *added = mem_format("{\"<two>\":%d,\"<one>\":%d}", next + 1, next);
    struct tokenizer *t = open_ok("{\"pad_token\":\"<one>\"}", NULL, added);
    ck_recognised(t, "<one>", next, true);
    ck_recognised(t, "<two>", next + 1, false);
    tokenizer_free(t);
    t = open_ok("{\"added_tokens_decoder\":{}}", NULL, added);
    ck_assert_int_eq(tokenizer_vocab_size(t), next);
    tokenizer_free(t);
    free(added);
}
END_TEST

START_TEST(uncertain_tokens_are_refused_by_their_key)
{
    static const struct {
        const char *config, *sentence;
    } cases[] = {
        {"{\"added_tokens_decoder\":{\"9000\":{\"content\":\"<x>\"}}}", "added_tokens_decoder.9000: \"<x>\" is not"},
        {"{\"pad_token\":\"<x>\"}", "pad_token \"<x>\" is not a token of tokenizer.json"},
        {"{\"extra_special_tokens\":[\"<x>\"]}", "extra_special_tokens \"<x>\" is not"},
        {"{\"split_special_tokens\":true}", "split_special_tokens is true"},
        {"{\"added_tokens_decoder\":[]}", "added_tokens_decoder is an array"},
        {"{\"pad_token\":\"th\",\"sep_token\":{\"content\":\"th\",\"lstrip\":true}}",
         "pad_token and sep_token name \"th\" with different flags"},
        {"{\"extra_special_tokens\":[{\"content\":\"th\",\"rstrip\":true},\"th\"]}",
         "extra_special_tokens and extra_special_tokens name \"th\" with different flags"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        enum status status;
        open_files(cases[i].config, NULL, NULL, &status);
        ck_assert_msg(status != STATUS_OK, "%s was not refused", cases[i].config);
        ck_assert_msg(strstr(status_message(), cases[i].sentence) != NULL, "%s", status_message());
        ck_assert_msg(strstr(status_message(), "tokenizer_config.json: ") != NULL, "%s", status_message());
    }
}
END_TEST

START_TEST(the_post_processor_alone_decides_which_tokens_surround_a_text)
{
    static const struct {
        const char *base, *config;
        int before;
    } cases[] = {
        {"pieces", "{\"tokenizer_class\":\"LlamaTokenizer\",\"bos_token\":\"<s>\",\"add_bos_token\":false}", 1},
        {"pieces", "{\"bos_token\":\"<s>\",\"eos_token\":\"</s>\",\"add_eos_token\":true}", 1},
        {"bytes", "{\"bos_token\":\"<s>\",\"add_bos_token\":true}", 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct tokenizer *t = open_variant(cases[i].base, NULL, cases[i].config);
        int32_t *bare, *ids;
        int n_bare, n;
        ck_assert_int_eq(tokenizer_encode(t, "a", 1, 0, &bare, &n_bare), STATUS_OK);
        ck_assert_int_eq(tokenizer_encode(t, "a", 1, TOKENIZER_ADD_SPECIAL, &ids, &n), STATUS_OK);
        ck_assert_msg(n == n_bare + cases[i].before, "%s: %d tokens, %d without", cases[i].config, n, n_bare);
        free(bare);
        free(ids);
        tokenizer_free(t);
    }
}
END_TEST

SUITE("tokenizer config")
{
    TEST(tokens_of_added_tokens_decoder_are_recognised);
    TEST(flags_of_added_tokens_decoder_override_those_of_tokenizer_json);
    TEST(named_and_extra_tokens_of_the_vocabulary_become_special);
    TEST(tokens_of_added_tokens_json_are_recognised);
    TEST(uncertain_tokens_are_refused_by_their_key);
    TEST(the_post_processor_alone_decides_which_tokens_surround_a_text);
}
