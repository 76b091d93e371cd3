// SPDX-License-Identifier: Apache-2.0
// Each stop string has a Knuth-Morris-Pratt automaton that reads the text byte by byte. Its state is the length of the
// longest prefix of the stop string that ends the text; the largest state is the number of bytes to hold back.
#include "model/text_stream.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/utf8.h"
#include "model/unicode.h"

struct stop {
    char *text; // owned, [n]
    int n;
    int *border; // owned, [n + 1]: border[k] is the longest proper prefix of text[0..k) that also ends it
    int state;   // bytes matched
};

struct text_stream {
    const struct tokenizer *tokenizer; // borrowed
    struct stop *stops;                // owned
    int n_stops;
    const int32_t *shown; // [n_shown] special tokens that are text; borrowed
    int n_shown;
    struct bytes unfinished; // bytes of an incomplete character
    struct bytes text;       // whole characters: the text of the last call, then the text held back
    size_t given;            // bytes of `text` returned by the last call
    int stopped;             // index of the stop string that ended the text, -1: none
};

static enum status stop_init(struct stop *stop, const char *text, int index)
{
    size_t n = strlen(text);
    if (n == 0) return status_fail(STATUS_INVALID, "stop string %d is empty", index);
    if (n > TEXT_STREAM_STOP_LIMIT_BYTES)
        return status_fail(STATUS_INVALID, "stop string %d has %zu bytes: at most %d", index, n,
                           TEXT_STREAM_STOP_LIMIT_BYTES);
    if (!utf8_valid(text, n, NULL)) return status_fail(STATUS_INVALID, "stop string %d is not UTF-8", index);
    *stop =
        (struct stop){.text = mem_copy(text, n), .n = (int)n, .border = mem_alloc_array(n + 1, sizeof *stop->border)};
    for (int i = 1, k = 0; i < stop->n; stop->border[++i] = k) {
        while (k && text[i] != text[k])
            k = stop->border[k];
        k += text[i] == text[k];
    }
    return STATUS_OK;
}

enum status text_stream_create(const struct tokenizer *tokenizer, const char *const *stops, int n_stops,
                               struct text_stream **stream_p)
{
    if (n_stops > TEXT_STREAM_STOPS_LIMIT)
        return status_fail(STATUS_INVALID, "%d stop strings: at most %d", n_stops, TEXT_STREAM_STOPS_LIMIT);
    struct text_stream *stream = mem_alloc(sizeof *stream);
    *stream = (struct text_stream){
        .tokenizer = tokenizer, .stops = mem_alloc_array((size_t)n_stops, sizeof *stream->stops), .stopped = -1};
    for (; stream->n_stops < n_stops; stream->n_stops++) {
        enum status status = stop_init(&stream->stops[stream->n_stops], stops[stream->n_stops], stream->n_stops);
        if (status) {
            text_stream_free(stream);
            return status;
        }
    }
    *stream_p = stream;
    return STATUS_OK;
}

void text_stream_free(struct text_stream *stream)
{
    if (!stream) return;
    for (int i = 0; i < stream->n_stops; i++) {
        free(stream->stops[i].text);
        free(stream->stops[i].border);
    }
    free(stream->stops);
    bytes_free(&stream->unfinished);
    bytes_free(&stream->text);
    free(stream);
}

// Feeds one byte; true when it completes the stop string.
static bool stop_step(struct stop *stop, char byte)
{
    if (stop->state == stop->n) stop->state = stop->border[stop->n];
    while (stop->state && stop->text[stop->state] != byte)
        stop->state = stop->border[stop->state];
    stop->state += stop->text[stop->state] == byte;
    return stop->state == stop->n;
}

// Feeds one byte to all stop strings. Returns the length of the longest one it completes, 0: none.
static int stops_step(struct text_stream *stream, char byte)
{
    int longest = 0;
    for (int i = 0; i < stream->n_stops; i++)
        if (stop_step(&stream->stops[i], byte) && stream->stops[i].n > longest) {
            longest = stream->stops[i].n;
            stream->stopped = i;
        }
    return longest;
}

// Bytes at the end of the text in which a stop string may have started. A completed stop string that did not count
// (may_stop false) is text, but its end may start another one.
static size_t held_bytes(const struct text_stream *stream)
{
    int most = 0;
    for (int i = 0; i < stream->n_stops; i++) {
        const struct stop *stop = &stream->stops[i];
        int state = stop->state == stop->n ? stop->border[stop->n] : stop->state;
        if (state > most) most = state;
    }
    return (size_t)most;
}

// Removes the text of the last call, so that `text` starts with the text held back.
static void drop_given(struct text_stream *stream)
{
    if (stream->given) memmove(stream->text.data, stream->text.data + stream->given, stream->text.n - stream->given);
    stream->text.n -= stream->given;
    stream->given = 0;
}

static void set_piece(struct text_stream *stream, size_t size_bytes, struct text_piece *piece_p)
{
    stream->given = size_bytes;
    *piece_p = (struct text_piece){
        .text = stream->text.data ? stream->text.data : "", .size_bytes = size_bytes, .stop = stream->stopped};
}

static void stream_advance(struct text_stream *stream, bool may_stop, bool final, struct text_piece *piece_p)
{
    size_t from = stream->text.n;
    size_t used = utf8_repair(&stream->text, stream->unfinished.data, stream->unfinished.n, final);
    memmove(stream->unfinished.data, stream->unfinished.data + used, stream->unfinished.n - used);
    stream->unfinished.n -= used;
    for (size_t i = from; i < stream->text.n; i++) {
        int length = stops_step(stream, stream->text.data[i]);
        if (!length) continue;
        if (may_stop) {
            stream->text.n = i + 1 - (size_t)length;
            stream->unfinished.n = 0;
            set_piece(stream, stream->text.n, piece_p);
            return;
        }
        stream->stopped = -1;
    }
    set_piece(stream, stream->text.n - (final ? 0 : held_bytes(stream)), piece_p);
}

void text_stream_show(struct text_stream *stream, const int32_t *ids, int n)
{
    stream->shown = ids;
    stream->n_shown = n;
}

static bool is_hidden(const struct text_stream *stream, int32_t id)
{
    for (int i = 0; i < stream->n_shown; i++)
        if (stream->shown[i] == id) return false;
    return tokenizer_is_special(stream->tokenizer, id);
}

void text_stream_push(struct text_stream *stream, int32_t id, bool may_stop, struct text_piece *piece_p)
{
    const char *bytes;
    size_t size;
    drop_given(stream);
    tokenizer_piece(stream->tokenizer, id, &bytes, &size);
    if (stream->stopped >= 0 || size == 0 || is_hidden(stream, id)) {
        set_piece(stream, 0, piece_p);
        return;
    }
    bytes_add(&stream->unfinished, bytes, size);
    stream_advance(stream, may_stop, false, piece_p);
}

void text_stream_finish(struct text_stream *stream, struct text_piece *piece_p)
{
    drop_given(stream);
    if (stream->stopped >= 0 || !stream->unfinished.n)
        set_piece(stream, stream->text.n, piece_p);
    else
        stream_advance(stream, true, true, piece_p);
}
