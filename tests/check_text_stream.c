// SPDX-License-Identifier: Apache-2.0
// Streaming text: for any ids and stop strings, the joined pieces equal the decoded ids, cut where a slow search finds
// the first completed stop string.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "lib/base/utf8.h"
#include "lib/text/text_stream.h"
#include "tests/suite.h"
#include "tests/test_data.h"
#include "text_data.h"

struct joined {
    char text[1 << 16];
    size_t n;
    int stop;
};

static void join(struct joined *all, struct text_piece piece)
{
    ck_assert(utf8_valid(piece.text, piece.size_bytes, NULL));
    ck_assert_uint_lt(all->n + piece.size_bytes, sizeof all->text);
    memcpy(all->text + all->n, piece.text, piece.size_bytes);
    all->n += piece.size_bytes;
    all->text[all->n] = 0;
    all->stop = piece.stop;
}

// Streams `ids`; stop strings count from id number `min_tokens` on.
static void stream_all(struct tokenizer *t, const int32_t *ids, int n, const char *const *stops, int n_stops,
                       int min_tokens, struct joined *all)
{
    struct text_stream *stream;
    struct text_piece piece;
    all->n = 0;
    all->stop = -1;
    ck_assert_int_eq(text_stream_create(t, stops, n_stops, &stream), STATUS_OK);
    for (int i = 0; i < n && all->stop < 0; i++) {
        text_stream_push(stream, ids[i], i >= min_tokens, &piece);
        join(all, piece);
    }
    if (all->stop < 0) {
        text_stream_finish(stream, &piece);
        join(all, piece);
    }
    text_stream_free(stream);
}

static char *decode(struct tokenizer *t, const int32_t *ids, int n, size_t *size_p)
{
    char *text;
    ck_assert_int_eq(tokenizer_decode(t, ids, n, TOKENIZER_SKIP_SPECIAL | TOKENIZER_CONTINUATION, &text, size_p),
                     STATUS_OK);
    return text;
}

static const char *const tokenizers[] = {"bytes", "pieces", "metaspace", "gpt2", "llama2", "llama3", "qwen2.5"};

enum { TOKENIZERS = sizeof tokenizers / sizeof tokenizers[0], TOKENIZERS_IN_REPOSITORY = 3 };

static struct tokenizer *open_numbered(int i)
{
    static const char metaspace[] =
        "{\"normalizer\": null, \"pre_tokenizer\": {\"type\": \"Metaspace\", \"prepend_scheme\": \"first\"}, "
        "\"decoder\": {\"type\": \"Sequence\", \"decoders\": [{\"type\": \"ByteFallback\"}, {\"type\": "
        "\"Metaspace\"}]}}";
    if (i < TOKENIZERS_IN_REPOSITORY) return open_variant(i ? "pieces" : "bytes", i == 2 ? metaspace : NULL, NULL);
    char *name = mem_format("tokenizers/%s", tokenizers[i]), *dir = external_data(name);
    struct tokenizer *t = open_dir(dir);
    free(name);
    free(dir);
    return t;
}

START_TEST(pieces_joined_equal_decoding)
{
    struct tokenizer *t = open_numbered(_i);
    struct joined *all = mem_alloc(sizeof *all);
    uint64_t state = 5;
    for (int round = 0; round < 400; round++) {
        int32_t ids[60];
        int n = (int)(random_next(&state) % 60), most = tokenizer_vocab_size(t);
        size_t size;
        for (int i = 0; i < n; i++) // half of them below 300, where the single bytes are
            ids[i] = (int32_t)(random_next(&state) % (uint64_t)(random_next(&state) % 2 ? 300 : most));
        char *want = decode(t, ids, n, &size);
        stream_all(t, ids, n, NULL, 0, 0, all);
        ck_assert_msg(all->n == size, "%s: \"%s\", not \"%s\"", tokenizers[_i], all->text, want);
        ck_assert_msg(!memcmp(all->text, want, size), "%s: \"%s\", not \"%s\"", tokenizers[_i], all->text, want);
        free(want);
    }
    free(all);
    tokenizer_free(t);
}
END_TEST

// The slow search. Finds the first place where a stop string ends, and the longest of several that end there.
static size_t find_cut(const char *text, size_t n, const char *const *stops, int n_stops, int *stop_p)
{
    *stop_p = -1;
    for (size_t end = 1; end <= n; end++) {
        size_t longest = 0;
        for (int i = 0; i < n_stops; i++) {
            size_t length = strlen(stops[i]);
            if (length <= end && length > longest && !memcmp(text + end - length, stops[i], length)) {
                longest = length;
                *stop_p = i;
            }
        }
        if (longest) return end - longest;
    }
    return n;
}

START_TEST(text_is_cut_where_a_slow_search_cuts_it)
{
    static const char *const parts[] = {"a", "b", "ab", "é", "aa", "漢", "\n", " "};
    struct tokenizer *t = open_variant(_i ? "pieces" : "bytes", NULL, NULL);
    struct joined *all = mem_alloc(sizeof *all);
    uint64_t state = 6;
    int stopped = 0;
    for (int round = 0; round < 1500; round++) {
        char stop_text[4][32], text[200] = "";
        const char *stops[4] = {stop_text[0], stop_text[1], stop_text[2], stop_text[3]};
        int n_stops = (int)(random_next(&state) % 5), n_ids, stop;
        for (int i = 0; i < 4; i++) {
            stop_text[i][0] = 0;
            for (uint64_t left = 1 + random_next(&state) % 4; left; left--)
                strcat(stop_text[i], parts[random_next(&state) % 8]);
        }
        for (int i = 0; i < 40; i++)
            strcat(text, parts[random_next(&state) % 8]);
        int32_t *ids;
        size_t size;
        ck_assert_int_eq(tokenizer_encode(t, text, strlen(text), 0, &ids, &n_ids), STATUS_OK);
        char *whole = decode(t, ids, n_ids, &size);
        size_t cut = find_cut(whole, size, stops, n_stops, &stop);
        stream_all(t, ids, n_ids, stops, n_stops, 0, all);
        ck_assert_int_eq(all->stop, stop);
        ck_assert_uint_eq(all->n, cut);
        ck_assert_int_eq(memcmp(all->text, whole, cut), 0);
        stopped += stop >= 0;
        free(ids);
        free(whole);
    }
    ck_assert_int_gt(stopped, 300);
    ck_assert_int_lt(stopped, 1400);
    free(all);
    tokenizer_free(t);
}
END_TEST

// ---- Single cases. In "pieces", the token of byte b is 3 + b.

static struct text_piece push_byte(struct text_stream *stream, int byte, bool may_stop)
{
    struct text_piece piece;
    text_stream_push(stream, 3 + byte, may_stop, &piece);
    return piece;
}

static void check_piece(struct text_piece piece, const char *text, int stop)
{
    ck_assert_msg(piece.size_bytes == strlen(text), "\"%.*s\", not \"%s\"", (int)piece.size_bytes, piece.text, text);
    ck_assert_mem_eq(piece.text, text, piece.size_bytes);
    ck_assert_int_eq(piece.stop, stop);
}

static struct text_stream *open_stream(struct tokenizer *t, const char *stop)
{
    struct text_stream *stream;
    ck_assert_int_eq(text_stream_create(t, &stop, stop ? 1 : 0, &stream), STATUS_OK);
    return stream;
}

static struct tokenizer *pieces;

static void open_pieces(void)
{
    pieces = open_variant("pieces", NULL, NULL);
}

static void close_pieces(void)
{
    tokenizer_free(pieces);
}

START_TEST(streams_that_share_stop_strings_are_independent)
{
    struct text_stream *first = open_stream(pieces, "ab");
    check_piece(push_byte(first, 'a', true), "", -1);
    struct text_stream *second = text_stream_create_like(first);
    check_piece(push_byte(second, 'b', true), "b", -1);
    check_piece(push_byte(first, 'b', true), "", 0);
    text_stream_free(first);
    check_piece(push_byte(second, 'a', true), "", -1);
    check_piece(push_byte(second, 'b', true), "", 0);
    text_stream_free(second);
}
END_TEST

START_TEST(stop_strings_take_three_bytes_for_each)
{
    char stop[1025];
    memset(stop, 's', 1024);
    stop[1024] = '\0';
    struct text_stream *stream = open_stream(pieces, stop), *like = text_stream_create_like(stream);
    ck_assert_uint_ge(text_stream_stop_bytes(stream), 3 * 1024);
    ck_assert_uint_lt(text_stream_stop_bytes(stream), 3 * 1024 + 64);
    ck_assert_uint_eq(text_stream_stop_bytes(like), text_stream_stop_bytes(stream));
    text_stream_free(stream);
    text_stream_free(like);
}
END_TEST

START_TEST(half_a_character_is_held_back)
{
    struct text_stream *stream = open_stream(pieces, NULL);
    struct text_piece piece;
    check_piece(push_byte(stream, 0xF0, true), "", -1);
    check_piece(push_byte(stream, 0x9F, true), "", -1);
    check_piece(push_byte(stream, 0x98, true), "", -1);
    check_piece(push_byte(stream, 0x80, true), "😀", -1);
    check_piece(push_byte(stream, 0xFF, true), "\uFFFD", -1); // can never become a character
    check_piece(push_byte(stream, 0xE2, true), "", -1);
    check_piece(push_byte(stream, 'x', true), "\uFFFDx", -1);
    check_piece(push_byte(stream, 0xE2, true), "", -1);
    text_stream_finish(stream, &piece);
    check_piece(piece, "\uFFFD", -1);
    text_stream_finish(stream, &piece);
    check_piece(piece, "", -1);
    text_stream_free(stream);

    stream = open_stream(pieces, "a\uFFFD");
    check_piece(push_byte(stream, 'x', true), "x", -1);
    check_piece(push_byte(stream, 'a', true), "", -1);
    check_piece(push_byte(stream, 0xE2, true), "", -1);
    text_stream_finish(stream, &piece);
    check_piece(piece, "", 0);
    text_stream_free(stream);
}
END_TEST

START_TEST(a_possible_stop_string_is_held_back)
{
    struct text_stream *stream = open_stream(pieces, "aab");
    struct text_piece piece;
    check_piece(push_byte(stream, 'x', true), "x", -1);
    check_piece(push_byte(stream, 'a', true), "", -1);
    check_piece(push_byte(stream, 'a', true), "", -1);
    check_piece(push_byte(stream, 'a', true), "a", -1);
    check_piece(push_byte(stream, 'c', true), "aac", -1);
    check_piece(push_byte(stream, 'a', true), "", -1);
    text_stream_finish(stream, &piece);
    check_piece(piece, "a", -1);
    text_stream_free(stream);

    stream = open_stream(pieces, "aab");
    check_piece(push_byte(stream, 'a', true), "", -1);
    check_piece(push_byte(stream, 'a', true), "", -1);
    check_piece(push_byte(stream, 'a', true), "a", -1);
    check_piece(push_byte(stream, 'b', true), "", 0);
    check_piece(push_byte(stream, 'y', true), "", 0); // nothing follows
    text_stream_finish(stream, &piece);
    check_piece(piece, "", 0);
    text_stream_free(stream);
}
END_TEST

START_TEST(a_stop_string_does_not_count_before_min_tokens)
{
    struct text_stream *stream = open_stream(pieces, "aa");
    check_piece(push_byte(stream, 'a', false), "", -1);
    // The stop string is complete, but part of the text. Its end may start another stop string.
    check_piece(push_byte(stream, 'a', false), "a", -1);
    check_piece(push_byte(stream, 'a', true), "", 0);
    text_stream_free(stream);
}
END_TEST

START_TEST(special_and_unknown_ids_give_no_text)
{
    struct text_stream *stream = open_stream(pieces, NULL);
    static const int32_t ids[] = {0, 1, 2, 560, 1000000, -1, INT32_MIN};
    struct text_piece piece;
    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++) {
        text_stream_push(stream, ids[i], true, &piece);
        check_piece(piece, "", -1);
    }
    text_stream_free(stream);
}
END_TEST

START_TEST(the_leading_blank_stays)
{
    struct text_stream *stream = open_stream(pieces, NULL);
    int32_t *ids;
    int n;
    char *whole;
    struct text_piece piece;
    ck_assert_int_eq(tokenizer_encode(pieces, "the", 3, 0, &ids, &n), STATUS_OK);
    ck_assert_int_eq(n, 1);
    text_stream_push(stream, ids[0], true, &piece);
    check_piece(piece, " the", -1);
    ck_assert_int_eq(tokenizer_decode(pieces, ids, n, 0, &whole, NULL), STATUS_OK);
    ck_assert_str_eq(whole, "the");
    free(whole);
    free(ids);
    text_stream_free(stream);
}
END_TEST

START_TEST(wrong_stop_strings_are_refused)
{
    struct text_stream *stream = NULL;
    char *longest = mem_alloc(TEXT_STREAM_STOP_LIMIT_BYTES + 2);
    memset(longest, 'a', TEXT_STREAM_STOP_LIMIT_BYTES + 1);
    const char *const wrong[][2] = {{"ok", ""}, {"ok", "\xFF"}, {"ok", longest}};
    static const char *const reasons[] = {"stop string 1 is empty", "stop string 1 is not UTF-8",
                                          "stop string 1 has 4097 bytes: at most 4096"};
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(text_stream_create(pieces, wrong[i], 2, &stream), STATUS_INVALID);
        ck_assert_str_eq(status_message(), reasons[i]);
    }
    ck_assert_int_eq(text_stream_create(pieces, wrong[0], TEXT_STREAM_STOPS_LIMIT + 1, &stream), STATUS_INVALID);
    ck_assert_ptr_null(stream);
    free(longest);
}
END_TEST

SUITE("text stream")
{
    TCASE("any ids");
    TIMEOUT(60);
    if (external_data_wanted(argc, argv)) {
        LOOP(pieces_joined_equal_decoding, TOKENIZERS_IN_REPOSITORY, TOKENIZERS);
    } else {
        LOOP(pieces_joined_equal_decoding, 0, TOKENIZERS_IN_REPOSITORY);
        LOOP(text_is_cut_where_a_slow_search_cuts_it, 0, 2);

        TCASE("one case each");
        TIMEOUT(30);
        FIXTURE(open_pieces, close_pieces);
        TEST(streams_that_share_stop_strings_are_independent);
        TEST(stop_strings_take_three_bytes_for_each);
        TEST(half_a_character_is_held_back);
        TEST(a_possible_stop_string_is_held_back);
        TEST(a_stop_string_does_not_count_before_min_tokens);
        TEST(special_and_unknown_ids_give_no_text);
        TEST(the_leading_blank_stays);
        TEST(wrong_stop_strings_are_refused);
    }
}
