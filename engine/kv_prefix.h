// SPDX-License-Identifier: Apache-2.0
// A sequence against the prefix cache of its pool (kv_pool.h): which of its blocks are known already, and making known
// those it has filled. The same thread rules as the pool.
#pragma once

#include "engine/kv_pool.h"

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

// How many of the text's blocks, from the first, the pool knows, at most kv_prefix_most(n); *chain_p is up to the last
// of them. With `blocks` not NULL the caller holds them from now on, and they are written there.
int kv_prefix_find(struct kv_pool *pool, const struct kv_text *text, int32_t *blocks, kv_chain *chain_p);

// Publishes the blocks that the first `entries` rows fill, those from *n_published_p on; the numbers in `blocks` may
// change (kv_pool_publish).
void kv_prefix_publish(struct kv_pool *pool, const struct kv_text *text, int entries, int32_t *blocks,
                       int *n_published_p, kv_chain *chain_p);

// Whether `text`, of which `known` blocks can be found, had better wait for `other`, a text being computed that has
// published n_published blocks so far: it is about to compute more that they share than a pass is worth.
bool kv_prefix_worth_waiting(const struct kv_text *text, int known, const struct kv_text *other, int n_published);
