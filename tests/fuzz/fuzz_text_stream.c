// SPDX-License-Identifier: Apache-2.0
// Stop strings (each up to a NUL, their number first), then token ids. Streamed text is the decoded text, cut before
// the first completed stop string. It is the same if every token is one byte.
#include "lib/text/text_stream.h"
#include "tests/fuzz/fuzz.h"

enum { STOPS_MAX = 5, IDS_MAX = 1024, TEXT_MAX = 1 << 16 };

struct streamed {
    char text[TEXT_MAX];
    size_t n;
    int stop;
};

static const struct tokenizer *tokenizer_get(void)
{
    static struct tokenizer *tokenizer;
    if (!tokenizer) FUZZ_CHECK(tokenizer_open(FUZZ_SOURCE "/tests/data/tokenizers/bytes", &tokenizer) == STATUS_OK);
    return tokenizer;
}

static void append_piece(struct streamed *to, const struct text_piece *piece)
{
    FUZZ_CHECK(to->stop < 0 && to->n + piece->size_bytes <= TEXT_MAX);
    if (piece->size_bytes) memcpy(to->text + to->n, piece->text, piece->size_bytes);
    to->n += piece->size_bytes;
    to->stop = piece->stop;
}

// Streams the tokens. Returns false if the stop strings are refused. The first `bound` tokens may not stop.
static bool stream(const int32_t *ids, int n, int bound, char *const *stops, int n_stops, struct streamed *to)
{
    struct text_stream *stream;
    struct text_piece piece;
    to->n = 0;
    to->stop = -1;
    if (text_stream_create(tokenizer_get(), (const char *const *)stops, n_stops, &stream) != STATUS_OK) return false;
    for (int i = 0; i < n && to->stop < 0; i++) {
        text_stream_push(stream, ids[i], i >= bound, &piece);
        append_piece(to, &piece);
    }
    if (to->stop < 0) {
        text_stream_finish(stream, &piece);
        append_piece(to, &piece);
    }
    text_stream_free(stream);
    return true;
}

static bool ends_with(const char *text, size_t n, const char *end, size_t n_end)
{
    return n >= n_end && memcmp(text + n - n_end, end, n_end) == 0;
}

// Returns the stop string that completes first, the longest of several, by comparing at every byte. *end_p: the end of
// the text.
static int find_stop(const char *text, size_t n, char *const *stops, int n_stops, size_t *end_p)
{
    int stop = -1;
    for (size_t end = 1; end <= n && stop < 0; end++)
        for (int s = 0; s < n_stops; s++)
            if (ends_with(text, end, stops[s], strlen(stops[s])) &&
                (stop < 0 || strlen(stops[s]) > strlen(stops[stop]))) {
                stop = s;
                *end_p = end - strlen(stops[s]);
            }
    if (stop < 0) *end_p = n;
    return stop;
}

static const int32_t *byte_ids(void) // [256]
{
    static int32_t id_of[256];
    const struct tokenizer *tokenizer = tokenizer_get();
    const char *bytes;
    size_t size;
    if (id_of['a']) return id_of;
    for (int32_t id = 0; id < tokenizer_vocab_size(tokenizer); id++) {
        tokenizer_piece(tokenizer, id, &bytes, &size);
        if (size == 1 && !tokenizer_is_special(tokenizer, id)) id_of[(unsigned char)*bytes] = id;
    }
    return id_of;
}

// Writes the ids of the single bytes of a text's tokens.
static int ids_of_bytes(const int32_t *ids, int n, int32_t *out)
{
    const struct tokenizer *tokenizer = tokenizer_get();
    const int32_t *id_of = byte_ids();
    const char *bytes;
    size_t size;
    int count = 0;
    for (int i = 0; i < n; i++) {
        tokenizer_piece(tokenizer, ids[i], &bytes, &size);
        for (size_t k = 0; k < size && !tokenizer_is_special(tokenizer, ids[i]); k++)
            out[count++] = id_of[(unsigned char)bytes[k]];
    }
    return count;
}

static void check_same(const struct streamed *a, const struct streamed *b)
{
    FUZZ_CHECK(a->n == b->n && a->stop == b->stop && memcmp(a->text, b->text, a->n) == 0);
}

static void check_stream(const int32_t *ids, int n, int bound, char *const *stops, int n_stops)
{
    static struct streamed parts, bytes, late;
    static int32_t of_bytes[TEXT_MAX];
    char *whole;
    size_t n_whole, end;
    if (!stream(ids, n, 0, stops, n_stops, &parts)) return;
    FUZZ_CHECK(tokenizer_decode(tokenizer_get(), ids, n, TOKENIZER_SKIP_SPECIAL | TOKENIZER_CONTINUATION, &whole,
                                &n_whole) == STATUS_OK);
    int stop = find_stop(whole, n_whole, stops, n_stops, &end);
    FUZZ_CHECK(parts.stop == stop && parts.n == end && memcmp(parts.text, whole, end) == 0);
    FUZZ_CHECK(stream(of_bytes, ids_of_bytes(ids, n, of_bytes), 0, stops, n_stops, &bytes));
    check_same(&parts, &bytes);

    FUZZ_CHECK(stream(ids, n, bound, stops, n_stops, &late)); // text up to a later stop string
    FUZZ_CHECK(late.n >= parts.n && late.n <= n_whole && memcmp(late.text, whole, late.n) == 0);
    FUZZ_CHECK(late.stop >= 0 || late.n == n_whole);
    free(whole);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static int32_t ids[IDS_MAX];
    struct fuzz_script script = {data, size};
    char *stops[STOPS_MAX] = {NULL};
    int n_stops = fuzz_below(&script, STOPS_MAX + 1), bound = fuzz_byte(&script), n = 0;
    for (int s = 0; s < n_stops; s++)
        stops[s] = fuzz_string(&script);
    while (script.left && n < IDS_MAX)
        ids[n++] = (fuzz_byte(&script) | (script.left % 2 ? 256 : 0)) % tokenizer_vocab_size(tokenizer_get());
    check_stream(ids, n, bound, stops, n_stops);
    for (int s = 0; s < n_stops; s++)
        free(stops[s]);
    return 0;
}
