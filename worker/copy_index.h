// SPDX-License-Identifier: Apache-2.0
// Where the last tokens of a sequence occurred before. What followed there is a guess at what follows now that costs no
// pass: answers quote their prompts (arXiv 2304.04487, known as prompt lookup).
//
// An index of all places by the three tokens before them. Of the latest places behind the same three tokens the one
// with the longest common past is found. Plain data of one thread; extending and searching allocate nothing.
#pragma once

#include <stdint.h>

enum { COPY_MATCH_MIN = 3, COPY_MATCH_MAX = 16 }; // tokens of a common past

struct copy_index {
    int32_t *latest; // [1 << bits] by the hash of three tokens: the latest place behind them; 0: none
    int32_t *older;  // [capacity] the place before it with the same hash; 0: none
    int bits;
    int n; // places below n are in the index
};

void copy_index_init(struct copy_index *x, int capacity); // tokens that the sequence has at most
void copy_index_fini(struct copy_index *x);

// The place, below n, of the token that may come behind the n tokens, which begin with those of the calls before. 0:
// their last three have not occurred before. *match_p: tokens of the common past, up to COPY_MATCH_MAX.
int copy_index_find(struct copy_index *x, const int32_t *tokens, int n, int *match_p);
