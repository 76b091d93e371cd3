// SPDX-License-Identifier: Apache-2.0
// What prefix caches must hold, and what the router must believe they hold: the blocks that a node was given and those
// that it has computed. Nothing is evicted while all of them together fit, and only then anything is claimed.
#pragma once

#include <stdbool.h>
#include <stdint.h>

// A set of prefixes by the content of their blocks, answers.h.
struct prefix_set {
    uint64_t *slots; // [n_slots] a power of two; 0: free
    int n_slots, n;
    int64_t blocks_placed; // KV blocks of everything that was placed there
};
void prefix_set_clear(struct prefix_set *set);
void prefix_set_add(struct prefix_set *set, const uint64_t *blocks, int n);
int prefix_set_match(const struct prefix_set *set, const uint64_t *blocks, int n); // leading blocks in the set

// The content of each full block of the tokens in the ranges, other contents for other salts; the caller frees them.
// Returns their number.
struct token_range;
int prefix_contents(uint64_t salt, const int32_t *tokens, const struct token_range *ranges, int n_ranges,
                    uint64_t **blocks_p);
