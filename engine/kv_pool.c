// SPDX-License-Identifier: Apache-2.0
// A stack of free block numbers, and one flag per block that catches a block given back twice.
#include "engine/kv_pool.h"

#include <assert.h>
#include <stdlib.h>

#include "base/mem.h"

struct kv_pool {
    int n_blocks;
    int n_free;
    int32_t *free_blocks; // [n_blocks] a stack: the block given back last is taken first, its memory is warmest
    bool *taken;          // [n_blocks]
};

struct kv_pool *kv_pool_create(int n_blocks)
{
    assert(n_blocks >= 1);
    struct kv_pool *pool = mem_alloc(sizeof *pool);
    pool->n_blocks = pool->n_free = n_blocks;
    pool->free_blocks = mem_alloc_array((size_t)n_blocks, sizeof *pool->free_blocks);
    pool->taken = mem_alloc_array((size_t)n_blocks, sizeof *pool->taken);
    for (int i = 0; i < n_blocks; i++)
        pool->free_blocks[i] = n_blocks - 1 - i;
    return pool;
}

void kv_pool_destroy(struct kv_pool *pool)
{
    assert(pool->n_free == pool->n_blocks);
    free(pool->free_blocks);
    free(pool->taken);
    free(pool);
}

int kv_pool_size(const struct kv_pool *pool)
{
    return pool->n_blocks;
}

int kv_pool_free_blocks(const struct kv_pool *pool)
{
    return pool->n_free;
}

bool kv_pool_take(struct kv_pool *pool, int n, int32_t *blocks)
{
    if (n > pool->n_free) return false;
    for (int i = 0; i < n; i++) {
        blocks[i] = pool->free_blocks[--pool->n_free];
        pool->taken[blocks[i]] = true;
    }
    return true;
}

void kv_pool_give(struct kv_pool *pool, const int32_t *blocks, int n)
{
    for (int i = 0; i < n; i++) {
        assert(blocks[i] >= 0 && blocks[i] < pool->n_blocks && pool->taken[blocks[i]]);
        pool->taken[blocks[i]] = false;
        pool->free_blocks[pool->n_free++] = blocks[i];
    }
}
