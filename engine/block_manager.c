// SPDX-License-Identifier: Apache-2.0
// See block_manager.h. A block is blank and free (on a stack), held, or published and free (in a list, the one given
// back longest ago first); published ones are in a hash table too, held or free.
#include "engine/block_manager.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

enum { NONE = -1 };

struct kv_block {
    int holders;
    kv_chain chain; // 0: blank, else published under `key`
    struct kv_key key;
    int32_t same_hash;      // next in its bucket
    int32_t older, younger; // while published and free
};

struct block_manager {
    int n_blocks;
    int n_blank, n_published_free;
    int32_t *blank_blocks; // [n_blocks] a stack: the block given back last is taken first, its memory is warmest
    struct kv_block *blocks;
    int32_t oldest, youngest;
    kv_chain last_chain;
    int32_t *buckets; // [n_buckets] a power of two
    uint32_t n_buckets;
};

struct block_manager *block_manager_create(int n_blocks)
{
    assert(n_blocks >= 1);
    struct block_manager *pool = mem_alloc(sizeof *pool);
    pool->n_blocks = pool->n_blank = n_blocks;
    pool->blank_blocks = mem_alloc_array((size_t)n_blocks, sizeof *pool->blank_blocks);
    pool->blocks = mem_alloc_array((size_t)n_blocks, sizeof *pool->blocks);
    for (int i = 0; i < n_blocks; i++)
        pool->blank_blocks[i] = n_blocks - 1 - i;
    pool->oldest = pool->youngest = NONE;
    pool->n_buckets = 1;
    while (pool->n_buckets < (uint32_t)n_blocks)
        pool->n_buckets *= 2;
    pool->buckets = mem_alloc_array(pool->n_buckets, sizeof *pool->buckets);
    for (uint32_t b = 0; b < pool->n_buckets; b++)
        pool->buckets[b] = NONE;
    return pool;
}

void block_manager_free(struct block_manager *pool)
{
    assert(block_manager_n_free(pool) == pool->n_blocks);
    free(pool->blank_blocks);
    free(pool->blocks);
    free(pool->buckets);
    free(pool);
}

int block_manager_size(const struct block_manager *pool)
{
    return pool->n_blocks;
}

int block_manager_n_free(const struct block_manager *pool)
{
    return pool->n_blank + pool->n_published_free;
}

// ---- the list of published blocks that nobody holds ----

static void list_add_youngest(struct block_manager *pool, int32_t block)
{
    struct kv_block *b = &pool->blocks[block];
    b->older = pool->youngest;
    b->younger = NONE;
    *(b->older == NONE ? &pool->oldest : &pool->blocks[b->older].younger) = block;
    pool->youngest = block;
    pool->n_published_free++;
}

static void list_remove(struct block_manager *pool, int32_t block)
{
    const struct kv_block *b = &pool->blocks[block];
    *(b->older == NONE ? &pool->oldest : &pool->blocks[b->older].younger) = b->younger;
    *(b->younger == NONE ? &pool->youngest : &pool->blocks[b->younger].older) = b->older;
    pool->n_published_free--;
}

// ---- the table of published blocks ----

static int32_t *bucket_of(const struct block_manager *pool, const struct kv_key *key)
{
    uint64_t state = key->before;
    for (int i = 0; i < KV_BLOCK_TOKENS; i++) {
        state ^= (uint64_t)(uint32_t)key->token[i] << 32 | (uint32_t)key->position[i];
        state *= 0x9e3779b97f4a7c15u;
        state ^= state >> 29;
    }
    return &pool->buckets[(state * 0xbf58476d1ce4e5b9u >> 32) & (pool->n_buckets - 1)];
}

static bool same_key(const struct kv_key *a, const struct kv_key *b)
{
    return a->before == b->before && memcmp(a->token, b->token, sizeof a->token) == 0 &&
           memcmp(a->position, b->position, sizeof a->position) == 0;
}

int32_t block_manager_lookup(const struct block_manager *pool, const struct kv_key *key, kv_chain *chain_p)
{
    int32_t block = *bucket_of(pool, key);
    while (block != NONE && !same_key(&pool->blocks[block].key, key))
        block = pool->blocks[block].same_hash;
    if (block != NONE) *chain_p = pool->blocks[block].chain;
    return block;
}

static void forget(struct block_manager *pool, int32_t block)
{
    struct kv_block *b = &pool->blocks[block];
    int32_t *link = bucket_of(pool, &b->key);
    while (*link != block)
        link = &pool->blocks[*link].same_hash;
    *link = b->same_hash;
    b->chain = 0;
}

// ---- taking and giving ----

static int32_t take_one(struct block_manager *pool)
{
    if (pool->n_blank) return pool->blank_blocks[--pool->n_blank];
    int32_t block = pool->oldest;
    list_remove(pool, block);
    forget(pool, block);
    return block;
}

bool block_manager_allocate(struct block_manager *pool, int n, int32_t *blocks)
{
    if (n > block_manager_n_free(pool)) return false;
    for (int i = 0; i < n; i++) {
        blocks[i] = take_one(pool);
        pool->blocks[blocks[i]].holders = 1;
    }
    return true;
}

void block_manager_release(struct block_manager *pool, const int32_t *blocks, int n)
{
    for (int i = n - 1; i >= 0; i--) { // the last first: it is to be forgotten first
        assert(blocks[i] >= 0 && blocks[i] < pool->n_blocks);
        struct kv_block *b = &pool->blocks[blocks[i]];
        assert(b->holders > 0);
        if (--b->holders) continue;
        if (b->chain) {
            list_add_youngest(pool, blocks[i]);
        } else {
            pool->blank_blocks[pool->n_blank++] = blocks[i];
        }
    }
}

void block_manager_retain(struct block_manager *pool, int32_t block)
{
    assert(block >= 0 && block < pool->n_blocks && pool->blocks[block].chain);
    if (pool->blocks[block].holders++ == 0) list_remove(pool, block);
}

kv_chain block_manager_chain(const struct block_manager *pool, int32_t block)
{
    return pool->blocks[block].chain;
}

int block_manager_refs(const struct block_manager *pool, int32_t block)
{
    return pool->blocks[block].holders;
}

int32_t block_manager_publish(struct block_manager *pool, const struct kv_key *key, int32_t block, kv_chain *chain_p)
{
    int32_t known = block_manager_lookup(pool, key, chain_p);
    if (known == block) return block;
    if (known != NONE) {
        block_manager_retain(pool, known);
        block_manager_release(pool, &block, 1);
        return known;
    }
    struct kv_block *b = &pool->blocks[block];
    assert(b->holders > 0 && !b->chain);
    int32_t *bucket = bucket_of(pool, key);
    b->key = *key;
    b->chain = *chain_p = ++pool->last_chain;
    b->same_hash = *bucket;
    *bucket = block;
    return block;
}
