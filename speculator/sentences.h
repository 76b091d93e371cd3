// SPDX-License-Identifier: Apache-2.0
// Finds the ends of sentences and lines in a prompt from its token ids, because a speculator has no text. The table is
// made once from the tokenizer. Plain data and pure functions; any thread.
#pragma once

#include <stdint.h>

#include "lib/text/tokenizer.h"

// Properties of a token's bytes that decide where sentences and lines end; a bit set.
enum sentence_mark {
    SENTENCE_ENDS_LINE = 1, // the token has a line break, or is a special token
    // Its last character ends a sentence without a blank after it, like the Chinese full stop.
    SENTENCE_ENDS = 2,
    SENTENCE_STOPS = 4,             // its last character is . ! or ?, which end a sentence if a blank follows
    SENTENCE_BLANK_FIRST = 8,       // its first character is a blank
    SENTENCE_LINE_BREAK_FIRST = 16, // its first character is a line break
    SENTENCE_ONLY_CLOSES = 32,      // it consists of closing quotes and brackets, which belong to the previous sentence
};

struct sentence_table {
    uint8_t *marks; // [n] indexed by token id; ids of n and above have no marks
    int n;
};

struct sentence_table sentence_table_create(const struct tokenizer *tokenizer);
void sentence_table_free(struct sentence_table *table);

// Sets ends[j] of the tokens [n] to 1 if a sentence or a line ends with token j, else to 0. The dots in 3.14 and
// example.org end no sentence. The last token always ends a sentence.
void sentence_ends(const struct sentence_table *table, const int32_t *tokens, int n, uint8_t *ends);
// Returns `ends` of sentence_ends() in new memory, which the caller frees. Returns NULL if `table` is NULL.
uint8_t *sentence_ends_create(const struct sentence_table *table, const int32_t *tokens, int n);
