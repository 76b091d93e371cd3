// SPDX-License-Identifier: Apache-2.0
// A sequence against the prefix cache of its pool (block_manager.h): which of its blocks are known already, and making
// known those it has filled. The same thread rules as the pool.
#pragma once

#include "engine/block_manager.h"

// The rows of a sequence as far as they are known. Borrowed.
struct kv_text {
    const int32_t *token, *position; // [n]; position NULL: 0, 1, 2, ...
    int n;
};

// Full blocks in front of the last of n rows, which must be computed for what comes out of it.
static inline int kv_prefix_most(int n)
{
    return (n - 1) / KV_BLOCK_TOKENS;
}

// The text's blocks that the pool knows, from the first, at most kv_prefix_most(n): the caller holds them from now on.
// How many they are; *chain_p is up to the last of them.
int kv_prefix_take(struct block_manager *pool, const struct kv_text *text, int32_t *blocks, kv_chain *chain_p);

// How many there are to be taken. What a look found is kept for the next one at the same text, which begins behind it
// as long as it is there: a block is never forgotten before those behind it.
struct kv_known {
    int n;
    int32_t last; // block
    kv_chain chain;
};
int kv_prefix_look(const struct block_manager *pool, const struct kv_text *text, struct kv_known *known);

// Publishes the blocks that the first `entries` rows fill, those from *n_published_p on; the numbers in `blocks` may
// change (block_manager_publish).
void kv_prefix_publish(struct block_manager *pool, const struct kv_text *text, int entries, int32_t *blocks,
                       int *n_published_p, kv_chain *chain_p);

// Whether `text`, of which `known` blocks can be found, had better wait for `other`, a text being computed that has
// published n_published blocks so far: it is about to compute more that they share than a pass is worth.
bool kv_prefix_worth_waiting(const struct kv_text *text, int known, const struct kv_text *other, int n_published);
