// SPDX-License-Identifier: Apache-2.0
// Prompts to measure with: their lengths alone (then of pseudo-random tokens, the same every time), or texts.
#pragma once

#include <stdint.h>

#include "base/status.h"

struct prompts {
    int n;
    int32_t *length; // [n] tokens, at least 1
    int32_t longest;
    int64_t tokens;       // of all together
    const int32_t **data; // [n] the tokens of each; NULL until there are some
    int32_t *memory;      // where they are
};

// One whole number a line; empty lines count for nothing. Reads the first `limit`, 0: all.
enum status prompts_read_lengths(const char *path, int limit, struct prompts *prompts_p);
// JSON Lines; a row has a text "prompt", read with the tokenizer of a model directory, or "token_ids".
enum status prompts_read_texts(const char *path, const char *model_dir, int limit, struct prompts *prompts_p);
void prompts_free(struct prompts *prompts);

// Gives prompts that are lengths alone their tokens.
void prompts_make_up(struct prompts *prompts, int vocab_size);
// Every prompt fits the context, every token the vocabulary; else a sentence that names the first one.
enum status prompts_check(const struct prompts *prompts, int context, int vocab_size);
