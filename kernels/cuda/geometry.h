// SPDX-License-Identifier: Apache-2.0
// Who reads what in attention: pure functions that the host's lists and the kernels share, so that both agree and the
// host's tests cover both.
#pragma once

#include "kernels/cuda/launch.h"
#include "kernels/ragged.h"

#ifdef __CUDACC__
#define HOST_DEVICE __host__ __device__
#else
#define HOST_DEVICE
#endif

// A row whose own entry is `own` sees the entries from here to `own`. window: entries it sees at most; 0: all.
HOST_DEVICE static inline int geometry_first_seen(int own, int window)
{
    return window > 0 && own >= window ? own - window + 1 : 0;
}

// Entries in a stretch of a row that sees entries below n: a power of two times SPLIT_ENTRIES.
HOST_DEVICE static inline int geometry_stretch(int n)
{
    int entries = SPLIT_ENTRIES;
    while ((int64_t)entries * SPLITS_MAX < n)
        entries *= 2;
    return entries;
}

HOST_DEVICE static inline int geometry_splits(int n)
{
    int entries = geometry_stretch(n);
    return (int)(((int64_t)n + entries - 1) / entries);
}

// Entry 0 of a block, for K (v false) or V of a KV head: its number among all in kv_cache.scale. In kv_cache.data it
// starts at D times that.
HOST_DEVICE static inline int64_t geometry_kv_at(const struct kv_cache *kv, int layer, int block, bool v, int kv_head)
{
    int64_t blocks = (int64_t)layer * kv->n_blocks + block;
    return ((blocks * 2 + (v ? 1 : 0)) * kv->n_kv_heads + kv_head) * KV_BLOCK_TOKENS;
}

// The partial result of a stretch of lone row i (of n_lone) and a query head: its number among all of them. `partials`
// holds the largest exponent and the sum of each, one after another, and then, aligned to 16 bytes, D sums of weighted
// V of each.
HOST_DEVICE static inline int64_t geometry_partial_at(int lone, int head, int split, int n_heads, int max_splits)
{
    return ((int64_t)lone * n_heads + head) * max_splits + split;
}

HOST_DEVICE static inline int64_t geometry_partial_sums(int n_lone, int n_heads, int max_splits)
{
    return (2 * (int64_t)n_lone * n_heads * max_splits + 3) / 4 * 4;
}
