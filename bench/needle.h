// SPDX-License-Identifier: Apache-2.0
// The task that the demo model pair was trained for; deploy/demo-model/train.py generates the same text. A document
// about a harbour town contains facts, and a question asks for one of them. The right answer depends on about a dozen
// prompt tokens.
#pragma once

#include <stdint.h>

#include "model/tokenizer.h"

enum { NEEDLE_TOKENS_MIN = 128 }; // shorter documents hold few facts

struct needle {
    char *prompt; // text, blank line, "Question: ...\nAnswer:"
    char *answer; // exactly as the model writes it: a blank and four digits
};

// Makes a document of at most `tokens` tokens, question included, and at most one sentence shorter than that. The same
// seed and number give the same document.
enum status needle_make(const struct tokenizer *tokenizer, uint64_t seed, uint64_t number, int tokens,
                        struct needle *needle_p);
void needle_free(struct needle *n);
