// SPDX-License-Identifier: Apache-2.0
// Token importance for the speculator (arXiv 2502.02789): the attention of an importance row to each token of its
// prompt, averaged over a window along the prompt, maximum over heads and layers. The scores of a layer are not stored:
// the first kernel computes the largest exponent and the sum of weights of each head, by splits; the second computes
// the scores again, for some keys and the keys around them that the window covers.
#include "kernels/cuda/device.h"
#include "kernels/cuda/scores.h"

enum { WARPS = 4, RAISE_KEYS = 256 }; // keys per thread block of the second kernel

// The prompt of an importance row.
struct prompt {
    const int32_t *table; // of its sequence
    const float *q_row;
    int keys;
};

static __device__ __forceinline__ prompt prompt_of(const device_batch *batch, int p, const float *qkv, int columns)
{
    int row = batch->importance_row[p];
    prompt it;
    it.table = batch->block_table + (int64_t)batch->row_seq[row] * batch->max_blocks;
    it.q_row = qkv + (int64_t)row * columns;
    it.keys = batch->importance_keys[p];
    return it;
}

// Index of the exponent, followed by the sum, of a split of (importance row, head).
static __device__ __forceinline__ int64_t sum_at(int p, int head, int split, int n_heads)
{
    return 2 * (((int64_t)p * n_heads + head) * SPLITS_MAX + split);
}

// Scores of KV block `i` of the prompt as exponents of 2; -inf beyond its keys.
template <int DP, bool FP8>
static __device__ __forceinline__ void block_scores(float scores[2][4], const kv_cache *kv, int layer, const prompt *of,
                                                    int kv_head, const uint16_t *q, int i)
{
    int64_t at = geometry_kv_at(kv, layer, __ldg(of->table + i), false, kv_head);
#pragma unroll
    for (int k = 0; k < 8; k++)
        scores[k / 4][k % 4] = 0;
#pragma unroll
    for (int part = 0; part < score_keys<DP, FP8>::PARTS; part++) {
        score_keys<DP, FP8> keys;
        load_keys(&keys, block_data<FP8>(kv, at), kv->head_size, part);
        add_scores(scores, &keys, q, part);
    }
    scale_scores<FP8>(scores, kv->scale + at, score_scale(kv->head_size));
    mask_scores(scores, i * KV_BLOCK_TOKENS, of->keys);
}

// Grid: splits x chunks of heads x importance rows; shared memory: q. Thread blocks of splits that a prompt does not
// have end at once.
template <int DP, bool FP8>
static __global__ void __launch_bounds__(WARPS *WARP)
    importance_sums_kernel(kv_cache kv, device_batch batch, int layer, const float *qkv, int n_heads, float *sums)
{
    __shared__ float warp_exponent[WARPS][SCORE_HEADS], warp_sum_of[WARPS][SCORE_HEADS];
    DYNAMIC_SHARED(uint16_t, q);
    int d = kv.head_size, p = (int)blockIdx.z;
    prompt it = prompt_of(&batch, p, qkv, (n_heads + 2 * kv.n_kv_heads) * d);
    int split_entries = geometry_split_entries(it.keys);
    int64_t begin = (int64_t)blockIdx.x * split_entries;
    if (begin >= it.keys) return; // the whole block
    int end = (int)min(begin + split_entries, (int64_t)it.keys);
    score_heads heads = score_heads_of((int)blockIdx.y, n_heads, kv.n_kv_heads);
    load_q<DP>(q, it.q_row, &heads, d);
    __syncthreads();

    // Of heads g and g + 8, over the lane's own entries: lanes exchange nothing in the loop.
    float exponent[2] = {EXPONENT_NONE, EXPONENT_NONE}, sum[2] = {0, 0};
    int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP;
    for (int i = (int)begin / KV_BLOCK_TOKENS + warp; i <= (end - 1) / KV_BLOCK_TOKENS; i += WARPS) {
        float s[2][4];
        block_scores<DP, FP8>(s, &kv, layer, &it, heads.kv_head, q, i);
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float largest = fmaxf(fmaxf(s[0][2 * r], s[0][2 * r + 1]), fmaxf(s[1][2 * r], s[1][2 * r + 1]));
            largest = fmaxf(exponent[r], rintf(largest));
            sum[r] *= exp2_approx(exponent[r] - largest);
            exponent[r] = largest;
#pragma unroll
            for (int half = 0; half < 2; half++)
                sum[r] += exp2_approx(s[half][2 * r] - largest) + exp2_approx(s[half][2 * r + 1] - largest);
        }
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float largest = fmaxf(exponent[r], __shfl_xor_sync(FULL_WARP, exponent[r], 1));
        largest = fmaxf(largest, __shfl_xor_sync(FULL_WARP, largest, 2));
        float of_quad = sum[r] * exp2_approx(exponent[r] - largest);
        of_quad += __shfl_xor_sync(FULL_WARP, of_quad, 1);
        of_quad += __shfl_xor_sync(FULL_WARP, of_quad, 2);
        if (lane % 4 == 0) {
            warp_exponent[warp][lane / 4 + 8 * r] = largest;
            warp_sum_of[warp][lane / 4 + 8 * r] = of_quad;
        }
    }
    __syncthreads();
    int head = (int)threadIdx.x;
    if (head < heads.count) {
        float largest = EXPONENT_NONE, total = 0;
        for (int w = 0; w < WARPS; w++)
            largest = fmaxf(largest, warp_exponent[w][head]);
        for (int w = 0; w < WARPS; w++)
            total += warp_sum_of[w][head] * exp2_approx(warp_exponent[w][head] - largest);
        float *to = sums + sum_at(p, heads.first + head, (int)blockIdx.x, n_heads);
        to[0] = largest, to[1] = total;
    }
}

// Columns of weights of a thread block of the second kernel: its keys and the window around them, in whole KV blocks.
HOST_DEVICE static inline int raise_columns(int window)
{
    return RAISE_KEYS + (window / 2 + KV_BLOCK_TOKENS - 1) / KV_BLOCK_TOKENS * KV_BLOCK_TOKENS * 2;
}

// Grid: groups of RAISE_KEYS keys x chunks of heads x importance rows; shared memory: q, then the weights
// [heads][raise_columns].
template <int DP, bool FP8>
static __global__ void __launch_bounds__(WARPS *WARP)
    importance_raise_kernel(kv_cache kv, device_batch batch, int layer, const float *qkv, int n_heads,
                            const float *sums, float *maxima)
{
    __shared__ float head_exponent[SCORE_HEADS], head_factor[SCORE_HEADS];
    DYNAMIC_SHARED(unsigned char, shared);
    uint16_t *q = reinterpret_cast<uint16_t *>(shared);
    float *weights = reinterpret_cast<float *>(shared + score_q<DP>::BYTES);
    int d = kv.head_size, p = (int)blockIdx.z, begin = (int)blockIdx.x * RAISE_KEYS;
    prompt it = prompt_of(&batch, p, qkv, (n_heads + 2 * kv.n_kv_heads) * d);
    if (begin >= it.keys) return; // the whole block
    int end = min(begin + RAISE_KEYS, it.keys), reach = batch.smoothing_window / 2;
    int columns = raise_columns(batch.smoothing_window), first = begin - (columns - RAISE_KEYS) / 2; // first column
    score_heads heads = score_heads_of((int)blockIdx.y, n_heads, kv.n_kv_heads);
    load_q<DP>(q, it.q_row, &heads, d);

    // Exponent and 1 / (sum * window) of each head from its splits, one warp per head.
    int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP, splits = geometry_splits(it.keys);
    for (int head = warp; head < heads.count; head += WARPS) {
        float largest = EXPONENT_NONE, total = 0;
        for (int i = lane; i < splits; i += WARP)
            largest = fmaxf(largest, sums[sum_at(p, heads.first + head, i, n_heads)]);
        largest = warp_max(largest);
        for (int i = lane; i < splits; i += WARP) {
            const float *from = sums + sum_at(p, heads.first + head, i, n_heads);
            total += from[1] * exp2_approx(from[0] - largest);
        }
        total = warp_sum(total);
        if (lane == 0) head_exponent[head] = largest, head_factor[head] = 1 / (total * (float)batch.smoothing_window);
    }
    __syncthreads();

    int g = lane / 4, c = lane % 4;
    for (int i = warp; i < columns / KV_BLOCK_TOKENS; i += WARPS) {
        int entry = first + i * KV_BLOCK_TOKENS;
        float s[2][4] = {};
        bool there = entry >= 0 && entry < it.keys; // weights outside the prompt are zero
        if (there) block_scores<DP, FP8>(s, &kv, layer, &it, heads.kv_head, q, entry / KV_BLOCK_TOKENS);
#pragma unroll
        for (int k = 0; k < 8; k++) {
            int head = g + k % 4 / 2 * 8, column = i * KV_BLOCK_TOKENS + k / 4 * 8 + 2 * c + k % 2;
            if (head >= heads.count) continue;
            float weight = there ? exp2_approx(s[k / 4][k % 4] - head_exponent[head]) * head_factor[head] : 0;
            weights[head * columns + column] = weight;
        }
    }
    __syncthreads();

    for (int key = begin + (int)threadIdx.x; key < end; key += WARPS * WARP) {
        float largest = 0;
        for (int head = 0; head < heads.count; head++) {
            const float *around = weights + head * columns + (key - first);
            float sum = 0;
            for (int i = -reach; i <= reach; i++)
                sum += around[i];
            largest = fmaxf(largest, sum); // fmaxf ignores NaN
        }
        // The bits of non-negative floats are in the same order as the floats.
        if (largest > 0)
            atomicMax(reinterpret_cast<int *>(maxima + batch.importance_first[p] + key), __float_as_int(largest));
    }
}

// ---- launching ------------------------------------------------------------------------------------------------------

template <int DP, bool FP8>
static cudaError_t launch_both(cudaStream_t stream, const kv_cache *kv, const device_batch *batch, int layer,
                               float *maxima, const float *qkv, int n_heads, float *sums)
{
    unsigned chunks = (unsigned)score_chunks(n_heads, kv->n_kv_heads), n = (unsigned)batch->n_importance_rows;
    dim3 splits_grid((unsigned)min((int)SPLITS_MAX, (batch->max_importance_keys + SPLIT_ENTRIES - 1) / SPLIT_ENTRIES),
                     chunks, n);
    cudaError_t error = CUDA_LAUNCH((importance_sums_kernel<DP, FP8>), splits_grid, WARPS * WARP, score_q<DP>::BYTES,
                                    stream, *kv, *batch, layer, qkv, n_heads, sums);
    if (error != cudaSuccess) return error;
    int heads = min((int)SCORE_HEADS, n_heads / kv->n_kv_heads);
    size_t shared = score_q<DP>::BYTES + (size_t)heads * (size_t)raise_columns(batch->smoothing_window) * sizeof(float);
    dim3 keys((unsigned)(batch->max_importance_keys + RAISE_KEYS - 1) / RAISE_KEYS, chunks, n);
    return CUDA_LAUNCH((importance_raise_kernel<DP, FP8>), keys, WARPS * WARP, shared, stream, *kv, *batch, layer, qkv,
                       n_heads, static_cast<const float *>(sums), maxima);
}

template <int DP>
static cudaError_t launch_head_size(cudaStream_t stream, const kv_cache *kv, const device_batch *batch, int layer,
                                    float *maxima, const float *qkv, int n_heads, float *sums)
{
    return kv->fp8 ? launch_both<DP, true>(stream, kv, batch, layer, maxima, qkv, n_heads, sums)
                   : launch_both<DP, false>(stream, kv, batch, layer, maxima, qkv, n_heads, sums);
}

cudaError_t launch_importance(cudaStream_t stream, const struct kv_cache *kv, const struct device_batch *batch,
                              int layer, float *maxima, const float *qkv, int n_heads, float *sums)
{
    if (batch->n_importance_rows == 0) return cudaSuccess;
    if (batch->smoothing_window > IMPORTANCE_WINDOW_MAX) return cudaErrorInvalidValue;
    int d = kv->head_size;
    return d <= 64    ? launch_head_size<64>(stream, kv, batch, layer, maxima, qkv, n_heads, sums)
           : d <= 128 ? launch_head_size<128>(stream, kv, batch, layer, maxima, qkv, n_heads, sums)
                      : launch_head_size<256>(stream, kv, batch, layer, maxima, qkv, n_heads, sums);
}
