// SPDX-License-Identifier: Apache-2.0
// The task the demo pair was trained for (deploy/demo-model/train.py, whose text this generates): a text about a
// harbour town with facts among it, and a question about one of them. A right answer depends on a dozen tokens that
// nothing but the prompt can tell.
#pragma once

#include <stdint.h>

#include "model/tokenizer.h"

enum { NEEDLE_TOKENS_MIN = 256 }; // under it the facts alone are longer

struct needle {
    char *prompt; // text, blank line, "Question: ...\nAnswer:"
    char *answer; // as the model writes it: a blank and four digits, then it stops
};

// A document of at most `tokens` tokens with all that is put around it, and no more than a sentence fewer. The same
// for the same seed and number.
enum status needle_make(const struct tokenizer *tokenizer, uint64_t seed, uint64_t number, int tokens,
                        struct needle *needle_p);
void needle_free(struct needle *n);
