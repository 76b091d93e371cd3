// SPDX-License-Identifier: Apache-2.0
// Streaming detokenisation of one sequence: ids in, text out as soon as it is final.
//
// Text is final when it ends in a whole character and no stop string could still begin in it; the rest is held back.
// The pieces joined equal tokenizer_decode(ids, SKIP_SPECIAL | CONTINUATION), cut before the first stop string that is
// completed. (CONTINUATION: generated text follows a prompt, so the blank before its first word is kept, as Hugging
// Face and vLLM give it when they decode prompt and output together.) Which stop string counts does not depend on where
// tokens begin: the one whose last byte comes first, of several the longest.
//
// One owner, one thread at a time. The tokenizer is borrowed until text_stream_free(); stop strings are copied.
#pragma once

#include "model/tokenizer.h"

struct text_stream;

// Limits that keep a hostile request cheap; more is STATUS_INVALID.
#define TEXT_STREAM_STOPS_LIMIT      64
#define TEXT_STREAM_STOP_LIMIT_BYTES 4096

struct text_piece {
    const char *text;  // valid until the next call on the stream; not NUL-terminated
    size_t size_bytes; // 0: nothing is final yet
    int stop;          // index of the completed stop string, -1: none. Afterwards the stream gives nothing more
};

// stops [n_stops]: NUL-terminated UTF-8, not empty. INVALID names the one that is wrong.
enum status text_stream_create(const struct tokenizer *tokenizer, const char *const *stops, int n_stops,
                               struct text_stream **stream_p);

// Takes the next id. Special tokens and ids outside the vocabulary add no text. `may_stop` false: a stop string
// completed by this token does not count and becomes text (the caller's min_tokens), though one it begins may count
// later.
void text_stream_push(struct text_stream *stream, int32_t id, bool may_stop, struct text_piece *piece_p);

// The sequence has ended without a stop string: gives what was held back, an unfinished character as U+FFFD.
void text_stream_finish(struct text_stream *stream, struct text_piece *piece_p);

void text_stream_free(struct text_stream *stream); // NULL is fine
