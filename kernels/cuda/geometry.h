// SPDX-License-Identifier: Apache-2.0
// Defines how attention divides its work and where its data is. The functions are pure. The host's work lists and the
// kernels share them, so that both agree and tests on the host cover both.
#pragma once

#include "kernels/cuda/launch.h"
#include "kernels/ragged.h"

#ifdef __CUDACC__
#define HOST_DEVICE __host__ __device__
#else
#define HOST_DEVICE
#endif

// Returns the number of entries per split for a row that attends to n entries. It is a power of two times
// SPLIT_ENTRIES.
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

// Returns true if prefill attention uses wgmma (attention_wgmma.cu) on a GPU of compute capability major.x. All rows on
// a device must use the same kernel, since the kernels with and without wgmma sum in different orders.
static inline bool geometry_wgmma(int major, const struct kv_cache *kv)
{
#ifdef FOREPACK_NO_WGMMA
    return false;
#endif
    return major == 9 && (kv->head_size == 64 || kv->head_size == 128);
}

// Returns the index in kv_cache.scale of entry 0 of a block, for K (v is false) or V of a KV head. In kv_cache.data
// this entry starts at D times the index.
HOST_DEVICE static inline int64_t geometry_kv_at(const struct kv_cache *kv, int layer, int block, bool v, int kv_head)
{
    int64_t blocks = (int64_t)layer * kv->n_blocks + block;
    return ((blocks * 2 + (v ? 1 : 0)) * kv->n_kv_heads + kv_head) * KV_BLOCK_TOKENS;
}

// Returns the index of the partial result for one split of single row number `single` and a query head. `partials`
// begins with two floats for each partial result: its largest exponent and its sum of weights. Then, aligned to 16
// bytes, each partial result has D sums of weighted V.
HOST_DEVICE static inline int64_t geometry_partial_at(int single, int head, int split, int n_heads, int max_splits)
{
    return ((int64_t)single * n_heads + head) * max_splits + split;
}

// Returns the number of floats that are kept for importance row p and one query head, see KEPT_SUMS.
HOST_DEVICE static inline int64_t geometry_kept_width(const struct device_batch *batch, int p)
{
    return (int64_t)(batch->importance_block[p + 1] - batch->importance_block[p]) * KV_BLOCK_TOKENS;
}

// Returns where the kept floats of importance row p and a query head begin in the scratch memory of launch_importance.
HOST_DEVICE static inline int64_t geometry_kept_at(const struct device_batch *batch, int p, int head, int n_heads)
{
    int64_t before = batch->importance_block[p] - batch->importance_block[batch->importance_begin];
    return before * KV_BLOCK_TOKENS * n_heads + head * geometry_kept_width(batch, p);
}

HOST_DEVICE static inline int64_t geometry_partial_sums(int n_single, int n_heads, int max_splits)
{
    return (2 * (int64_t)n_single * n_heads * max_splits + 3) / 4 * 4;
}
