// SPDX-License-Identifier: Apache-2.0
// Chooses the units of texts that are kept, by the mean importance of their tokens. Any thread, one at a time.
#pragma once

#include "router/front/request/compression.h"

struct compress_choice;

// Ranks the units by the importance [c->tokens_before] of the tokens. `c` is borrowed.
struct compress_choice *compress_choice_create(struct compression *c, const float *importance);
void compress_choice_free(struct compress_choice *choice);

// Returns the number of tokens that the goal allows in all.
int compress_choice_budget(const struct compress_choice *choice, const struct compress_goal *goal);

// Sets compress_text.keep of all texts: true for what is always kept, and for the best units that fit `budget` tokens
// with it.
void compress_choice_keep(struct compress_choice *choice, int budget);
