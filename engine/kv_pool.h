// SPDX-License-Identifier: Apache-2.0
// Who holds which block of the paged KV cache. Numbers only: the memory itself is the backend's. Owned by the thread
// that schedules; blocks are KV_BLOCK_TOKENS entries each.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "kernels/ragged.h"

struct kv_pool;

struct kv_pool *kv_pool_create(int n_blocks);
void kv_pool_destroy(struct kv_pool *pool); // asserts that every block came back

int kv_pool_size(const struct kv_pool *pool);
int kv_pool_free_blocks(const struct kv_pool *pool);

// All `n` blocks or none (false).
bool kv_pool_take(struct kv_pool *pool, int n, int32_t *blocks);
void kv_pool_give(struct kv_pool *pool, const int32_t *blocks, int n); // asserts that they were taken

static inline int kv_blocks_for(int entries)
{
    return (entries + KV_BLOCK_TOKENS - 1) / KV_BLOCK_TOKENS;
}
