// SPDX-License-Identifier: Apache-2.0
#include "engine/prefix_cache.h"

#include <string.h>

enum { SHARED_BLOCKS_MIN = 2 }; // computing fewer rows costs no more than the wait

static int32_t row_position(const struct prefix_rows *rows, int row)
{
    return rows->position ? rows->position[row] : row;
}

static void key_fill(const struct prefix_rows *rows, int block, kv_chain before, struct kv_key *key)
{
    int first = block * KV_BLOCK_TOKENS;
    key->before = before;
    key->salt = rows->salt;
    memcpy(key->token, rows->token + first, sizeof key->token);
    for (int i = 0; i < KV_BLOCK_TOKENS; i++)
        key->position[i] = row_position(rows, first + i);
}

// Returns the cached block for block `index` of the rows, after the chain *chain_p, or -1 if it is not cached.
static int32_t block_lookup(const struct block_manager *manager, const struct prefix_rows *rows, int index,
                            kv_chain *chain_p)
{
    if (index >= prefix_cache_blocks_max(rows->n)) return -1;
    struct kv_key key;
    key_fill(rows, index, *chain_p, &key);
    return block_manager_lookup(manager, &key, chain_p);
}

int prefix_cache_acquire(struct block_manager *manager, const struct prefix_rows *rows, int32_t *blocks,
                         kv_chain *chain_p)
{
    int n = 0;
    *chain_p = 0;
    for (int32_t block; (block = block_lookup(manager, rows, n, chain_p)) >= 0; n++) {
        block_manager_retain(manager, block);
        blocks[n] = block;
    }
    return n;
}

int prefix_cache_lookup(const struct block_manager *manager, const struct prefix_rows *rows, struct prefix_match *match)
{
    if (match->n_blocks && block_manager_chain(manager, match->last_block) != match->chain)
        *match = (struct prefix_match){0};
    for (int32_t block; (block = block_lookup(manager, rows, match->n_blocks, &match->chain)) >= 0; match->n_blocks++)
        match->last_block = block;
    return match->n_blocks;
}

void prefix_cache_publish(struct block_manager *manager, const struct prefix_rows *rows, int entries, int32_t *blocks,
                          int *n_published_p, kv_chain *chain_p)
{
    struct kv_key key;
    for (int n = *n_published_p; n < entries / KV_BLOCK_TOKENS; n = ++*n_published_p) {
        key_fill(rows, n, *chain_p, &key);
        blocks[n] = block_manager_publish(manager, &key, blocks[n], chain_p);
    }
}

// Compares from the end, because different prefixes nearly always differ in their last row. This must be fast: each
// pass compares every waiting prompt with every prompt being computed.
static bool same_prefix(const struct prefix_rows *a, const struct prefix_rows *b, int n)
{
    if (a->salt != b->salt) return false;
    while (n && a->token[n - 1] == b->token[n - 1] && row_position(a, n - 1) == row_position(b, n - 1))
        n--;
    return n == 0;
}

bool prefix_cache_worth_waiting(const struct prefix_rows *rows, int n_cached, const struct prefix_rows *other,
                                int n_published)
{
    // If the other sequence has published a block that is not cached for this sequence, the prefixes differ.
    int shared = n_cached + SHARED_BLOCKS_MIN, most = prefix_cache_blocks_max(rows->n);
    if (shared <= n_published || shared > most || shared > other->n / KV_BLOCK_TOKENS) return false;
    return same_prefix(rows, other, shared * KV_BLOCK_TOKENS);
}
