// SPDX-License-Identifier: Apache-2.0
// Token importance for the speculator (arXiv 2502.02789): the attention of an importance row to each token of its
// prompt, averaged over a window of tokens. The maximum over heads and layers counts. Decode attention keeps the scores
// of importance rows that are single rows (prompt_scores.h), like look-ahead rows. The last row of a prompt is usually
// part of a tile of prefill attention, so its scores are computed again here. This costs one read of K, like a
// look-ahead row, and little compared with the prefill of a whole prompt. The last kernel turns scores into weights.
#include "kernels/cuda/dependent.h"
#include "kernels/cuda/prompt_scores.h"

enum { WARPS = SCORE_WARPS, RAISE_KEYS = 256 }; // number of keys per thread block of the last kernel

// Returns the entries of each split of an importance row.
static __device__ __forceinline__ int split_entries_of(const device_batch *batch, int p)
{
    const int row = batch->importance_row[p], s = batch->row_seq[row];
    return geometry_split_entries(batch->kv_len[s] + row - batch->row_start[s] + 1);
}

// Computes and keeps scores. Grid: splits x chunks of heads x importance rows of sequences with several rows. Shared
// memory: q. The splits are the same as in decode attention, so that the row has the same bits as a single row. Thread
// blocks of splits that a prompt does not have end immediately.
template <int DP, bool FP8>
static __global__ void __launch_bounds__(WARPS *WARP, 4)
    importance_scores_kernel(kv_cache kv, device_batch batch, int layer, const float *qkv, int n_heads, float *kept)
{
    DYNAMIC_SHARED(uint16_t, q);
    const int d = kv.head_size, p = batch.tiled_importance[blockIdx.z], row = batch.importance_row[p];
    const int keys = batch.importance_keys[p], split_entries = split_entries_of(&batch, p);
    const int64_t begin = (int64_t)blockIdx.x * split_entries;
    if (begin >= keys) return; // ends the whole block
    const int end = (int)min(begin + split_entries, (int64_t)keys);
    const score_heads heads = score_heads_of((int)blockIdx.y, n_heads, kv.n_kv_heads);
    const int32_t *table = batch.block_table + (int64_t)batch.row_seq[row] * batch.max_blocks;
    load_q<DP>(q, qkv + (int64_t)row * (n_heads + 2 * kv.n_kv_heads) * d, &heads, d);
    __syncthreads();

    kept_scores keep = kept_scores_of(&batch, p, &heads, n_heads, kept);
    for (int i = (int)begin / KV_BLOCK_TOKENS + (int)threadIdx.x / WARP; i <= (end - 1) / KV_BLOCK_TOKENS; i += WARPS) {
        const int64_t at = geometry_kv_at(&kv, layer, __ldg(table + i), false, heads.kv_head);
        float scores[2][4] = {};
#pragma unroll 1 // saves registers: only the largest heads have several parts
        for (int part = 0; part < score_keys<DP, FP8>::PARTS; part++) {
            score_keys<DP, FP8> of_block;
            load_keys(&of_block, block_data<FP8>(&kv, at), d, part);
            add_scores(scores, &of_block, q, part);
        }
        scale_scores<FP8>(scores, kv.scale + at, score_scale(d));
        keep_scores(&keep, scores, i * KV_BLOCK_TOKENS);
    }
    keep_sums(&keep, (int)blockIdx.x);
}

// Returns how many weights of a head a thread block of the last kernel holds: its keys and the window around them.
HOST_DEVICE static inline int raise_columns(int window)
{
    return RAISE_KEYS + window / 2 * 2;
}

// Grid: groups of RAISE_KEYS keys x chunks of heads x importance rows. Shared memory: weights [heads][raise_columns].
static __global__ void __launch_bounds__(WARPS *WARP)
    importance_raise_kernel(device_batch batch, int n_heads, int n_kv_heads, const float *kept, float *maxima)
{
    __shared__ float head_exponent[SCORE_HEADS], head_factor[SCORE_HEADS];
    DYNAMIC_SHARED(float, weights);
    dependents_start();
    const int p = batch.importance_begin + (int)blockIdx.z, keys = batch.importance_keys[p];
    const int begin = (int)blockIdx.x * RAISE_KEYS, end = min(begin + RAISE_KEYS, keys);
    const int reach = batch.smoothing_window / 2, columns = raise_columns(batch.smoothing_window);
    const int split_entries = split_entries_of(&batch, p), splits = (keys + split_entries - 1) / split_entries;
    const score_heads heads = score_heads_of((int)blockIdx.y, n_heads, n_kv_heads);
    const int64_t stride = geometry_kept_width(&batch, p);
    const float *const from = kept + geometry_kept_at(&batch, p, heads.first, n_heads);
    dependency_wait();
    if (begin >= keys) return; // ends the whole block

    // Find the exponent and 1 / (sum * window) of each head from its splits, one warp per head.
    const int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP;
    for (int head = warp; head < heads.count; head += WARPS) {
        const float2 *of_split = reinterpret_cast<const float2 *>(from + head * stride);
        float largest = EXPONENT_NONE, total = 0;
        for (int i = lane; i < splits; i += WARP)
            largest = fmaxf(largest, of_split[i].x);
        largest = warp_max(largest);
        for (int i = lane; i < splits; i += WARP)
            total += of_split[i].y * exp2_approx(of_split[i].x - largest);
        total = warp_sum(total);
        if (lane == 0) head_exponent[head] = largest, head_factor[head] = 1 / (total * (float)batch.smoothing_window);
    }
    __syncthreads();

    for (int head = 0; head < heads.count; head++)
        for (int i = (int)threadIdx.x; i < columns; i += WARPS * WARP) {
            const int key = begin - reach + i;
            float weight = 0; // outside the prompt
            if (key >= 0 && key < keys)
                weight = exp2_approx(from[head * stride + KEPT_SUMS + key] - head_exponent[head]) * head_factor[head];
            weights[head * columns + i] = weight;
        }
    __syncthreads();

    for (int key = begin + (int)threadIdx.x; key < end; key += WARPS * WARP) {
        float largest = 0;
        for (int head = 0; head < heads.count; head++) {
            const float *first = weights + head * columns + (key - begin);
            float sum = 0;
            for (int i = 0; i <= 2 * reach; i++)
                sum += first[i];
            largest = fmaxf(largest, magnitude(sum));
        }
        // Non-negative floats are in the same order as their bits.
        if (largest > 0)
            atomicMax(reinterpret_cast<int *>(maxima + batch.importance_first[p] + key), __float_as_int(largest));
    }
}

// ---- launching ------------------------------------------------------------------------------------------------------

template <int DP>
static cudaError_t launch_scores(cudaStream_t stream, const kv_cache *kv, const device_batch *batch, int layer,
                                 const float *qkv, int n_heads, float *kept)
{
    const int splits = min((int)SPLITS_MAX, (batch->max_importance_keys + SPLIT_ENTRIES - 1) / SPLIT_ENTRIES);
    const dim3 grid((unsigned)splits, (unsigned)score_chunks(n_heads, kv->n_kv_heads),
                    (unsigned)batch->n_tiled_importance);
    return kv->fp8 ? CUDA_LAUNCH((importance_scores_kernel<DP, true>), grid, WARPS * WARP, score_q<DP>::BYTES, stream,
                                 *kv, *batch, layer, qkv, n_heads, kept)
                   : CUDA_LAUNCH((importance_scores_kernel<DP, false>), grid, WARPS * WARP, score_q<DP>::BYTES, stream,
                                 *kv, *batch, layer, qkv, n_heads, kept);
}

cudaError_t launch_importance(cudaStream_t stream, const struct kv_cache *kv, const struct device_batch *batch,
                              int layer, float *maxima, const float *qkv, int n_heads, float *kept)
{
    if (batch->smoothing_window > IMPORTANCE_WINDOW_MAX) return cudaErrorInvalidValue;
    const int d = kv->head_size, heads = min((int)SCORE_HEADS, n_heads / kv->n_kv_heads);
    cudaError_t error = cudaSuccess;
    if (batch->n_tiled_importance)
        error = d <= 64    ? launch_scores<64>(stream, kv, batch, layer, qkv, n_heads, kept)
                : d <= 128 ? launch_scores<128>(stream, kv, batch, layer, qkv, n_heads, kept)
                           : launch_scores<256>(stream, kv, batch, layer, qkv, n_heads, kept);
    if (error != cudaSuccess) return error;
    const dim3 grid((unsigned)(batch->max_importance_keys + RAISE_KEYS - 1) / RAISE_KEYS,
                    (unsigned)score_chunks(n_heads, kv->n_kv_heads), (unsigned)batch->n_importance_rows);
    const size_t shared = (size_t)heads * (size_t)raise_columns(batch->smoothing_window) * sizeof(float);
    return CUDA_LAUNCH_EARLY(importance_raise_kernel, grid, WARPS * WARP, shared, stream, *batch, n_heads,
                             kv->n_kv_heads, static_cast<const float *>(kept), maxima);
}
