// SPDX-License-Identifier: Apache-2.0
// Defines how attention divides its work and where its data is. The functions are pure and shared by the host's lists
// and the kernels, so that both agree and tests on the host cover both.
#pragma once

#include "kernels/cuda/launch.h"
#include "kernels/ragged.h"

#ifdef __CUDACC__
#define HOST_DEVICE __host__ __device__
#else
#define HOST_DEVICE
#endif

// Returns the entries per split of a row that attends to n entries: a power of two times SPLIT_ENTRIES.
HOST_DEVICE static inline int geometry_split_entries(int n)
{
    int entries = SPLIT_ENTRIES;
    while ((int64_t)entries * SPLITS_MAX < n)
        entries *= 2;
    return entries;
}

HOST_DEVICE static inline int geometry_splits(int n)
{
    int entries = geometry_split_entries(n);
    return (int)(((int64_t)n + entries - 1) / entries);
}

// Returns true if prefill attention runs by wgmma (attention_wgmma.cu) on a GPU of compute capability major.x. Every
// row of a device must use the same kernel, since the two kernels sum in different orders.
static inline bool geometry_wgmma(int major, const struct kv_cache *kv)
{
#ifdef FOREPACK_NO_WGMMA
    return false;
#endif
    return major == 9 && (kv->head_size == 64 || kv->head_size == 128);
}

// Returns the index of entry 0 of a block in kv_cache.scale, for K (v false) or V of a KV head. In kv_cache.data the
// entry starts at D times this index.
HOST_DEVICE static inline int64_t geometry_kv_at(const struct kv_cache *kv, int layer, int block, bool v, int kv_head)
{
    int64_t blocks = (int64_t)layer * kv->n_blocks + block;
    return ((blocks * 2 + (v ? 1 : 0)) * kv->n_kv_heads + kv_head) * KV_BLOCK_TOKENS;
}

// Returns the index of the partial result of one split of single row i (of n_single) and a query head. `partials` has
// first the largest exponent and the sum of weights of every partial result, then, aligned to 16 bytes, its D sums of
// weighted V.
HOST_DEVICE static inline int64_t geometry_partial_at(int single, int head, int split, int n_heads, int max_splits)
{
    return ((int64_t)single * n_heads + head) * max_splits + split;
}

// Returns the number of floats that are kept of importance row p and a head, see KEPT_SUMS.
HOST_DEVICE static inline int64_t geometry_kept_width(const struct device_batch *batch, int p)
{
    return (int64_t)(batch->importance_block[p + 1] - batch->importance_block[p]) * KV_BLOCK_TOKENS;
}

// Returns the index of the kept floats of importance row p and a query head in the scratch of launch_importance.
HOST_DEVICE static inline int64_t geometry_kept_at(const struct device_batch *batch, int p, int head, int n_heads)
{
    int64_t before = batch->importance_block[p] - batch->importance_block[batch->importance_begin];
    return before * KV_BLOCK_TOKENS * n_heads + head * geometry_kept_width(batch, p);
}

HOST_DEVICE static inline int64_t geometry_partial_sums(int n_single, int n_heads, int max_splits)
{
    return (2 * (int64_t)n_single * n_heads * max_splits + 3) / 4 * 4;
}
