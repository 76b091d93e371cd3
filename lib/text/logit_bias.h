// SPDX-License-Identifier: Apache-2.0
// Numbers that a request adds to the logits of some tokens, before any other change of the logits. -100 bans a token,
// 100 forces it, and numbers in between make it less or more likely. Plain data; any thread.
#pragma once

#include <stdint.h>

#include "lib/base/status.h"

enum { LOGIT_BIAS_TOKENS_MAX = 1024, LOGIT_BIAS_MAX = 100 };

// Entries ascending by token id, without duplicates. {0} is empty.
struct logit_bias {
    int32_t *ids;   // [n]
    float *numbers; // [n] -LOGIT_BIAS_MAX to LOGIT_BIAS_MAX
    int n;
};

// Inserts a token. Returns STATUS_INVALID if the id is negative or already present, if the number is out of range or
// not a number, or if there are LOGIT_BIAS_TOKENS_MAX tokens.
enum status logit_bias_add(struct logit_bias *bias, int64_t id, double number);
// Returns STATUS_INVALID unless `bias` could have been built by logit_bias_add() with ids of the vocabulary.
enum status logit_bias_check(const struct logit_bias *bias, int vocab_size);

struct logit_bias logit_bias_copy(const struct logit_bias *from);
void logit_bias_free(struct logit_bias *bias); // leaves it empty
