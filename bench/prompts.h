// SPDX-License-Identifier: Apache-2.0
// Prompts of a measurement: texts, or lengths that are filled with pseudo-random tokens.
#pragma once

#include <stdint.h>

#include "lib/base/status.h"

struct prompts {
    int n;
    int32_t *length; // [n] tokens, at least 1
    int32_t longest;
    int64_t tokens;       // of all prompts together
    const int32_t **data; // [n] the tokens of each prompt; NULL for lengths without tokens
    int32_t *memory;      // holds the tokens
};

// Reads one length per line, ignoring empty lines. Reads at most `limit` lengths; 0: all.
enum status prompts_read_lengths(const char *path, int limit, struct prompts *prompts_p);
// Reads JSON Lines: a row has a text "prompt", tokenized with the tokenizer of a model directory, or "token_ids".
enum status prompts_read_texts(const char *path, const char *model_dir, int limit, struct prompts *prompts_p);
void prompts_free(struct prompts *prompts);

// Fills prompts that are lengths without tokens, with the same pseudo-random tokens every time.
void prompts_make_up(struct prompts *prompts, int vocab_size);
// Returns STATUS_INVALID with the first prompt that exceeds the context or has a token outside the vocabulary.
enum status prompts_check(const struct prompts *prompts, int context, int vocab_size);
