// SPDX-License-Identifier: Apache-2.0
// The prefix cache, used for one sequence. Finds the leading blocks of the sequence that the block manager has cached,
// and publishes the blocks that the sequence has filled. The thread rules of block_manager.h apply.
#pragma once

#include "engine/block_manager.h"

// The rows of a sequence that are known so far. Borrowed.
struct prefix_rows {
    const int32_t *token, *position; // [n]; position NULL: 0, 1, 2, ...
    int n;
    uint64_t salt; // sequences with different salts share no blocks
};

// Returns how many blocks of n rows can come from the cache. The last row is always computed, for its logits or
// importance.
static inline int prefix_cache_blocks_max(int n)
{
    return (n - 1) / KV_BLOCK_TOKENS;
}

// References the cached leading blocks of the rows, at most prefix_cache_blocks_max(n), and returns their number. Sets
// *chain_p to the chain up to the last of these blocks. The caller releases the blocks.
int prefix_cache_acquire(struct block_manager *manager, const struct prefix_rows *rows, int32_t *blocks,
                         kv_chain *chain_p);

// Result of a lookup, kept by the caller between lookups of the same rows. A lookup continues after `last_block` if
// that block is still published. Then all earlier blocks are published too, because a block is never evicted before its
// following blocks. Zero the struct before the first lookup.
struct prefix_match {
    int n_blocks;
    int32_t last_block;
    kv_chain chain;
};

// Returns the number of leading blocks that prefix_cache_acquire() would reference. Adds no references.
int prefix_cache_lookup(const struct block_manager *manager, const struct prefix_rows *rows,
                        struct prefix_match *match);

// Publishes the blocks that the first `entries` rows fill, starting at block *n_published_p. May replace numbers in
// `blocks`, see block_manager_publish().
void prefix_cache_publish(struct block_manager *manager, const struct prefix_rows *rows, int entries, int32_t *blocks,
                          int *n_published_p, kv_chain *chain_p);

// Returns true if a sequence with `n_cached` cached blocks should wait for `other`, a sequence that is being computed
// and has published `n_published` blocks. The wait pays if `other` will publish at least two more blocks that this
// sequence can use; computing fewer rows costs no more than the wait.
bool prefix_cache_worth_waiting(const struct prefix_rows *rows, int n_cached, const struct prefix_rows *other,
                                int n_published);
