// SPDX-License-Identifier: Apache-2.0
// The files of a tokenizer: tokenizer_config.json, derived values (bound, fingerprint), and broken or unsupported
// files, which are refused with a reason and never crash.
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/base/mem.h"
#include "lib/base/utf8.h"
#include "lib/text/pattern.h"
#include "lib/text/unicode.h"
#include "tests/suite.h"
#include "text_data.h"

static void encode_into(struct tokenizer *t, const char *text, size_t n, unsigned flags, int32_t **ids_p, int *n_p)
{
    enum status status = tokenizer_encode(t, text, n, flags, ids_p, n_p);
    ck_assert_msg(status == STATUS_OK, "%s", status_message());
}

static const char hard_text[] = "  Hello <|im_start|> the License,\n 漢字 e\u0301 12345 <0x0A> 😀";

// ---- tokenizer_config.json and the accessors.

START_TEST(config_names_eos)
{
    struct tokenizer *t =
        open_variant("pieces", NULL, "{\"bos_token\": \"<s>\", \"eos_token\": {\"content\": \"</s>\"}}");
    ck_assert_int_eq(tokenizer_eos(t), 2);
    ck_assert_int_eq(tokenizer_vocab_size(t), 560);
    ck_assert(tokenizer_is_special(t, 0));
    ck_assert(!tokenizer_is_special(t, 3));
    ck_assert_str_eq(tokenizer_token(t, 13), "<0x0A>");
    tokenizer_free(t);
    t = open_variant("pieces", NULL, "{\"model_max_length\": 1000000000000000019884624838656}");
    ck_assert_int_eq(tokenizer_eos(t), -1);
    tokenizer_free(t);
    t = open_variant("bytes", NULL, NULL);
    ck_assert_int_eq(tokenizer_eos(t), -1);
    tokenizer_free(t);
}
END_TEST

START_TEST(longest_piece_is_a_bound_or_none)
{
    static const struct {
        const char *base, *change;
        bool bounded;
    } cases[] = {
        {"bytes", NULL, true},
        {"pieces", NULL, true},
        {"pieces", "{\"model.byte_fallback\": false}", false},
        {"pieces", "{\"model.byte_fallback\": false, \"model.fuse_unk\": false}", true},
        {"pieces", "{\"model.byte_fallback\": false, \"model.unk_token\": null}", false},
        {"pieces", "{\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"Regex\":\" +\"},\"content\":\" \"}}", false},
        {"bytes",
         "{\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"String\":\" "
         "\"},\"behavior\":\"Removed\",\"invert\":false},{\"type\":\"ByteLevel\"}]}}",
         false},
        {"bytes", "{\"added_tokens\":[{\"id\":500,\"content\":\"<x>\",\"lstrip\":true}]}", false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct tokenizer *t = open_variant(cases[i].base, cases[i].change, NULL);
        ck_assert_msg((tokenizer_longest_piece_bytes(t) != SIZE_MAX) == cases[i].bounded, "case %zu", i);
        tokenizer_free(t);
    }
}
END_TEST

static uint64_t fingerprint_of(const char *text)
{
    char *dir = scratch_create(text, NULL);
    struct tokenizer *t = open_dir(dir);
    uint64_t fingerprint = tokenizer_fingerprint(t);
    tokenizer_free(t);
    scratch_remove(dir);
    return fingerprint;
}

START_TEST(fingerprint_ignores_layout)
{
    json_t *root = fixture_changed("bytes", NULL), *merge;
    char *compact = json_dumps(root, JSON_COMPACT), *sorted = json_dumps(root, JSON_INDENT(3) | JSON_SORT_KEYS);
    json_t *merges = json_object_get(json_object_get(root, "model"), "merges");
    size_t i;
    json_array_foreach(merges, i, merge) // turns pairs into strings
        json_array_set_new(merges, i,
                           json_sprintf("%s %s", json_string_value(json_array_get(merge, 0)),
                                        json_string_value(json_array_get(merge, 1))));
    char *strings = json_dumps(root, 0);
    uint64_t fingerprint = fingerprint_of(compact);
    ck_assert(fingerprint != 0);
    ck_assert_uint_eq(fingerprint, fingerprint_of(sorted));
    ck_assert_uint_eq(fingerprint, fingerprint_of(strings));
    free(compact);
    free(sorted);
    free(strings);
    json_decref(root);
}
END_TEST

START_TEST(fingerprint_tells_tokenizers_apart)
{
    static const char *const changes[] = {
        "{}",
        "{\"normalizer\": null}",
        "{\"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false}}",
        "{\"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": true}}",
        "{\"added_tokens\": []}",
        "{\"added_tokens\": [{\"id\": 500, \"content\": \"<|endoftext|>\", \"special\": true}]}",
        "{\"added_tokens\": [{\"id\": 500, \"content\": \"<|endoftext|>\", \"special\": true, \"lstrip\": true}]}",
        "{\"added_tokens\": [{\"id\": 501, \"content\": \"<|endoftext|>\", \"special\": true}]}",
        "{\"model.ignore_merges\": true}",
        "{\"model.merges\": []}",
        "{\"model.merges\": [[\"Ġ\", \"Ġ\"], [\"ĠĠ\", \"ĠĠ\"]]}",
        "{\"model.merges\": [[\"ĠĠ\", \"ĠĠ\"], [\"Ġ\", \"Ġ\"]]}",
    };
    enum { N = sizeof changes / sizeof *changes };
    uint64_t seen[N];
    for (int i = 0; i < N; i++) {
        struct tokenizer *t = open_variant("bytes", changes[i], NULL);
        seen[i] = tokenizer_fingerprint(t);
        for (int k = 0; k < i; k++)
            ck_assert_msg(seen[k] != seen[i], "%s and %s", changes[k], changes[i]);
        tokenizer_free(t);
    }
}
END_TEST

// ---- Unusual files.

// No merge can join the empty token with another one, so looking at its bytes would read out of bounds.
START_TEST(an_empty_unknown_token_is_a_token)
{
    struct tokenizer *t = open_variant("pieces",
                                       "{\"model.byte_fallback\": false, \"model.fuse_unk\": false, "
                                       "\"model.vocab\": {\"\": 0, \"a\": 1, \"aa\": 2}, \"model.merges\": [\"a a\"], "
                                       "\"model.unk_token\": \"\", \"added_tokens\": [], \"normalizer\": null, "
                                       "\"post_processor\": null, \"pre_tokenizer\": null}",
                                       NULL);
    static const int32_t expected[] = {2, 0, 0, 2, 1};
    int32_t *ids;
    int n;
    encode_into(t, "aa\xE2\x98\x83zaaa", 9, 0, &ids, &n);
    ck_assert_int_eq(n, 5);
    ck_assert_mem_eq(ids, expected, sizeof expected);
    free(ids);
    tokenizer_free(t);
}
END_TEST

#define SPLIT(regex) "{\"type\": \"Split\", \"behavior\": \"Isolated\", \"pattern\": {\"Regex\": \"" regex "\"}}, "
#define SPLIT_AT(splits)                                                                                               \
    "{\"pre_tokenizer\": {\"type\": \"Sequence\", \"pretokenizers\": [" splits                                         \
    "{\"type\": \"ByteLevel\", \"use_regex\": false, \"add_prefix_space\": false}]}}"
#define A_65535 "a{65535}|a{65535}|a{65535}|a{65535}|a{65535}|a{65535}|a{65535}|a{65535}|"

// On a megabyte of the repeated text each of these patterns takes exponential or quadratic time, or hours for each
// piece.
START_TEST(a_pattern_that_takes_too_much_work_is_refused)
{
    enum { BYTES = 1 << 20 };
    static const struct {
        const char *change;
        int run; // length of the run of "a"
        const char *after;
    } cases[] = {{SPLIT_AT(SPLIT("(a+)+[bc]")), BYTES, ""},
                 {SPLIT_AT(SPLIT("(a|aa)+[bc]")), BYTES, ""},
                 {SPLIT_AT(SPLIT("(a|a)*[bc]")), BYTES, ""},
                 {SPLIT_AT(SPLIT("(?:(?:a?){32}){32}[bc]")), BYTES, ""},
                 {SPLIT_AT(SPLIT("(?:a|b)*[cd]")), BYTES, ""},
                 {SPLIT_AT(SPLIT("a[^cd]*[cd]")), BYTES, ""},
                 {SPLIT_AT(SPLIT("(?:(?=[^c]*)a)*[cd]")), BYTES, ""},
                 {SPLIT_AT(SPLIT("a(?=(?:a|b)*[cd])|a")), BYTES, ""},
                 {SPLIT_AT(SPLIT("(?:x|[^c]*d|a)")), BYTES, ""},
                 {SPLIT_AT(SPLIT(" ") SPLIT("(a|aa)+[bc]")), 25, " "},
                 {SPLIT_AT(SPLIT(A_65535 A_65535 A_65535 "b")), 65534, "x"}};
    char *text = mem_alloc(BYTES);
    size_t width = (size_t)cases[_i].run + strlen(cases[_i].after);
    for (size_t i = 0; i < BYTES; i++)
        text[i] = i % width < (size_t)cases[_i].run ? 'a' : *cases[_i].after;
    struct tokenizer *t = open_variant("bytes", cases[_i].change, NULL);
    int32_t *ids;
    int n;
    ck_assert_int_eq(tokenizer_encode(t, text, BYTES, 0, &ids, &n), STATUS_INVALID);
    ck_assert_msg(strstr(status_message(), "the tokenizer's pattern") != NULL, "%s", status_message());
    ck_assert_msg(strstr(status_message(), "too much") != NULL, "%s", status_message());
    tokenizer_free(t);
    free(text);
}
END_TEST

START_TEST(a_pattern_that_fails_on_a_token_of_its_file_is_refused)
{
    char *dir = scratch_create(NULL, NULL);
    json_t *change = json_pack("{s:o,s:{s:s,s:{s:s},s:s}}", "added_tokens",
                               json_pack("[{s:i,s:s,s:b}]", "id", 600, "content",
                                         "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "normalized", true),
                               "normalizer", "type", "Replace", "pattern", "Regex", "(a+)+[bc]", "content", "x");
    json_t *root = fixture_changed("bytes", change);
    char *text = json_dumps(root, 0);
    struct tokenizer *t = NULL;
    scratch_write(dir, "tokenizer.json", text);
    ck_assert_int_eq(tokenizer_open(dir, &t), STATUS_DATA);
    ck_assert_msg(strstr(status_message(), "/tokenizer.json: the tokenizer's pattern") != NULL, "%s", status_message());
    free(text);
    json_decref(root);
    json_decref(change);
    scratch_remove(dir);
}
END_TEST

// The text begins like the token at each place, so each comparison reaches the end of the token.
START_TEST(an_added_token_that_takes_too_much_work_is_refused)
{
    enum { TOKEN = 8000, BYTES = 1 << 20 };
    char *text = mem_alloc(BYTES), token[TOKEN + 2] = {0};
    memset(text, 'a', BYTES);
    memset(token, 'a', TOKEN);
    token[TOKEN] = 'b';
    char *change = mem_format("{\"added_tokens\": [{\"id\": 600, \"content\": \"%s\", \"normalized\": %s}]}", token,
                              _i ? "true" : "false");
    struct tokenizer *t = open_variant("bytes", change, NULL);
    int32_t *ids;
    int n;
    ck_assert_int_eq(tokenizer_encode(t, text, BYTES, TOKENIZER_PARSE_SPECIAL, &ids, &n), STATUS_INVALID);
    ck_assert_msg(strstr(status_message(), "added tokens take too much work") != NULL, "%s", status_message());
    tokenizer_free(t);
    free(change);
    free(text);
}
END_TEST

// One replacement in each of 5,000 tokens makes a megabyte of each.
START_TEST(one_replacement_of_many_bytes_in_each_token_is_refused)
{
    enum { TOKENS = 5000, BYTES = 1000000 };
    char *dir = scratch_create(NULL, NULL), *by = mem_alloc(BYTES + 1), name[16];
    memset(by, 'x', BYTES);
    json_t *vocab = json_object();
    for (int i = 0; i < TOKENS; i++) {
        snprintf(name, sizeof name, "a%d", i);
        json_object_set_new(vocab, name, json_integer(i));
    }
    json_t *change = json_pack("{s:o,s:[],s:[],s:n,s:{s:s,s:[{s:s,s:{s:s},s:s},{s:s}]}}", "model.vocab", vocab,
                               "model.merges", "added_tokens", "post_processor", "decoder", "type", "Sequence",
                               "decoders", "type", "Replace", "pattern", "String", "a", "content", by, "type", "Fuse");
    json_t *root = fixture_changed("bytes", change);
    char *text = json_dumps(root, 0);
    struct tokenizer *t = NULL;
    scratch_write(dir, "tokenizer.json", text);
    ck_assert_int_eq(tokenizer_open(dir, &t), STATUS_DATA);
    ck_assert_msg(strstr(status_message(), "replacements and added tokens take too much work") != NULL, "%s",
                  status_message());
    free(text);
    free(by);
    json_decref(root);
    json_decref(change);
    scratch_remove(dir);
}
END_TEST

// Each Replace makes a text a thousand times longer.
START_TEST(replacements_that_grow_without_bound_are_refused)
{
    char *dir = scratch_create(NULL, NULL), a[1001] = {0};
    memset(a, 'a', sizeof a - 1);
    json_t *steps = json_array(), *change = json_object(), *token;
    for (int i = 0; i < 5; i++)
        json_array_append_new(
            steps, json_pack("{s:s,s:{s:s},s:s}", "type", "Replace", "pattern", "String", "a", "content", a));
    if (_i == 0) { // of every token that is decoded
        json_array_append_new(steps, json_pack("{s:s}", "type", "Fuse"));
        json_object_set_new(change, "decoder", json_pack("{s:s,s:o}", "type", "Sequence", "decoders", steps));
    } else { // of an added token
        json_object_set_new(change, "normalizer", json_pack("{s:s,s:o}", "type", "Sequence", "normalizers", steps));
        token = json_pack("{s:i,s:s,s:b}", "id", 600, "content", "aa", "normalized", true);
        json_object_set_new(change, "added_tokens", json_pack("[o]", token));
    }
    json_t *root = fixture_changed("bytes", change);
    char *text = json_dumps(root, 0);
    struct tokenizer *t = NULL;
    scratch_write(dir, "tokenizer.json", text);
    ck_assert_int_eq(tokenizer_open(dir, &t), STATUS_DATA);
    ck_assert_msg(strstr(status_message(), "/tokenizer.json: ") != NULL, "%s", status_message());
    ck_assert_msg(strstr(status_message(), "replace") != NULL, "%s", status_message());
    free(text);
    json_decref(root);
    json_decref(change);
    scratch_remove(dir);
}
END_TEST

// The limits grow with the text. The longest runs that one match of a usual pattern reads must be within them.
START_TEST(long_runs_stay_within_the_limits)
{
    static const char *const fillers[] = {" ", "\n", "\r", "a", "-", "7", "\xE6\xBC\xA2", "\xC2\xA0", "' "};
    struct tokenizer *t = open_variant("bytes", NULL, NULL); // with the pattern of Llama 3
    size_t width = strlen(fillers[_i]), n = (1 << 20) / width;
    char *text = mem_alloc(n * width + 2);
    for (size_t i = 0; i < n; i++)
        memcpy(text + i * width, fillers[_i], width);
    text[n * width] = 'x';
    int32_t *ids;
    int n_ids;
    encode_into(t, text, n * width + 1, 0, &ids, &n_ids);
    free(ids);
    free(text);
    tokenizer_free(t);
}
END_TEST

// ---- Broken and unsupported files.

START_TEST(broken_files_are_refused_with_a_reason)
{
    static const struct {
        const char *change;
        enum status status;
        const char *reason;
    } cases[] = {
        {"{\"model\": 3}", STATUS_DATA, "tokenizer.model is an integer"},
        {"{\"model.type\": \"Unigram\"}", STATUS_UNSUPPORTED, "model type \"Unigram\""},
        {"{\"model.dropout\": 0.1}", STATUS_UNSUPPORTED, "dropout"},
        {"{\"model.end_of_word_suffix\": \"</w>\"}", STATUS_UNSUPPORTED, "end_of_word_suffix"},
        {"{\"model.vocab\": null}", STATUS_DATA, "model.vocab is missing"},
        {"{\"model.vocab\": {}, \"added_tokens\": []}", STATUS_DATA, "model.vocab is empty"},
        {"{\"model.vocab\": {\"a\": -1}}", STATUS_DATA, "the id of \"a\""},
        {"{\"model.vocab\": {\"a\": 99999999999}}", STATUS_DATA, "the id of \"a\""},
        {"{\"model.vocab\": {\"a\": 1.5}}", STATUS_DATA, "the id of \"a\""},
        {"{\"model.vocab\": {\"a\": 0, \"b\": 0}}", STATUS_DATA, "have the same id 0"},
        {"{\"model.merges\": [\"Ġ\"]}", STATUS_DATA, "model.merges[0]"},
        {"{\"model.merges\": [\"a b c\"]}", STATUS_DATA, "model.merges[0]"},
        {"{\"model.merges\": [[\"a\", \"\"]]}", STATUS_DATA, "model.merges[0]"},
        {"{\"model.merges\": [[\"a\", \"☃\"]]}", STATUS_DATA, "\"☃\" is not in model.vocab"},
        {"{\"model.merges\": [[\"!\", \"!\"]]}", STATUS_DATA, "\"!!\" is not in model.vocab"},
        {"{\"model.merges\": [[\"Ġ\", \"Ġ\"], [\"Ġ\", \"Ġ\"]]}", STATUS_DATA, "model.merges[1] repeats"},
        {"{\"model.unk_token\": \"nobody\"}", STATUS_DATA, "model.unk_token \"nobody\""},
        {"{\"model.byte_fallback\": 1}", STATUS_DATA, "model.byte_fallback is an integer: must be true or false"},
        {"{\"added_tokens\": [{\"id\": 3, \"content\": \"x\"}]}", STATUS_DATA, "added_tokens: \"x\" has id 3, but"},
        {"{\"added_tokens\": [{\"id\": 3, \"content\": \"<q>\"}]}", STATUS_DATA, "has the id 3 of"},
        {"{\"added_tokens\": [{\"id\": 600, \"content\": \"\"}]}", STATUS_DATA, "added_tokens[0]: has no content"},
        {"{\"added_tokens\": [{\"content\": \"<q>\"}]}", STATUS_DATA, "the id of \"<q>\""},
        {"{\"added_tokens\": [{\"id\": 600, \"content\": \"<q>\"}, {\"id\": 601, \"content\": \"<q>\"}]}", STATUS_DATA,
         "same content"},
        {"{\"normalizer\": {\"type\": \"BertNormalizer\"}}", STATUS_UNSUPPORTED, "normalizer type \"BertNormalizer\""},
        {"{\"normalizer\": \"NFC\"}", STATUS_DATA, "normalizer is a string"},
        {"{\"pre_tokenizer\": {\"type\": \"Whitespace\"}}", STATUS_UNSUPPORTED, "pre_tokenizer type \"Whitespace\""},
        {"{\"pre_tokenizer\": {\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"Bert\"}]}}", STATUS_UNSUPPORTED,
         "pre_tokenizer.pretokenizers[0] type \"Bert\""},
        {"{\"pre_tokenizer\": {\"type\": \"Split\", \"behavior\": \"Isolated\", \"pattern\": {\"Regex\": \"(\"}}}",
         STATUS_DATA, "regular expression"},
        {"{\"pre_tokenizer\": {\"type\": \"Split\", \"behavior\": \"Isolated\", \"pattern\": {\"Regex\": \"\\\\h\"}}}",
         STATUS_UNSUPPORTED, "\\h is not supported"},
        {"{\"pre_tokenizer\": {\"type\": \"Split\", \"behavior\": \"Isolated\", \"pattern\": {\"Regex\": "
         "\"[a&&b]\"}}}",
         STATUS_UNSUPPORTED, "&&"},
        {"{\"pre_tokenizer\": {\"type\": \"Split\", \"behavior\": \"Up\", \"pattern\": {\"String\": \"x\"}}}",
         STATUS_DATA, "behavior \"Up\""},
        {"{\"pre_tokenizer\": {\"type\": \"Split\", \"behavior\": \"Isolated\", \"pattern\": {\"String\": \"\"}}}",
         STATUS_DATA, "empty pattern"},
        {"{\"decoder\": null}", STATUS_UNSUPPORTED, "decoder null"},
        {"{\"decoder\": {\"type\": \"WordPiece\"}}", STATUS_UNSUPPORTED, "decoder type \"WordPiece\""},
        {"{\"decoder\": {\"type\": \"Strip\", \"content\": \" \", \"start\": 1, \"stop\": 0}}", STATUS_UNSUPPORTED,
         "Strip"},
        {"{\"post_processor\": {\"type\": \"BertProcessing\"}}", STATUS_UNSUPPORTED, "post_processor type"},
        {"{\"post_processor\": {\"type\": \"TemplateProcessing\", \"single\": [{\"SpecialToken\": {\"id\": \"<q>\"}}], "
         "\"special_tokens\": {}}}",
         STATUS_DATA, "\"<q>\" is missing"},
        {"{\"post_processor\": {\"type\": \"TemplateProcessing\", \"single\": []}}", STATUS_DATA, "has no Sequence"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *change = json_loads(cases[i].change, 0, NULL), *root = fixture_changed("bytes", change);
        char *text = json_dumps(root, 0), *dir = scratch_create(text, NULL);
        struct tokenizer *t = NULL;
        ck_assert_msg(tokenizer_open(dir, &t) == cases[i].status, "%s: %s", cases[i].change, status_message());
        ck_assert_msg(strstr(status_message(), cases[i].reason) != NULL, "%s: \"%s\"", cases[i].change,
                      status_message());
        ck_assert_msg(strstr(status_message(), "/tokenizer.json: ") != NULL, "%s: \"%s\"", cases[i].change,
                      status_message());
        ck_assert_ptr_null(t);
        scratch_remove(dir);
        free(text);
        json_decref(root);
        json_decref(change);
    }
}
END_TEST

// These files would take a multiple of their size in memory. A pipe would block the start.
START_TEST(files_beyond_the_bounds_are_refused)
{
    static const struct {
        const char *file, *reason;
    } cases[] = {{"tokenizer.json", "3000000 lists and objects"},
                 {"tokenizer_config.json", "16777217 bytes: must be at most"},
                 {"tokenizer_config.json", "not a regular file"}};
    char *dir = scratch_create(NULL, NULL), *path = mem_format("%s/%s", dir, cases[_i].file);
    json_t *root = fixture_changed("bytes", NULL);
    char *text = json_dumps(root, 0);
    scratch_write(dir, "tokenizer.json", text);
    struct bytes many = {0};
    switch (_i) {
    case 0:
        bytes_add(&many, "{\"a\":[0", 7);
        for (int i = 0; i < 2999998; i++)
            bytes_add(&many, ",[]", 3);
        bytes_add(&many, "]}", 3); // and a zero byte
        scratch_write(dir, cases[_i].file, many.data);
        break;
    case 1:
        scratch_write(dir, cases[_i].file, "{}");
        ck_assert_int_eq(truncate(path, (16 << 20) + 1), 0);
        break;
    default: ck_assert_int_eq(mkfifo(path, 0600), 0);
    }
    struct tokenizer *t = NULL;
    ck_assert_int_eq(tokenizer_open(dir, &t), STATUS_DATA);
    ck_assert_msg(strstr(status_message(), path) != NULL, "%s", status_message());
    ck_assert_msg(strstr(status_message(), cases[_i].reason) != NULL, "%s", status_message());
    bytes_free(&many);
    free(text);
    json_decref(root);
    free(path);
    scratch_remove(dir);
}
END_TEST

START_TEST(patterns_that_pcre2_reads_differently_are_refused)
{
    static const struct {
        const char *source, *reason; // NULL: accepted
    } cases[] = {{"[[:^alpha:]]", "[:name:]"},
                 {"[[:lower:]]", "[:name:]"},
                 {"[[:blank:]]", "[:name:]"},
                 {"[a[b]]", "this ["},
                 {"[^[:alpha:]-]", NULL},
                 {"ab(?i)c|d", "(?i)"},
                 {"\\|(?i)a", "(?i)"},
                 {"[|](?i)a", "(?i)"},
                 {"(?:a)(?i)b", "(?i)"},
                 {"(?i)a|b", NULL},
                 {"a|(?i)b|c", NULL},
                 {"((?i)a|b)c", NULL},
                 {"(?=(?i)a)", NULL},
                 {"a{2}?", "{n}?"},
                 {"(?:ab){10}?c", "{n}?"},
                 {"a{2,3}?b{2,}?c{2}d{2,2}?", NULL},
                 {"[a{2}?]", NULL},
                 {"\\{2}?", NULL}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct pattern *pattern = NULL;
        enum status status = pattern_open_regex(cases[i].source, &pattern);
        ck_assert_msg(status == (cases[i].reason ? STATUS_UNSUPPORTED : STATUS_OK), "%s: %s", cases[i].source,
                      status_name(status));
        ck_assert_msg(!cases[i].reason || strstr(status_message(), cases[i].reason), "%s", status_message());
        pattern_free(pattern);
    }
}
END_TEST

START_TEST(broken_json_and_missing_files_are_named)
{
    static const struct {
        const char *tokenizer, *config;
        enum status status;
        const char *reason;
    } cases[] = {{NULL, NULL, STATUS_NOT_FOUND, "tokenizer.json"},
                 {"{\"model\":\n{,}}", NULL, STATUS_DATA, "line 2, column 2"},
                 {"", NULL, STATUS_DATA, "tokenizer.json"},
                 {"[]", NULL, STATUS_DATA, "must be an object"},
                 {"{\"a\":1,\"a\":2}", NULL, STATUS_DATA, "duplicate"},
                 {"{}", NULL, STATUS_DATA, "model is missing"},
                 {"*", "{", STATUS_DATA, "tokenizer_config.json"},
                 {"*", "{\"bos_token\": \"<nobody>\"}", STATUS_DATA, "bos_token \"<nobody>\" is not a token"},
                 {"*", "{\"bos_token\": 1}", STATUS_DATA, "bos_token is"}};
    char *path = fixture_path("bytes/tokenizer.json"), *good = file_read(path, NULL);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *text = cases[i].tokenizer;
        char *dir = scratch_create(text && *text == '*' ? good : text, cases[i].config);
        struct tokenizer *t = NULL;
        ck_assert_int_eq(tokenizer_open(dir, &t), cases[i].status);
        ck_assert_msg(strstr(status_message(), cases[i].reason), "%zu: \"%s\"", i, status_message());
        scratch_remove(dir);
    }
    free(good);
    free(path);
}
END_TEST

// A tokenizer that opened from a mutated file must work.
static void exercise_tokenizer(struct tokenizer *t)
{
    unsigned flags = TOKENIZER_PARSE_SPECIAL | TOKENIZER_ADD_SPECIAL;
    struct text_range untrusted = {3, 20};
    size_t *starts;
    int32_t *ids;
    int n;
    char *text;
    if (tokenizer_encode_untrusted(t, hard_text, sizeof hard_text - 1, flags, &untrusted, 1, INT_MAX, &ids, &starts,
                                   &n))
        return;
    bool sound = true;
    for (int i = 0; i < n; i++)
        sound = sound && ids[i] >= 0 && ids[i] < tokenizer_vocab_size(t) && starts[i] < sizeof hard_text;
    ck_assert(sound);
    ck_assert_int_eq(tokenizer_decode(t, ids, n, 0, &text, NULL), STATUS_OK);
    ck_assert(utf8_valid(text, strlen(text), NULL));
    free(text);
    free(ids);
    free(starts);
}

static int open_mutant(const char *dir, const char *text)
{
    struct tokenizer *t = NULL;
    scratch_write(dir, "tokenizer.json", text);
    enum status status = tokenizer_open(dir, &t);
    ck_assert(status == STATUS_OK || status == STATUS_DATA || status == STATUS_UNSUPPORTED);
    if (status == STATUS_OK) exercise_tokenizer(t);
    tokenizer_free(t);
    return status == STATUS_OK;
}

START_TEST(mutated_bytes_never_crash)
{
    static const char *const names[] = {"bytes/tokenizer.json", "pieces/tokenizer.json"};
    char *path = fixture_path(names[_i]), *dir = scratch_create(NULL, NULL);
    size_t n;
    char *good = file_read(path, &n);
    uint64_t state = 3;
    int opened = 0;
    for (int round = 0; round < 1000; round++) {
        char *text = mem_string(good);
        for (uint64_t left = 1 + random_next(&state) % 4; left; left--) {
            size_t at = random_next(&state) % n;
            switch (random_next(&state) % 4) {
            case 0: text[at] = (char)(1 + random_next(&state) % 255); break;
            case 1: text[at] = "{}[]\",:0-"[random_next(&state) % 9]; break;
            case 2: memmove(text + at, text + at + 1, n - at); break; // including the terminator
            default: text[at] = (char)('0' + random_next(&state) % 10);
            }
        }
        if (round % 50 == 0) text[random_next(&state) % n] = 0; // truncated
        opened += open_mutant(dir, text);
        free(text);
    }
    ck_assert_int_gt(opened, 0);
    scratch_remove(dir);
    free(good);
    free(path);
}
END_TEST

// Replaces a random value of the file, reached by a random walk from the root.
static void mutate_value(json_t *root, uint64_t *state)
{
    static const char *const values[] = {"null",
                                         "0",
                                         "-1",
                                         "9999",
                                         "2097152",
                                         "1e9",
                                         "\"\"",
                                         "\"▁\"",
                                         "\" \"",
                                         "\"a\"",
                                         "[]",
                                         "{}",
                                         "true",
                                         "false",
                                         "[\"a\"]",
                                         "{\"type\":\"Sequence\"}",
                                         "\"(a|b)*\"",
                                         "{\"Regex\":\"\\\\s+\"}",
                                         "\"Metaspace\"",
                                         "\"ByteLevel\"",
                                         "\"Fuse\""};
    json_t *at = root,
           *value = json_loads(values[random_next(state) % (sizeof values / sizeof *values)], JSON_DECODE_ANY, NULL);
    for (int depth = 0; depth < 12; depth++) {
        size_t n = json_is_object(at) ? json_object_size(at) : json_array_size(at);
        size_t pick = n ? random_next(state) % n : 0;
        const char *key = NULL;
        json_t *next;
        if (!n) break;
        if (json_is_object(at)) {
            void *item = json_object_iter(at);
            while (pick--)
                item = json_object_iter_next(at, item);
            key = json_object_iter_key(item);
        }
        next = key ? json_object_get(at, key) : json_array_get(at, pick);
        bool leaf = !json_is_object(next) && !json_is_array(next);
        if (leaf || random_next(state) % 6 == 0) {
            if (key && random_next(state) % 4 == 0)
                json_object_del(at, key);
            else if (key)
                json_object_set(at, key, value);
            else
                json_array_set(at, pick, value);
            break;
        }
        at = next;
    }
    json_decref(value);
}

START_TEST(mutated_values_never_crash)
{
    static const char *const bases[] = {"bytes", "pieces"};
    char *dir = scratch_create(NULL, NULL);
    json_t *good = fixture_changed(bases[_i], NULL);
    uint64_t state = 4;
    int opened = 0;
    for (int round = 0; round < 1000; round++) {
        json_t *root = json_deep_copy(good);
        for (uint64_t left = 1 + random_next(&state) % 3; left; left--)
            mutate_value(root, &state);
        char *text = json_dumps(root, 0);
        opened += open_mutant(dir, text);
        free(text);
        json_decref(root);
    }
    ck_assert_int_gt(opened, 0);
    json_decref(good);
    scratch_remove(dir);
}
END_TEST

SUITE("tokenizer files")
{
    TIMEOUT(60);
    TEST(config_names_eos);
    TEST(longest_piece_is_a_bound_or_none);
    TEST(fingerprint_ignores_layout);
    TEST(fingerprint_tells_tokenizers_apart);
    TEST(an_empty_unknown_token_is_a_token);
    LOOP(a_pattern_that_takes_too_much_work_is_refused, 0, 11);
    TEST(a_pattern_that_fails_on_a_token_of_its_file_is_refused);
    LOOP(an_added_token_that_takes_too_much_work_is_refused, 0, 2);
    TEST(one_replacement_of_many_bytes_in_each_token_is_refused);
    LOOP(replacements_that_grow_without_bound_are_refused, 0, 2);
    LOOP(long_runs_stay_within_the_limits, 0, 9);
    TEST(broken_files_are_refused_with_a_reason);
    TEST(patterns_that_pcre2_reads_differently_are_refused);
    TEST(broken_json_and_missing_files_are_named);
    LOOP(files_beyond_the_bounds_are_refused, 0, 3);
    LOOP(mutated_bytes_never_crash, 0, 2);
    LOOP(mutated_values_never_crash, 0, 2);
}
