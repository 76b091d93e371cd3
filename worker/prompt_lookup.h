// SPDX-License-Identifier: Apache-2.0
// Prompt lookup (arXiv 2304.04487): finds an earlier occurrence of the last tokens of a sequence and proposes the
// tokens that followed it. Answers often quote their prompts, and such a draft costs no pass.
//
// The index maps three consecutive tokens to the places (token indices) directly after their occurrences. A search
// examines the latest of these places. It chooses the place whose preceding tokens equal the most last tokens of the
// sequence. Plain data of one thread; extending and searching allocate nothing.
#pragma once

#include <stdint.h>

enum { LOOKUP_MATCH_MIN = 3, LOOKUP_MATCH_MAX = 16 }; // least and largest number of equal tokens before two places

struct prompt_lookup {
    int32_t *latest; // [1 << bits] indexed by the hash of three tokens: the latest place after these tokens; 0: none
    int32_t *older;  // [capacity] indexed by place: the next older place with the same hash; 0: none
    int bits;
    int n; // the index holds all places below n
};

// Prepares an index for a sequence of at most `capacity` tokens.
void prompt_lookup_init(struct prompt_lookup *x, int capacity);
void prompt_lookup_fini(struct prompt_lookup *x);

// Returns a place below n whose token may follow the tokens [n], or 0 if the last three tokens have not occurred
// before. Sets *match_p to the number of equal tokens before both places, up to LOOKUP_MATCH_MAX. The tokens of each
// call must begin with the tokens of the previous call.
int prompt_lookup_find(struct prompt_lookup *x, const int32_t *tokens, int n, int *match_p);
