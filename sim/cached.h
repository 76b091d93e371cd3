// SPDX-License-Identifier: Apache-2.0
// Sets of prefix blocks. The router must expect the blocks that were sent to a node in the node's prefix cache. The
// prefix cache must hold the blocks that the node has computed. Checks apply only while all blocks together fit the
// node, since nothing is evicted then.
#pragma once

#include <stdbool.h>
#include <stdint.h>

// A set of prefixes, identified by the content of their blocks (answers.h).
struct prefix_set {
    uint64_t *slots; // [n_slots] contents of blocks, n_slots is a power of two; 0: a free slot
    int n_slots, n;
    int64_t blocks_placed; // KV blocks of everything that was placed on the node
};
void prefix_set_clear(struct prefix_set *set);
void prefix_set_add(struct prefix_set *set, const uint64_t *blocks, int n);
// Returns how many leading blocks are in the set.
int prefix_set_match(const struct prefix_set *set, const uint64_t *blocks, int n);

// Computes the content of each full block of the tokens in the ranges; different salts give different contents. Returns
// the number of blocks. The caller frees *blocks_p.
struct token_range;
int prefix_contents(uint64_t salt, const int32_t *tokens, const struct token_range *ranges, int n_ranges,
                    uint64_t **blocks_p);
