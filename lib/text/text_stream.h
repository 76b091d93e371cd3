// SPDX-License-Identifier: Apache-2.0
// Streaming detokenisation of one sequence: ids in, text out as soon as it is final.
//
// Text is final when it ends in a whole character and no stop string can start in it; the rest is held back. The pieces
// joined equal tokenizer_decode(ids, SKIP_SPECIAL | CONTINUATION), cut before the first completed stop string.
// (CONTINUATION: generated text follows a prompt, so the blank before its first word is kept, as in Hugging Face and
// vLLM, which decode prompt and output together.) The stop string that completes first wins, the longest of several;
// token boundaries make no difference.
//
// One owner, one thread at a time, also for streams that share stop strings. The tokenizer is borrowed until
// text_stream_free(); stop strings are copied.
#pragma once

#include "lib/text/tokenizer.h"

struct text_stream;

// Limits that keep hostile requests cheap; above them STATUS_INVALID.
#define TEXT_STREAM_STOPS_LIMIT      64
#define TEXT_STREAM_STOP_LIMIT_BYTES 4096

struct text_piece {
    const char *text;  // valid until the next call on the stream; not NUL-terminated
    size_t size_bytes; // 0: no text is final yet
    int stop;          // index of the completed stop string, -1: none; no text follows it
};

// stops [n_stops]: NUL-terminated UTF-8, not empty. INVALID names the wrong one.
enum status text_stream_create(const struct tokenizer *tokenizer, const char *const *stops, int n_stops,
                               struct text_stream **stream_p);

// A stream for another sequence with the same stop strings, which both share.
struct text_stream *text_stream_create_like(const struct text_stream *other);

// The memory of its stop strings, shared or not.
size_t text_stream_stop_bytes(const struct text_stream *stream);

// From now on the names of these special tokens [n] are text. Borrowed.
void text_stream_show(struct text_stream *stream, const int32_t *ids, int n);

// Adds the next id. Other special tokens and ids outside the vocabulary add no text. With `may_stop` false
// (min_tokens), a stop string completed by this token becomes text, and a stop string that starts in it may complete
// later.
void text_stream_push(struct text_stream *stream, int32_t id, bool may_stop, struct text_piece *piece_p);

// Ends the sequence: returns the text held back, an incomplete character as U+FFFD. A stop string that ends in U+FFFD
// may complete here.
void text_stream_finish(struct text_stream *stream, struct text_piece *piece_p);

void text_stream_free(struct text_stream *stream); // NULL is fine
