// SPDX-License-Identifier: Apache-2.0
#include "engine/kv_prefix.h"

#include <string.h>

enum { SHARED_BLOCKS_LEAST = 2 }; // a pass over so few rows costs as much as they do

static int32_t position_of(const struct kv_text *text, int row)
{
    return text->position ? text->position[row] : row;
}

static void fill_key(const struct kv_text *text, int block, kv_chain before, struct kv_key *key)
{
    int first = block * KV_BLOCK_TOKENS;
    key->before = before;
    memcpy(key->token, text->token + first, sizeof key->token);
    for (int i = 0; i < KV_BLOCK_TOKENS; i++)
        key->position[i] = position_of(text, first + i);
}

// The text's block n, behind the chain; -1: the pool does not know it.
static int32_t find_block(const struct block_manager *pool, const struct kv_text *text, int n, kv_chain *chain_p)
{
    if (n >= kv_prefix_most(text->n)) return -1;
    struct kv_key key;
    fill_key(text, n, *chain_p, &key);
    return block_manager_lookup(pool, &key, chain_p);
}

int kv_prefix_take(struct block_manager *pool, const struct kv_text *text, int32_t *blocks, kv_chain *chain_p)
{
    int n = 0;
    *chain_p = 0;
    for (int32_t block; (block = find_block(pool, text, n, chain_p)) >= 0; n++) {
        block_manager_retain(pool, block);
        blocks[n] = block;
    }
    return n;
}

int kv_prefix_look(const struct block_manager *pool, const struct kv_text *text, struct kv_known *known)
{
    if (known->n && block_manager_chain(pool, known->last) != known->chain) *known = (struct kv_known){0};
    for (int32_t block; (block = find_block(pool, text, known->n, &known->chain)) >= 0; known->n++)
        known->last = block;
    return known->n;
}

void kv_prefix_publish(struct block_manager *pool, const struct kv_text *text, int entries, int32_t *blocks,
                       int *n_published_p, kv_chain *chain_p)
{
    struct kv_key key;
    for (int n = *n_published_p; n < entries / KV_BLOCK_TOKENS; n = ++*n_published_p) {
        fill_key(text, n, *chain_p, &key);
        blocks[n] = block_manager_publish(pool, &key, blocks[n], chain_p);
    }
}

// From the end: what does not begin alike up to there differs there, nearly always, and this is asked of every prompt
// that waits about every one being computed, in every step.
static bool begin_alike(const struct kv_text *a, const struct kv_text *b, int rows)
{
    while (rows && a->token[rows - 1] == b->token[rows - 1] && position_of(a, rows - 1) == position_of(b, rows - 1))
        rows--;
    return rows == 0;
}

bool kv_prefix_worth_waiting(const struct kv_text *text, int known, const struct kv_text *other, int n_published)
{
    int worth = known + SHARED_BLOCKS_LEAST, shared = worth > n_published ? worth : n_published + 1;
    if (shared > kv_prefix_most(text->n) || shared > other->n / KV_BLOCK_TOKENS) return false;
    return begin_alike(text, other, shared * KV_BLOCK_TOKENS);
}
