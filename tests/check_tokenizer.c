// SPDX-License-Identifier: Apache-2.0
// The tokenizer on text: ids equal those of Hugging Face's library (tests/data/tokenizers/make.py, and vectors of the
// optional data); other tests check properties of any tokenizer and any text.
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "lib/base/mem.h"
#include "lib/base/utf8.h"
#include "lib/text/bpe.h"
#include "lib/text/normalizer.h"
#include "lib/text/tokenizer_parts.h"
#include "tests/heap.h"
#include "tests/suite.h"
#include "tests/test_data.h"
#include "text_data.h"

static void encode_into(struct tokenizer *t, const char *text, size_t n, unsigned flags, int32_t **ids_p, int *n_p)
{
    enum status status = tokenizer_encode(t, text, n, flags, ids_p, n_p);
    ck_assert_msg(status == STATUS_OK, "%s", status_message());
}

// Checks that the text has the ids `want` (a JSON array).
static void check_ids(struct tokenizer *t, const char *text, size_t n, unsigned flags, const json_t *want,
                      const char *what)
{
    int32_t *ids;
    int n_ids;
    encode_into(t, text, n, flags, &ids, &n_ids);
    ck_assert_msg((size_t)n_ids == json_array_size(want), "%s: \"%s\": %d ids, not %zu", what, text, n_ids,
                  json_array_size(want));
    for (int i = 0; i < n_ids; i++) {
        int32_t id = (int32_t)json_integer_value(json_array_get(want, (size_t)i));
        ck_assert_msg(ids[i] == id, "%s: \"%s\": id %d is %d, not %d", what, text, i, ids[i], id);
    }
    free(ids);
}

static void check_text(struct tokenizer *t, const json_t *ids, unsigned flags, const char *want, size_t n,
                       const char *what)
{
    int count = (int)json_array_size(ids);
    int32_t *list = mem_alloc_array((size_t)count, sizeof *list);
    char *text;
    size_t size;
    for (int i = 0; i < count; i++)
        list[i] = (int32_t)json_integer_value(json_array_get(ids, (size_t)i));
    ck_assert_int_eq(tokenizer_decode(t, list, count, flags, &text, &size), STATUS_OK);
    ck_assert_msg(size == n, "%s: decoded to \"%s\", not \"%s\"", what, text, want);
    ck_assert_msg(!memcmp(text, want, n), "%s: decoded to \"%s\", not \"%s\"", what, text, want);
    free(text);
    free(list);
}

// ---- Against Hugging Face.

START_TEST(fixtures_and_their_variants_agree)
{
    char *path = fixture_path("vectors.jsonl");
    json_t *rows = json_lines_read(path), *row, *one;
    size_t i, k;
    ck_assert_uint_gt(json_array_size(rows), 20);
    json_array_foreach(rows, i, row)
    {
        char *change = json_dumps(json_object_get(row, "change"), JSON_ENSURE_ASCII);
        struct tokenizer *t = open_variant(json_string_value(json_object_get(row, "base")), change, NULL);
        json_array_foreach(json_object_get(row, "cases"), k, one)
        {
            const json_t *text = json_object_get(one, "text"), *ids = json_object_get(one, "ids");
            const json_t *plain = json_object_get(one, "plain_ids"), *decoded = json_object_get(one, "decoded");
            const char *s = json_string_value(text);
            size_t n = json_string_length(text);
            check_ids(t, s, n, TOKENIZER_PARSE_SPECIAL, ids, change);
            check_ids(t, s, n, 0, plain ? plain : ids, change);
            if (json_is_null(decoded)) continue;
            if (!decoded) decoded = text;
            check_text(t, ids, TOKENIZER_SKIP_SPECIAL, json_string_value(decoded), json_string_length(decoded), change);
        }
        tokenizer_free(t);
        free(change);
    }
    json_decref(rows);
    free(path);
}
END_TEST

static const char *const published_tokenizers[] = {"gpt2", "llama2", "llama3", "qwen2.5"};

START_TEST(published_vectors_agree)
{
    const char *name = published_tokenizers[_i];
    char *relative = mem_format("tokenizers/%s", name), *dir = external_data(relative);
    free(relative);
    struct tokenizer *t = open_dir(dir);
    for (int file = 0; file < 2; file++) {
        char *path = mem_format("%s/%s", dir, file ? "vectors_prompts.jsonl" : "vectors.jsonl");
        json_t *rows = json_lines_read(path), *row;
        size_t i;
        json_array_foreach(rows, i, row)
        {
            const char *text = json_string_value(json_object_get(row, "text")), *id = name;
            size_t n = json_string_length(json_object_get(row, "text"));
            check_ids(t, text, n, 0, json_object_get(row, "ids"), id);
            ck_assert_uint_le(tokenizer_min_tokens(t, text, n), json_array_size(json_object_get(row, "ids")));
            utf8proc_uint8_t *nfc =
                utf8proc_NFC((const utf8proc_uint8_t *)text); // Qwen's normalizer: a text has the ids of its NFC form
            const char *want = _i == 3 ? (const char *)nfc : text;
            check_text(t, json_object_get(row, "ids"), 0, want, strlen(want), id);
            free(nfc);
        }
        json_decref(rows);
        free(path);
    }
    tokenizer_free(t);
    free(dir);
}
END_TEST

static void check_golden_case(struct tokenizer *t, const json_t *one)
{
    const json_t *prompt = json_object_get(one, "prompt"), *text = json_object_get(one, "text");
    const json_t *ids = json_object_get(one, "prompt_ids");
    check_ids(t, json_string_value(prompt), json_string_length(prompt), TOKENIZER_ADD_SPECIAL, ids, "golden");
    if (!text) return;
    json_t *all = json_copy((json_t *)ids);
    json_array_extend(all, json_object_get(one, "generated_ids"));
    check_text(t, all, TOKENIZER_SKIP_SPECIAL, json_string_value(text), json_string_length(text), "golden");
    json_decref(all);
}

START_TEST(golden_prompts_agree)
{
    static const char *const models[] = {"stories260K", "stories280K", "tinystories656K"}; // the last is external
    char *relative = mem_format("golden/%s/cases.json", models[_i]), *model = mem_format("models/%s", models[_i]);
    char *path = _i < 2 ? repository_data(relative) : external_data(relative);
    char *dir = _i < 2 ? repository_data(model) : external_data(model);
    free(relative);
    free(model);
    struct tokenizer *t = open_dir(dir);
    json_t *root = json_read(path), *one;
    size_t i;
    json_array_foreach(json_object_get(root, "greedy"), i, one) check_golden_case(t, one);
    json_array_foreach(json_object_get(root, "packed"), i, one) check_golden_case(t, one);
    check_golden_case(t, json_object_get(root, "prefill"));
    check_golden_case(t, json_object_get(root, "attention"));
    json_decref(root);
    tokenizer_free(t);
    free(path);
    free(dir);
}
END_TEST

START_TEST(nfc_agrees_with_utf8proc_on_every_character)
{
    struct normalizer nfc = {.steps = {{.kind = NORMALIZER_NFC}}, .n_steps = 1};
    struct text_buffer buffers[2] = {{.tracked = true}, {.tracked = true}};
    char *text = mem_alloc((size_t)12 * 0x110000);
    size_t n = 0;
    for (int32_t c = 1; c < 0x110000;
         c++) { // after ASCII; then before unordered marks; every third one after another character
        if (c >= 0xD800 && c < 0xE000) continue;
        text[n++] = 'x';
        n += (size_t)utf8proc_encode_char(c, (utf8proc_uint8_t *)text + n);
        if (c % 3) continue;
        memcpy(text + n, "\u0301\u0327", 4);
        n += 4;
    }
    struct text_span in = {.text = text, .n = n, .at_start = true}, out;
    struct pattern_scratch *scratch = pattern_scratch_create(n);
    utf8proc_uint8_t *want = utf8proc_NFC((const utf8proc_uint8_t *)text);
    ck_assert_int_eq(normalizer_run(&nfc, scratch, in, buffers, &out), STATUS_OK);
    ck_assert_uint_eq(out.n, strlen((char *)want));
    ck_assert_int_eq(memcmp(out.text, want, out.n), 0);
    bool sound = true; // one assertion: Check writes each one to a pipe
    for (size_t i = 1; i < out.n; i++)
        sound = sound && out.origin[i] >= out.origin[i - 1] && (out.text[i] != 'x' || text[out.origin[i]] == 'x');
    ck_assert(sound);
    pattern_scratch_free(scratch);
    free(want);
    free(text);
    text_buffer_free(&buffers[0]);
    text_buffer_free(&buffers[1]);
}
END_TEST

struct symbol {
    const char *text;
    int n;
};

// BPE by its definition: joins repeatedly the leftmost neighbours with the lowest merge.
static int slow_merge(const json_t *merges, struct symbol *symbols, int n)
{
    for (;;) {
        size_t best = json_array_size(merges);
        int at = -1;
        for (int i = 0; i + 1 < n; i++) {
            char pair[136];
            snprintf(pair, sizeof pair, "%.*s %.*s", symbols[i].n, symbols[i].text, symbols[i + 1].n,
                     symbols[i + 1].text);
            for (size_t rank = 0; rank < best; rank++)
                if (!strcmp(json_string_value(json_array_get(merges, rank)), pair)) {
                    best = rank;
                    at = i;
                }
        }
        if (at < 0) return n;
        symbols[at].n += symbols[at + 1].n;
        n--;
        memmove(symbols + at + 1, symbols + at + 2, (size_t)(n - at - 1) * sizeof *symbols);
    }
}

// Encodes random words of `letters`.
static void check_merging(struct tokenizer *t, const json_t *merges, const char *letters, int rounds, uint64_t *state)
{
    for (int round = 0; round < rounds; round++) {
        char word[48] = "";
        struct symbol symbols[48];
        int n = 2 + (int)(random_next(state) % 40), n_ids;
        int32_t *ids;
        for (int i = 0; i < n; i++) {
            word[i] = letters[random_next(state) % strlen(letters)];
            symbols[i] = (struct symbol){word + i, 1};
        }
        encode_into(t, word, (size_t)n, 0, &ids, &n_ids);
        n = slow_merge(merges, symbols, n);
        ck_assert_msg(n == n_ids, "%s: %d ids, not %d", word, n_ids, n);
        for (int i = 0; i < n; i++) {
            const char *token = tokenizer_token(t, ids[i]);
            ck_assert_msg(strlen(token) == (size_t)symbols[i].n, "%s: id %d is \"%s\"", word, i, token);
            ck_assert_mem_eq(token, symbols[i].text, strlen(token));
        }
        free(ids);
    }
}

START_TEST(merging_agrees_with_the_definition)
{
    struct tokenizer *t = open_variant("pieces", "{\"normalizer\": null}", NULL);
    json_t *root = fixture_changed("pieces", NULL);
    uint64_t state = 8;
    check_merging(t, json_object_get(json_object_get(root, "model"), "merges"), "eeeetttaooinnsrrhlcdufpgmy", 1000,
                  &state);
    json_decref(root);
    tokenizer_free(t);
}
END_TEST

// Adds all words of `n` letters a and b to the vocabulary, and each of their merges before a random other merge.
static void add_words(json_t *vocab, json_t *merges, int n, uint64_t *state)
{
    for (int bits = 0; bits < 1 << n; bits++) {
        char word[8] = "";
        for (int i = 0; i < n; i++)
            word[i] = bits >> i & 1 ? 'b' : 'a';
        if (!json_object_get(vocab, word))
            json_object_set_new(vocab, word, json_integer((json_int_t)json_object_size(vocab)));
        for (int i = 1; i < n; i++) {
            char *merge = mem_format("%.*s %s", i, word, word + i);
            json_array_insert_new(merges, random_next(state) % (json_array_size(merges) + 1), json_string(merge));
            free(merge);
        }
    }
}

// These merges make more neighbours mergeable than they remove, so many entries of the heap are stale.
START_TEST(merging_in_any_order_agrees_with_the_definition)
{
    uint64_t state = (uint64_t)_i + 1;
    json_t *root = fixture_changed("pieces", NULL), *model = json_object_get(root, "model"), *merges = json_array();
    json_object_set_new(root, "normalizer", json_null());
    json_object_set_new(model, "merges", merges);
    for (int n = 2; n <= 5; n++)
        add_words(json_object_get(model, "vocab"), merges, n, &state);
    char *text = json_dumps(root, 0), *dir = scratch_create(text, NULL);
    struct tokenizer *t = open_dir(dir);
    check_merging(t, merges, "ab", 100, &state);
    tokenizer_free(t);
    scratch_remove(dir);
    free(text);
    json_decref(root);
}
END_TEST

// A merge may join a spelled byte, whose bytes are not those of the text.
START_TEST(spelled_bytes_merge_with_their_neighbours)
{
    json_t *root = fixture_changed("pieces", NULL), *model = json_object_get(root, "model");
    json_t *vocab = json_object_get(model, "vocab");
    json_int_t merged = (json_int_t)json_object_size(vocab);
    json_object_set_new(root, "normalizer", json_null());
    json_object_set_new(vocab, "<0x80>a", json_integer(merged));
    json_array_append_new(json_object_get(model, "merges"), json_string("<0x80> a"));
    char *text = json_dumps(root, 0), *dir = scratch_create(text, NULL);
    struct tokenizer *t = open_dir(dir);
    int32_t *ids;
    int n;
    encode_into(t,
                "\xF0\x9F\x98\x80"
                "a",
                5, 0, &ids, &n);
    ck_assert_int_eq(n, 4);
    ck_assert_int_eq(ids[3], merged);
    free(ids);
    tokenizer_free(t);
    scratch_remove(dir);
    free(text);
    json_decref(root);
}
END_TEST

// ---- Properties of any text.

// Random text of difficult characters.
static size_t random_text(uint64_t *state, char *text, size_t room)
{
    static const char *const parts[] = {
        " ",        "  ", "\n",     "\r\n",   "a",   "the", "License", "é",          "e\u0301", "漢",
        "😀",        "12", "'s",     "\t",     "\"",  "<s>", "</",      "<0x0A>",     "\u00a0",  "가",
        "か\u3099", ".",  "\u200b", "\u180e", "(c)", "_",   "Ġ",       "<|im_end|>", "-"};
    size_t n = 0;
    for (uint64_t left = random_next(state) % 30; left; left--) {
        const char *part = parts[random_next(state) % (sizeof parts / sizeof *parts)];
        if (n + strlen(part) > room) break;
        memcpy(text + n, part, strlen(part));
        n += strlen(part);
    }
    return n;
}

START_TEST(decoding_gives_the_text_back)
{
    static const char *const bases[] = {"bytes", "pieces"};
    struct tokenizer *t = open_variant(bases[_i], _i ? NULL : "{\"normalizer\": null}", NULL);
    uint64_t state = 1;
    for (int round = 0; round < 3000; round++) {
        char text[400];
        size_t n = random_text(&state, text, sizeof text), size;
        int32_t *ids;
        int n_ids;
        char *back;
        encode_into(t, text, n, 0, &ids, &n_ids);
        ck_assert_int_eq(tokenizer_decode(t, ids, n_ids, 0, &back, &size), STATUS_OK);
        ck_assert_msg(size == n, "\"%.*s\" came back as \"%s\"", (int)n, text, back);
        ck_assert_mem_eq(back, text, n);
        ck_assert_uint_le(n, (size_t)n_ids * tokenizer_longest_piece_bytes(t));
        ck_assert_uint_le(tokenizer_min_tokens(t, text, n), n_ids);
        free(back);
        free(ids);
    }
    tokenizer_free(t);
}
END_TEST

START_TEST(token_starts_ascend_and_cover_the_text)
{
    static const char *const bases[] = {"bytes", "pieces"};
    struct tokenizer *t = open_variant(bases[_i], NULL, NULL);
    uint64_t state = 2;
    for (int round = 0; round < 1000; round++) {
        char text[400];
        size_t n = random_text(&state, text, sizeof text), *starts;
        int32_t *ids, *plain;
        int n_ids, n_plain;
        enum status status = tokenizer_encode_untrusted(t, text, n, TOKENIZER_PARSE_SPECIAL | TOKENIZER_ADD_SPECIAL,
                                                        NULL, 0, INT_MAX, &ids, &starts, &n_ids);
        ck_assert_int_eq(status, STATUS_OK);
        encode_into(t, text, n, TOKENIZER_PARSE_SPECIAL | TOKENIZER_ADD_SPECIAL, &plain, &n_plain);
        ck_assert_int_eq(n_ids, n_plain);
        ck_assert_uint_le(tokenizer_min_tokens(t, text, n), n_ids);
        ck_assert_int_eq(memcmp(ids, plain, (size_t)n_ids * sizeof *ids), 0);
        for (int i = 0; i < n_ids; i++) {
            ck_assert_uint_le(starts[i], n);
            if (i) ck_assert_uint_ge(starts[i], starts[i - 1]);
        }
        if (n_ids) ck_assert_uint_eq(starts[0], 0);
        free(ids);
        free(plain);
        free(starts);
    }
    tokenizer_free(t);
}
END_TEST

START_TEST(long_runs_of_one_character_pass)
{
    static const char *const units[] = {" ", "a", "\n", "é", "the ", "\u0301\u0327", "<|im_", "' ", "0"};
    static const char *const bases[] = {"bytes", "pieces"};
    for (int base = 0; base < 2; base++) {
        struct tokenizer *t = open_variant(bases[base], NULL, NULL);
        const char *unit = units[_i];
        size_t n = 300000 / strlen(unit) * strlen(unit), size;
        char *text = mem_alloc(n), *back;
        int32_t *ids;
        int n_ids;
        for (size_t i = 0; i < n; i++)
            text[i] = unit[i % strlen(unit)];
        encode_into(t, text, n, TOKENIZER_PARSE_SPECIAL, &ids, &n_ids);
        ck_assert_int_eq(tokenizer_decode(t, ids, n_ids, 0, &back, &size), STATUS_OK);
        if (base == 1 || strcmp(unit, "\u0301\u0327") != 0) { // NFC reorders these marks
            ck_assert_uint_eq(size, n);
            ck_assert_int_eq(memcmp(text, back, n), 0);
        }
        free(back);
        free(ids);
        free(text);
        tokenizer_free(t);
    }
}
END_TEST

static bool ignore_id(void *user, int32_t id, size_t start)
{
    (void)user, (void)id, (void)start;
    return true;
}

// A client chooses the length of a word, and the scratch keeps the memory that a word needed.
START_TEST(the_memory_of_a_long_word_is_bounded)
{
    static const char *const units[] = {"-", " ", "et", "theinternet", "\u00e9"};
    enum { UNITS = 200000, ROOM = 4096 };
    size_t length = strlen(units[_i]), n = UNITS * length;
    char *word = mem_alloc(n);
    for (size_t i = 0; i < n; i++)
        word[i] = units[_i][i % length];
    for (int base = 0; base < 2; base++) {
        struct tokenizer *t = open_variant(base ? "pieces" : "bytes", NULL, NULL);
        struct bpe_scratch scratch = {0};
        size_t before = heap_bytes();
        ck_assert(bpe_encode(&t->bpe, &scratch, word, n, ignore_id, NULL));
        size_t taken = heap_bytes() - before, most = BPE_BYTES_PER_BYTE * n + ROOM;
        ck_assert_uint_le(taken, most + most * HEAP_ROUNDING_PERCENT / 100);
        bpe_scratch_free(&scratch);
        tokenizer_free(t);
    }
    free(word);
}
END_TEST

static struct tokenizer *byte_tokenizer;

static void open_bytes(void)
{
    byte_tokenizer = open_variant("bytes", NULL, NULL);
}

static void free_bytes(void)
{
    tokenizer_free(byte_tokenizer);
}

START_TEST(text_that_is_not_utf8_is_refused_with_its_place)
{
    int32_t *ids = NULL;
    int n = -1;
    ck_assert_int_eq(tokenizer_encode(byte_tokenizer, "abc\xFF", 4, 0, &ids, &n), STATUS_INVALID);
    ck_assert_ptr_nonnull(strstr(status_message(), "byte 3"));
    ck_assert_int_eq(tokenizer_encode(byte_tokenizer, "\xE2\x82", 2, 0, &ids, &n), STATUS_INVALID);
    ck_assert_int_eq(tokenizer_encode(byte_tokenizer, "\xED\xA0\x80", 3, 0, &ids, &n), STATUS_INVALID);
    ck_assert_int_eq(tokenizer_encode(byte_tokenizer, "", TOKENIZER_TEXT_LIMIT_BYTES + 1, 0, &ids, &n), STATUS_INVALID);
    ck_assert_ptr_null(ids);
    ck_assert_int_eq(n, -1);
    encode_into(byte_tokenizer, "", 0, 0, &ids, &n);
    ck_assert_ptr_nonnull(ids);
    ck_assert_int_eq(n, 0);
    free(ids);
}
END_TEST

START_TEST(ids_outside_the_vocabulary_are_refused)
{
    int32_t last = tokenizer_vocab_size(byte_tokenizer) - 1, wrong[] = {last + 1, -1, INT32_MAX, INT32_MIN};
    char *text, expected[64];
    size_t size;
    const char *bytes;
    ck_assert_int_eq(tokenizer_decode(byte_tokenizer, &last, 1, 0, &text, NULL), STATUS_OK);
    ck_assert_str_eq(text, "</s>");
    free(text);
    for (int i = 0; i < 4; i++) {
        ck_assert_int_eq(tokenizer_decode(byte_tokenizer, &wrong[i], 1, 0, &text, &size), STATUS_INVALID);
        snprintf(expected, sizeof expected, "token id %d: must be 0 to %d", wrong[i], last);
        ck_assert_str_eq(status_message(), expected);
        tokenizer_piece(byte_tokenizer, wrong[i], &bytes, &size);
        ck_assert_uint_eq(size, 0);
        ck_assert(!tokenizer_is_special(byte_tokenizer, wrong[i]));
        ck_assert_ptr_null(tokenizer_token(byte_tokenizer, wrong[i]));
    }
}
END_TEST

START_TEST(tokens_with_too_much_text_are_refused)
{
    int32_t last = tokenizer_vocab_size(byte_tokenizer) - 1; // of four bytes
    int n = (int)(TOKENIZER_DECODE_LIMIT_BYTES / 4);
    int32_t *ids = mem_alloc_array((size_t)n + 1, sizeof *ids);
    char *text;
    size_t size;
    for (int i = 0; i <= n; i++)
        ids[i] = last;
    ck_assert_int_eq(tokenizer_decode(byte_tokenizer, ids, n + 1, 0, &text, &size), STATUS_OUT_OF_RANGE);
    ck_assert_ptr_nonnull(strstr(status_message(), "over 16 MiB"));
    free(ids);
}
END_TEST

START_TEST(ill_formed_bytes_become_replacement_characters)
{
    struct tokenizer *t = open_variant("pieces", NULL, NULL);
    static const struct {
        int n;
        unsigned char bytes[6];
        const char *text;
    } cases[] = {{1, {0xFF}, "\uFFFD"},
                 {3, {0xE6, 0xBC, 'a'}, "\uFFFDa"},
                 {4, {0xF0, 0x9F, 0x98, 0x80}, "😀"},
                 {3, {0xF0, 0x9F, 0x98}, "\uFFFD"},
                 {5, {0xE2, 0x82, 0xAC, 0x80, 'b'}, "€\uFFFDb"},
                 {3, {0xED, 0xA0, 0x80}, "\uFFFD\uFFFD\uFFFD"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int32_t ids[6];
        char *text;
        for (int k = 0; k < cases[i].n; k++)
            ids[k] = 3 + cases[i].bytes[k]; // <0x00> is 3
        ck_assert_int_eq(tokenizer_decode(t, ids, cases[i].n, 0, &text, NULL), STATUS_OK);
        ck_assert_str_eq(text, cases[i].text);
        free(text);
    }
    tokenizer_free(t);
}
END_TEST

static const char hard_text[] = "  Hello <|im_start|> the License,\n 漢字 e\u0301 12345 <0x0A> 😀";

static void *encode_often(void *user)
{
    struct tokenizer *t = user;
    uint64_t sum = 0;
    for (int round = 0; round < 200; round++) {
        int32_t *ids;
        int n;
        if (tokenizer_encode(t, hard_text, sizeof hard_text - 1, TOKENIZER_PARSE_SPECIAL, &ids, &n)) return NULL;
        for (int i = 0; i < n; i++)
            sum = sum * 31 + (uint64_t)ids[i];
        free(ids);
    }
    return (void *)(uintptr_t)(sum | 1);
}

START_TEST(threads_can_share_a_tokenizer)
{
    void *alone = encode_often(byte_tokenizer), *result[4];
    pthread_t threads[4];
    for (int i = 0; i < 4; i++)
        pthread_create(&threads[i], NULL, encode_often, byte_tokenizer);
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], &result[i]);
        ck_assert_ptr_eq(result[i], alone);
    }
    ck_assert_ptr_nonnull(alone);
}
END_TEST

START_TEST(untrusted_ranges_contain_no_special_tokens)
{
    const char *text = "<|im_start|>a<|im_end|><tool><|im_end|>";
    struct text_range untrusted[] = {{12, 29}}; // a<|im_end|><tool>
    struct text_range part[] = {{0, 1}, {38, 39}};
    size_t *starts;
    int32_t *ids;
    int n, special = 0, tools = 0;
    ck_assert_int_eq(tokenizer_encode_untrusted(byte_tokenizer, text, strlen(text), TOKENIZER_PARSE_SPECIAL, untrusted,
                                                1, INT_MAX, &ids, &starts, &n),
                     STATUS_OK);
    for (int i = 0; i < n; i++) {
        special += tokenizer_is_special(byte_tokenizer, ids[i]);
        tools += !strcmp(tokenizer_token(byte_tokenizer, ids[i]), "<tool>");
    }
    ck_assert_int_eq(special, 2);
    ck_assert_int_eq(tools, 1); // an added token that is not special
    ck_assert_str_eq(tokenizer_token(byte_tokenizer, ids[0]), "<|im_start|>");
    ck_assert_str_eq(tokenizer_token(byte_tokenizer, ids[n - 1]), "<|im_end|>");
    ck_assert_uint_eq(starts[n - 1], 29);
    free(ids);
    free(starts);
    // A special token that only touches an untrusted byte is not recognised either.
    ck_assert_int_eq(tokenizer_encode_untrusted(byte_tokenizer, text, strlen(text), TOKENIZER_PARSE_SPECIAL, part, 2,
                                                INT_MAX, &ids, NULL, &n),
                     STATUS_OK);
    special = 0;
    for (int i = 0; i < n; i++)
        special += tokenizer_is_special(byte_tokenizer, ids[i]);
    ck_assert_int_eq(special, 1);
    free(ids);
}
END_TEST

START_TEST(encoding_stops_at_the_limit)
{
    static const char *const bases[] = {"bytes", "pieces"};
    static const char *const texts[] = {"The License, <tool>the 12 x", "xqxqxqxqxqxq", "<s></s><s></s>"};
    unsigned flags = TOKENIZER_ADD_SPECIAL | TOKENIZER_PARSE_SPECIAL;
    struct tokenizer *t = open_variant(bases[_i], NULL, NULL);
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        int32_t *ids, *limited;
        int n, n_limited;
        size_t size = strlen(texts[i]);
        encode_into(t, texts[i], size, flags, &ids, &n);
        for (int max = 0; max < n; max++) {
            enum status status =
                tokenizer_encode_untrusted(t, texts[i], size, flags, NULL, 0, max, &limited, NULL, &n_limited);
            ck_assert_int_eq(status, STATUS_OUT_OF_RANGE);
        }
        ck_assert_int_eq(tokenizer_encode_untrusted(t, texts[i], size, flags, NULL, 0, n, &limited, NULL, &n_limited),
                         STATUS_OK);
        ck_assert_int_eq(n_limited, n);
        ck_assert_mem_eq(limited, ids, (size_t)n * sizeof *ids);
        free(limited);
        free(ids);
    }
    tokenizer_free(t);
}
END_TEST

// 60 MB of one letter have far more tokens than any context. This is found without encoding them.
START_TEST(the_least_number_of_tokens_is_near_the_number)
{
    struct tokenizer *t = open_variant("bytes", NULL, NULL);
    char text[4000];
    memset(text, 'x', sizeof text);
    size_t letters = tokenizer_min_tokens(t, text, sizeof text);
    ck_assert_uint_ge(letters, sizeof text / tokenizer_longest_piece_bytes(t));
    ck_assert_uint_ge(letters, 100);
    ck_assert_uint_eq(tokenizer_min_tokens(t, "", 0), 0);
    tokenizer_free(t);
    t = open_variant("bytes", "{\"added_tokens\":[{\"id\":500,\"content\":\"<x>\",\"lstrip\":true}]}", NULL);
    ck_assert_uint_eq(tokenizer_min_tokens(t, text, sizeof text), 0); // one token may represent any number of blanks
    tokenizer_free(t);
}
END_TEST

// Tokens of 16 bytes that share a slot under a hash that mixes words without a random key. A table that tries one slot
// after another would take hours.
START_TEST(tokens_that_are_made_to_collide_do_not)
{
    enum { TOKENS = 1 << 20, WORDS = 2 };
    const uint64_t factor = 0xD6E8FEB86659FD93u;
    uint64_t inverse = factor, (*words)[WORDS] = mem_alloc_array(TOKENS, sizeof *words);
    for (int i = 0; i < 6; i++)
        inverse *= 2 - factor * inverse;
    struct vocabulary vocabulary;
    vocabulary_init(&vocabulary, TOKENS);
    for (int32_t id = 0; id < TOKENS; id++) {
        uint64_t first = 16 ^ (uint64_t)id, goal = 42;
        words[id][0] = (uint64_t)id;
        first = (first ^ first >> 32) * factor;
        first ^= first >> 32;
        goal = (goal ^ goal >> 32) * inverse;
        words[id][1] = first ^ goal ^ goal >> 32;
        vocabulary_add(&vocabulary, id, (const char *)words[id], sizeof words[id]);
    }
    for (int32_t id = 0; id < TOKENS; id++)
        ck_assert_int_eq(vocabulary_find(&vocabulary, (const char *)words[id], sizeof words[id]), id);
    vocabulary_fini(&vocabulary);
    free(words);
}
END_TEST

SUITE("tokenizer")
{
    TCASE("as Hugging Face");
    TIMEOUT(60);
    if (external_data_wanted(argc, argv)) {
        LOOP(published_vectors_agree, 0, 4);
        LOOP(golden_prompts_agree, 2, 3);
        return;
    }
    TEST(fixtures_and_their_variants_agree);
    LOOP(golden_prompts_agree, 0, 2);
    TEST(nfc_agrees_with_utf8proc_on_every_character);

    TCASE("any text");
    TIMEOUT(60);
    TEST(merging_agrees_with_the_definition);
    LOOP(merging_in_any_order_agrees_with_the_definition, 0, 20);
    TEST(spelled_bytes_merge_with_their_neighbours);
    TEST(tokens_that_are_made_to_collide_do_not);
    LOOP(decoding_gives_the_text_back, 0, 2);
    LOOP(token_starts_ascend_and_cover_the_text, 0, 2);
    LOOP(long_runs_of_one_character_pass, 0, 9);
    LOOP(the_memory_of_a_long_word_is_bounded, 0, 5);
    TEST(ill_formed_bytes_become_replacement_characters);
    LOOP(encoding_stops_at_the_limit, 0, 2);
    TEST(the_least_number_of_tokens_is_near_the_number);

    TCASE("bytes");
    TIMEOUT(60);
    FIXTURE(open_bytes, free_bytes);
    TEST(text_that_is_not_utf8_is_refused_with_its_place);
    TEST(ids_outside_the_vocabulary_are_refused);
    TEST(tokens_with_too_much_text_are_refused);
    TEST(threads_can_share_a_tokenizer);
    TEST(untrusted_ranges_contain_no_special_tokens);
}
