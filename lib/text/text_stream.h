// SPDX-License-Identifier: Apache-2.0
// Detokenises one sequence as a stream: returns text as soon as it is final.
//
// Text is final when it ends in a whole character and no stop string can start in it; the rest is held back. The joined
// pieces equal tokenizer_decode(ids, SKIP_SPECIAL | CONTINUATION), cut before the first completed stop string.
// CONTINUATION keeps the blank before the first word, because generated text follows a prompt. Hugging Face and vLLM do
// the same by decoding prompt and output together. The stop string that is complete first cuts the text, or the longest
// if several are complete at the same byte. Token boundaries make no difference.
//
// One owner, one thread at a time. Streams that share stop strings may be used by different threads. The tokenizer is
// borrowed until text_stream_free(); stop strings are copied.
#pragma once

#include "lib/text/tokenizer.h"

struct text_stream;

// Limits that keep hostile requests cheap. Larger requests are STATUS_INVALID.
#define TEXT_STREAM_STOPS_LIMIT      64
#define TEXT_STREAM_STOP_LIMIT_BYTES 4096

struct text_piece {
    const char *text;  // valid until the next call on the stream; not NUL-terminated
    size_t size_bytes; // 0: no text is final yet
    int stop;          // index of the completed stop string, or -1; no text follows it
};

// Creates a stream. stops [n_stops] are NUL-terminated UTF-8, not empty. On INVALID the error message names the wrong
// stop string.
enum status text_stream_create(const struct tokenizer *tokenizer, const char *const *stops, int n_stops,
                               struct text_stream **stream_p);

// Creates a stream for another sequence with the same stop strings, which both streams share.
struct text_stream *text_stream_create_like(const struct text_stream *other);

// Returns the bytes of memory of the stream's stop strings, whether or not they are shared.
size_t text_stream_stop_bytes(const struct text_stream *stream);

// Makes the names of the special tokens ids [n] part of the text from now on. `ids` is borrowed.
void text_stream_show(struct text_stream *stream, const int32_t *ids, int n);

// Adds the next id. Special tokens that are not shown, and ids outside the vocabulary, add no text. If `may_stop` is
// false (min_tokens), a stop string completed by this token becomes text, and a stop string that starts in it may
// complete later.
void text_stream_push(struct text_stream *stream, int32_t id, bool may_stop, struct text_piece *piece_p);

// Ends the sequence: returns the text held back, with an incomplete character as U+FFFD. A stop string that ends in
// U+FFFD may complete here.
void text_stream_finish(struct text_stream *stream, struct text_piece *piece_p);

void text_stream_free(struct text_stream *stream); // NULL is fine
