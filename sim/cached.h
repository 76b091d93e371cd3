// SPDX-License-Identifier: Apache-2.0
// The blocks that a node was given or has computed: its prefix cache must hold them, and the router must believe that
// it does. Nothing is evicted while all blocks together fit. Tests claim nothing once they no longer fit.
#pragma once

#include <stdbool.h>
#include <stdint.h>

// A set of prefixes, identified by the content of their blocks (answers.h).
struct prefix_set {
    uint64_t *slots; // [n_slots] a power of two; 0: free
    int n_slots, n;
    int64_t blocks_placed; // KV blocks of everything that was placed on the node
};
void prefix_set_clear(struct prefix_set *set);
void prefix_set_add(struct prefix_set *set, const uint64_t *blocks, int n);
int prefix_set_match(const struct prefix_set *set, const uint64_t *blocks, int n); // leading blocks in the set

// Computes the content of each full block of the tokens in the ranges; different salts give different contents. Returns
// the number of blocks. The caller frees *blocks_p.
struct token_range;
int prefix_contents(uint64_t salt, const int32_t *tokens, const struct token_range *ranges, int n_ranges,
                    uint64_t **blocks_p);
