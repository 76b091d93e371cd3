// SPDX-License-Identifier: Apache-2.0
// A block without references is either blank (on a stack) or published (in a list that begins with
// the block released longest ago). The hash table has all published blocks, with or without references.
#include "engine/block_manager.h"

#include <stdlib.h>
#include <string.h>

#include "lib/base/hash.h"
#include "lib/base/invariant.h"
#include "lib/base/mem.h"

enum { NO_BLOCK = -1 };

struct kv_block {
    int refs;
    kv_chain chain; // 0: not published, else published under `key`
    struct kv_key key;
    int32_t bucket_next;
    int32_t older, younger; // neighbours in the list of published blocks without references
};

struct block_manager {
    int n_blocks;
    int n_blank, n_published_free;
    // [n_blocks] a stack: the block released last is allocated first, because its memory is most likely in CPU caches
    int32_t *blank_blocks;
    struct kv_block *blocks;
    int32_t oldest, youngest;
    kv_chain last_chain;
    int32_t *buckets; // [n_buckets] n_buckets is a power of two
    uint32_t n_buckets;
    struct hash_key hash_key; // random, so that no client can put many blocks into one bucket
};

struct block_manager *block_manager_create(int n_blocks)
{
    INVARIANT(n_blocks >= 1, "%d blocks", n_blocks);
    struct block_manager *manager = mem_alloc(sizeof *manager);
    manager->n_blocks = manager->n_blank = n_blocks;
    manager->blank_blocks = mem_alloc_array((size_t)n_blocks, sizeof *manager->blank_blocks);
    manager->blocks = mem_alloc_array((size_t)n_blocks, sizeof *manager->blocks);
    for (int i = 0; i < n_blocks; i++)
        manager->blank_blocks[i] = n_blocks - 1 - i;
    manager->oldest = manager->youngest = NO_BLOCK;
    manager->hash_key = hash_key_random();
    manager->n_buckets = 1;
    while (manager->n_buckets < (uint32_t)n_blocks)
        manager->n_buckets *= 2;
    manager->buckets = mem_alloc_array(manager->n_buckets, sizeof *manager->buckets);
    for (uint32_t b = 0; b < manager->n_buckets; b++)
        manager->buckets[b] = NO_BLOCK;
    return manager;
}

void block_manager_free(struct block_manager *manager)
{
    INVARIANT(block_manager_n_free(manager) == manager->n_blocks, "%d of %d blocks are still referenced",
              manager->n_blocks - block_manager_n_free(manager), manager->n_blocks);
    free(manager->blank_blocks);
    free(manager->blocks);
    free(manager->buckets);
    free(manager);
}

int block_manager_size(const struct block_manager *manager)
{
    return manager->n_blocks;
}

int block_manager_n_free(const struct block_manager *manager)
{
    return manager->n_blank + manager->n_published_free;
}

// ---- the list of published blocks without references ----

static void list_add_youngest(struct block_manager *manager, int32_t block)
{
    struct kv_block *b = &manager->blocks[block];
    b->older = manager->youngest;
    b->younger = NO_BLOCK;
    *(b->older == NO_BLOCK ? &manager->oldest : &manager->blocks[b->older].younger) = block;
    manager->youngest = block;
    manager->n_published_free++;
}

static void list_remove(struct block_manager *manager, int32_t block)
{
    const struct kv_block *b = &manager->blocks[block];
    *(b->older == NO_BLOCK ? &manager->oldest : &manager->blocks[b->older].younger) = b->younger;
    *(b->younger == NO_BLOCK ? &manager->youngest : &manager->blocks[b->younger].older) = b->older;
    manager->n_published_free--;
}

// ---- the table of published blocks ----

static int32_t *key_bucket(const struct block_manager *manager, const struct kv_key *key)
{
    return &manager->buckets[hash_bytes(&manager->hash_key, key, sizeof *key) & (manager->n_buckets - 1)];
}

static bool key_equal(const struct kv_key *a, const struct kv_key *b)
{
    return a->before == b->before && a->salt == b->salt && memcmp(a->token, b->token, sizeof a->token) == 0 &&
           memcmp(a->position, b->position, sizeof a->position) == 0;
}

int32_t block_manager_lookup(const struct block_manager *manager, const struct kv_key *key, kv_chain *chain_p)
{
    int32_t block = *key_bucket(manager, key);
    while (block != NO_BLOCK && !key_equal(&manager->blocks[block].key, key))
        block = manager->blocks[block].bucket_next;
    if (block != NO_BLOCK) *chain_p = manager->blocks[block].chain;
    return block;
}

static void block_evict(struct block_manager *manager, int32_t block)
{
    struct kv_block *b = &manager->blocks[block];
    int32_t *link = key_bucket(manager, &b->key);
    while (*link != block)
        link = &manager->blocks[*link].bucket_next;
    *link = b->bucket_next;
    b->chain = 0;
}

// ---- allocation ----

static int32_t block_allocate(struct block_manager *manager)
{
    if (manager->n_blank) return manager->blank_blocks[--manager->n_blank];
    int32_t block = manager->oldest;
    list_remove(manager, block);
    block_evict(manager, block);
    return block;
}

bool block_manager_allocate(struct block_manager *manager, int n, int32_t *blocks)
{
    if (n > block_manager_n_free(manager)) return false;
    for (int i = 0; i < n; i++) {
        blocks[i] = block_allocate(manager);
        manager->blocks[blocks[i]].refs = 1;
    }
    return true;
}

void block_manager_release(struct block_manager *manager, const int32_t *blocks, int n)
{
    for (int i = n - 1; i >= 0; i--) { // starts with the last block, so that it is evicted first
        INVARIANT(blocks[i] >= 0 && blocks[i] < manager->n_blocks, "block %d of %d", blocks[i], manager->n_blocks);
        struct kv_block *b = &manager->blocks[blocks[i]];
        INVARIANT(b->refs > 0, "block %d is released without a reference", blocks[i]);
        if (--b->refs) continue;
        if (b->chain) {
            list_add_youngest(manager, blocks[i]);
        } else {
            manager->blank_blocks[manager->n_blank++] = blocks[i];
        }
    }
}

void block_manager_retain(struct block_manager *manager, int32_t block)
{
    INVARIANT(block >= 0 && block < manager->n_blocks && manager->blocks[block].chain, "block %d is not published",
              block);
    if (manager->blocks[block].refs++ == 0) list_remove(manager, block);
}

kv_chain block_manager_chain(const struct block_manager *manager, int32_t block)
{
    return manager->blocks[block].chain;
}

int block_manager_refs(const struct block_manager *manager, int32_t block)
{
    return manager->blocks[block].refs;
}

int32_t block_manager_publish(struct block_manager *manager, const struct kv_key *key, int32_t block, kv_chain *chain_p)
{
    int32_t known = block_manager_lookup(manager, key, chain_p);
    if (known == block) return block;
    if (known != NO_BLOCK) {
        block_manager_retain(manager, known);
        block_manager_release(manager, &block, 1);
        return known;
    }
    struct kv_block *b = &manager->blocks[block];
    INVARIANT(b->refs > 0 && !b->chain, "block %d: %d references, chain %llu", block, b->refs,
              (unsigned long long)b->chain);
    int32_t *bucket = key_bucket(manager, key);
    b->key = *key;
    b->chain = *chain_p = ++manager->last_chain;
    b->bucket_next = *bucket;
    *bucket = block;
    return block;
}
