// SPDX-License-Identifier: Apache-2.0
// See text_stream.h. Each stop string has a Knuth-Morris-Pratt automaton that reads the text byte by byte. Its state is
// the length of the longest prefix of the stop string that ends the text. The largest state is the number of bytes to
// hold back. Streams of several sequences may share the automatons, and each stream has its own states.
#include "lib/text/text_stream.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "lib/base/utf8.h"
#include "lib/text/unicode.h"

struct stop {
    char *text; // owned, [n]
    int n;
    uint16_t *border; // owned, [n + 1]: border[k] is the longest proper prefix of text[0..k) that also ends it
};

_Static_assert(TEXT_STREAM_STOP_LIMIT_BYTES <= UINT16_MAX, "borders and states are 16 bits wide");

// Stop strings, constant once they are shared.
struct stop_set {
    atomic_int references;
    int n;
    size_t bytes;
    struct stop stops[];
};

struct text_stream {
    const struct tokenizer *tokenizer; // borrowed
    struct stop_set *set;              // the stream has a reference
    uint16_t *matched;                 // owned, [set->n]: number of matched bytes of each stop string
    const int32_t *shown;              // [n_shown] special tokens whose names are text; borrowed
    int n_shown;
    struct bytes unfinished; // bytes of an incomplete character
    struct bytes text;       // whole characters: the text of the last call, then the text held back
    size_t given;            // bytes of `text` that the last call returned
    int stopped;             // index of the stop string that ended the text, or -1
};

static enum status stop_check(const char *text, size_t n, int index)
{
    if (n == 0) return status_fail(STATUS_INVALID, "stop string %d is empty", index);
    if (n > TEXT_STREAM_STOP_LIMIT_BYTES)
        return status_fail(STATUS_INVALID, "stop string %d has %zu bytes: at most %d", index, n,
                           TEXT_STREAM_STOP_LIMIT_BYTES);
    if (!utf8_valid(text, n, NULL)) return status_fail(STATUS_INVALID, "stop string %d is not UTF-8", index);
    return STATUS_OK;
}

static void stop_init(struct stop *stop, const char *text, size_t n)
{
    *stop =
        (struct stop){.text = mem_copy(text, n), .n = (int)n, .border = mem_alloc_array(n + 1, sizeof *stop->border)};
    for (int i = 1, k = 0; i < stop->n; stop->border[++i] = (uint16_t)k) {
        while (k && text[i] != text[k])
            k = stop->border[k];
        k += text[i] == text[k];
    }
}

static void stop_set_unref(struct stop_set *set)
{
    if (atomic_fetch_sub(&set->references, 1) != 1) return;
    for (int i = 0; i < set->n; i++) {
        free(set->stops[i].text);
        free(set->stops[i].border);
    }
    free(set);
}

static enum status stop_set_create(const char *const *stops, int n, struct stop_set **set_p)
{
    struct stop_set *set = mem_alloc(sizeof *set + (size_t)n * sizeof *set->stops);
    atomic_init(&set->references, 1);
    for (; set->n < n; set->n++) {
        size_t size = strlen(stops[set->n]);
        enum status status = stop_check(stops[set->n], size, set->n);
        if (status) {
            stop_set_unref(set);
            return status;
        }
        stop_init(&set->stops[set->n], stops[set->n], size);
        set->bytes += sizeof *set->stops + size + (size + 1) * sizeof *set->stops->border;
    }
    *set_p = set;
    return STATUS_OK;
}

// Creates a stream, which takes ownership of the reference to the set.
static struct text_stream *stream_create(const struct tokenizer *tokenizer, struct stop_set *set)
{
    struct text_stream *stream = mem_alloc(sizeof *stream);
    stream->tokenizer = tokenizer;
    stream->set = set;
    stream->matched = mem_alloc_array((size_t)set->n, sizeof *stream->matched);
    stream->stopped = -1;
    return stream;
}

enum status text_stream_create(const struct tokenizer *tokenizer, const char *const *stops, int n_stops,
                               struct text_stream **stream_p)
{
    struct stop_set *set;
    if (n_stops > TEXT_STREAM_STOPS_LIMIT)
        return status_fail(STATUS_INVALID, "%d stop strings: at most %d", n_stops, TEXT_STREAM_STOPS_LIMIT);
    TRY(stop_set_create(stops, n_stops, &set));
    *stream_p = stream_create(tokenizer, set);
    return STATUS_OK;
}

struct text_stream *text_stream_create_like(const struct text_stream *other)
{
    // Relaxed is enough: `other` has a reference.
    atomic_fetch_add_explicit(&other->set->references, 1, memory_order_relaxed);
    return stream_create(other->tokenizer, other->set);
}

size_t text_stream_stop_bytes(const struct text_stream *stream)
{
    return stream->set->bytes;
}

void text_stream_free(struct text_stream *stream)
{
    if (!stream) return;
    stop_set_unref(stream->set);
    free(stream->matched);
    bytes_free(&stream->unfinished);
    bytes_free(&stream->text);
    free(stream);
}

// Feeds one byte. Returns true if it completes the stop string.
static bool stop_step(const struct stop *stop, uint16_t *matched, char byte)
{
    int state = *matched;
    if (state == stop->n) state = stop->border[stop->n];
    while (state && stop->text[state] != byte)
        state = stop->border[state];
    state += stop->text[state] == byte;
    *matched = (uint16_t)state;
    return state == stop->n;
}

// Feeds one byte to all stop strings. Returns the length of the longest stop string that it completes, or 0.
static int stops_step(struct text_stream *stream, char byte)
{
    int longest = 0;
    for (int i = 0; i < stream->set->n; i++) {
        const struct stop *stop = &stream->set->stops[i];
        if (stop_step(stop, &stream->matched[i], byte) && stop->n > longest) {
            longest = stop->n;
            stream->stopped = i;
        }
    }
    return longest;
}

// Returns the number of bytes at the end of the text in which a stop string may have started. A completed stop string
// that did not count (may_stop false) is text, but its end may start another stop string.
static size_t held_bytes(const struct text_stream *stream)
{
    int most = 0;
    for (int i = 0; i < stream->set->n; i++) {
        const struct stop *stop = &stream->set->stops[i];
        int state = stream->matched[i] == stop->n ? stop->border[stop->n] : stream->matched[i];
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
