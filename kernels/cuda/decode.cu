// SPDX-License-Identifier: Apache-2.0
// Attention of lone rows (decode): every entry is read once and used a few times, so reading K and V is all that
// counts. Entries are cut into stretches, each with a thread block of its own, so that a single sequence fills the
// device (flash decoding); the partial results of a row are then put together in order. A warp of a stretch's block
// takes every fourth KV block; V of a block and K of the next are in flight while K is computed with. Two blocks lie on
// a multiprocessor (three of bytes, which are half as long): some 60 KB on the way, where latency times bandwidth asks
// for 30. Registers hold them, so more blocks would spill.
//
// How a row's entries are cut depends on its own number of them alone, and all sums have a fixed order. A stretch that
// a row does not have ends at once: a captured pass is launched with the most stretches that it may need.
#include "kernels/cuda/device.h"
#include "kernels/cuda/scores.h"

enum { WARPS = 4, HEAD_MAX = 256 };

// The largest heads have too many sums for a warp: two warps share a KV block, each for half of V's dims.
template <int DP> struct share {
    enum { DIMS = DP < 128 ? DP : 128, COUNT = DP / DIMS, TURNS = WARPS / COUNT };
};

// ---- one stretch ----------------------------------------------------------------------------------------------------

// A lane's part of 64 dims of a block of V: dims 8 g .. 8 g + 7 of entries 2c, 2c+1, 2c+8, 2c+9. So lane (g, c) has
// column g of B for eight products, whose columns 0..7 are dims i, 8 + i, 16 + i, ... for product i.
template <bool FP8> struct value_part {
    typename packed8<FP8>::type values[4];
};

static __device__ __forceinline__ int value_entry(int i)
{
    return 2 * ((int)threadIdx.x % 4) + i % 2 + i / 2 * 8;
}

// 64 dims of a block from `dim` on. Entries outside of [first, end) are zeros: a weight of zero does not help against a
// NaN that lies there.
template <bool FP8>
static __device__ __forceinline__ void load_values(value_part<FP8> *part, const char *block, int d, int dim, int entry,
                                                   int first, int end)
{
    dim += 8 * ((int)threadIdx.x % WARP / 4);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        int e = entry + value_entry(i);
        part->values[i] = load8<FP8>(block, value_entry(i) * d + dim, e >= first && e < end && dim < d);
    }
}

static __device__ __forceinline__ void load_value_scales(float scale[4], const float *block, int entry, int first,
                                                         int end)
{
#pragma unroll
    for (int i = 0; i < 4; i++) {
        int e = entry + value_entry(i);
        scale[i] = e >= first && e < end ? __ldg(block + value_entry(i)) : 0;
    }
}

static __device__ __forceinline__ uint32_t component(uint4 v, int i)
{
    return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

// Online softmax (arXiv 1805.02867) of heads g and g + 8, of the entries so far. The sums are those of the lane's own
// columns; out[p][i] is C of product i of 64 dims.
template <int DP> struct softmax {
    float exponent[2], sum[2], out[share<DP>::DIMS / 64][8][4];
};

// Scores of 16 entries to weights, which are A of the product with V; what there is so far is brought to the new
// exponents. Weights are 2^(score - an integer near the largest), see backend.h.
template <int DP, bool FP8>
static __device__ __forceinline__ void weigh(uint32_t a[4], softmax<DP> *state, float s[2][4], const float scale[4])
{
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float most = fmaxf(fmaxf(s[0][2 * r], s[0][2 * r + 1]), fmaxf(s[1][2 * r], s[1][2 * r + 1]));
        most = fmaxf(most, __shfl_xor_sync(FULL_WARP, most, 1));
        most = fmaxf(most, __shfl_xor_sync(FULL_WARP, most, 2));
        most = fmaxf(state->exponent[r], rintf(most));
        if (most != state->exponent[r]) {
            float factor = exp2_approx(state->exponent[r] - most);
            state->exponent[r] = most;
            state->sum[r] *= factor;
#pragma unroll
            for (int p = 0; p < share<DP>::DIMS / 64; p++)
#pragma unroll
                for (int i = 0; i < 8; i++) {
                    state->out[p][i][2 * r] *= factor;
                    state->out[p][i][2 * r + 1] *= factor;
                }
        }
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float weight[2];
#pragma unroll
            for (int k = 0; k < 2; k++) {
                weight[k] = exp2_approx(s[half][2 * r + k] - most);
                state->sum[r] += weight[k];
                if (FP8) weight[k] *= scale[2 * half + k];
            }
            a[2 * half + r] = pack_bf16(weight[0], weight[1]);
        }
    }
}

template <bool FP8>
static __device__ __forceinline__ void multiply_values(float out[8][4], const uint32_t a[4], const value_part<FP8> *v)
{
    uint4 e0 = as_bf16(v->values[0]), e1 = as_bf16(v->values[1]);
    uint4 e8 = as_bf16(v->values[2]), e9 = as_bf16(v->values[3]);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        uint32_t w0 = component(e0, i), w1 = component(e1, i), w8 = component(e8, i), w9 = component(e9, i);
        mma_bf16(out[2 * i], a, pack_lower(w0, w1), pack_lower(w8, w9));
        mma_bf16(out[2 * i + 1], a, pack_upper(w0, w1), pack_upper(w8, w9));
    }
}

// What the warps of a block hand to each other.
template <int DP> struct warp_results {
    enum { STRIDE = share<DP>::DIMS + 4 };
    float exponent[WARPS][SCORE_HEADS], sum[WARPS][SCORE_HEADS];
    float out[WARPS][SCORE_HEADS][STRIDE];
};

// Lane (g, c) has dims 64 p + 16 c .. + 15 of the share, for heads g and g + 8: column 2c of product i is dim 16 c + i
// of the 64.
template <int DP> static __device__ __forceinline__ void store_results(warp_results<DP> *all, const softmax<DP> *state)
{
    int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP, g = lane / 4, c = lane % 4;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float sum = state->sum[r];
        sum += __shfl_xor_sync(FULL_WARP, sum, 1);
        sum += __shfl_xor_sync(FULL_WARP, sum, 2);
        int head = g + 8 * r;
        if (c == 0) all->exponent[warp][head] = state->exponent[r], all->sum[warp][head] = sum;
#pragma unroll
        for (int p = 0; p < share<DP>::DIMS / 64; p++)
#pragma unroll
            for (int k = 0; k < 2; k++) // columns 2c and 2c + 1
#pragma unroll
                for (int i = 0; i < 8; i += 4) {
                    float *to = &all->out[warp][head][64 * p + 16 * c + 8 * k + i];
                    const float(*from)[4] = &state->out[p][i];
                    *reinterpret_cast<float4 *>(to) =
                        make_float4(from[0][2 * r + k], from[1][2 * r + k], from[2][2 * r + k], from[3][2 * r + k]);
                }
    }
}

// Grid: stretches x chunks of heads x lone rows; shared memory: q and warp_results.
template <int DP, bool FP8>
static __global__ void __launch_bounds__(WARPS *WARP, FP8 &&DP <= 128 ? 3 : 2)
    attend_stretch_kernel(kv_cache kv, device_batch batch, int layer, const float *qkv, int n_heads, int window,
                          float *partials)
{
    int d = kv.head_size, row = batch.lone_row[blockIdx.z], s = batch.row_seq[row], n = batch.kv_len[s] + 1;
    int first = geometry_first_seen(n - 1, window), stretch = geometry_stretch(n);
    int64_t begin = (int64_t)blockIdx.x * stretch;
    if (begin >= n || begin + stretch <= first) return; // the whole block
    int end = (int)min(begin + stretch, (int64_t)n);
    score_heads heads = score_heads_of((int)blockIdx.y, n_heads, kv.n_kv_heads);

    DYNAMIC_SHARED(unsigned char, shared);
    uint16_t *q = reinterpret_cast<uint16_t *>(shared);
    warp_results<DP> *results = reinterpret_cast<warp_results<DP> *>(shared + score_q<DP>::BYTES);
    load_q<DP>(q, qkv + (int64_t)row * (n_heads + 2 * kv.n_kv_heads) * d, &heads, d);
    __syncthreads();

    softmax<DP> state;
#pragma unroll
    for (int r = 0; r < 2; r++)
        state.exponent[r] = EXPONENT_NONE, state.sum[r] = 0;
#pragma unroll
    for (int p = 0; p < share<DP>::DIMS / 64; p++)
#pragma unroll
        for (int i = 0; i < 8; i++)
#pragma unroll
            for (int k = 0; k < 4; k++)
                state.out[p][i][k] = 0;

    const int32_t *table = batch.block_table + (int64_t)s * batch.max_blocks;
    const int warp = (int)threadIdx.x / WARP, turns = share<DP>::TURNS, last = (end - 1) / KV_BLOCK_TOKENS;
    const int first_dim = warp % share<DP>::COUNT * share<DP>::DIMS;
    int i = (int)begin / KV_BLOCK_TOKENS + warp / share<DP>::COUNT;
    while (i < first / KV_BLOCK_TOKENS)
        i += turns;
    const float scale = score_scale(d);
    // K of the next block is loaded before V of this one is used. Larger heads have no registers for that, nor for all
    // of K at once.
    typedef score_keys<DP, FP8> keys_part;
    const bool ahead = keys_part::PARTS == 1;
    const int64_t zero = geometry_kv_at(&kv, layer, 0, false, heads.kv_head); // where block 0 lies
    const int block_size = 2 * kv.n_kv_heads * KV_BLOCK_TOKENS, values_at = block_size / 2;
    int64_t at = zero, next = zero;
    keys_part keys;
    if (i <= last) {
        at += (int64_t)__ldg(table + i) * block_size;
        next += (int64_t)__ldg(table + min(i + turns, last)) * block_size;
        if (ahead) load_keys(&keys, block_data<FP8>(&kv, at), d, 0);
    }
    for (; i <= last; i += turns) {
        int entry = i * KV_BLOCK_TOKENS;
        const char *block = block_data<FP8>(&kv, at + values_at);
        value_part<FP8> values[share<DP>::DIMS / 64];
        float scores[2][4] = {}, value_scale[4];
        if (FP8) load_value_scales(value_scale, kv.scale + at + values_at, entry, first, end);
#pragma unroll
        for (int p = 0; ahead && p < share<DP>::DIMS / 64; p++)
            load_values(&values[p], block, d, first_dim + 64 * p, entry, first, end);
#pragma unroll
        for (int part = 0; part < keys_part::PARTS; part++) {
            if (!ahead) load_keys(&keys, block_data<FP8>(&kv, at), d, part);
            add_scores(scores, &keys, q, part);
        }
        scale_scores<FP8>(scores, kv.scale + at, scale);
        at = next;
        if (ahead && i + turns <= last) load_keys(&keys, block_data<FP8>(&kv, at), d, 0);
        next = zero + (int64_t)__ldg(table + min(i + 2 * turns, last)) * block_size;
        mask_scores(scores, entry, first, end);
        uint32_t a[4];
        weigh<DP, FP8>(a, &state, scores, value_scale);
#pragma unroll
        for (int p = 0; p < share<DP>::DIMS / 64; p++) {
            if (!ahead) load_values(&values[p], block, d, first_dim + 64 * p, entry, first, end);
            multiply_values(state.out[p], a, &values[p]);
        }
    }
    store_results(results, &state);
    __syncthreads();

    float *outs = partials + geometry_partial_sums(batch.n_lone, n_heads, batch.max_splits);
    for (int k = (int)threadIdx.x; k < heads.count * DP; k += WARPS * WARP) {
        int head = k / DP, dim = k % DP;
        if (dim >= d) continue;
        float most = EXPONENT_NONE, out = 0, sum = 0;
        const int from = dim / share<DP>::DIMS; // the first of the warps that have this share
        for (int w = from; w < WARPS; w += share<DP>::COUNT)
            most = fmaxf(most, results->exponent[w][head]);
        for (int w = from; w < WARPS; w += share<DP>::COUNT) {
            float factor = exp2_approx(results->exponent[w][head] - most);
            out += results->out[w][head][dim % share<DP>::DIMS] * factor;
            sum += results->sum[w][head] * factor;
        }
        int64_t at =
            geometry_partial_at((int)blockIdx.z, heads.first + head, (int)blockIdx.x, n_heads, batch.max_splits);
        outs[at * d + dim] = out;
        if (dim == 0) partials[2 * at] = most, partials[2 * at + 1] = sum;
    }
}

// ---- all of a row's -------------------------------------------------------------------------------------------------

// Grid: query heads x lone rows. Warps take the stretches in turn and are then added up in order.
static __global__ void __launch_bounds__(WARPS *WARP)
    combine_kernel(device_batch batch, uint16_t *out, int out_stride, int n_heads, int d, int window,
                   const float *partials)
{
    __shared__ float weight[SPLITS_MAX], warp_most[WARPS], warp_total[WARPS];
    __shared__ float sums[WARPS][HEAD_MAX];
    int row = batch.lone_row[blockIdx.y], n = batch.kv_len[batch.row_seq[row]] + 1, stretch = geometry_stretch(n);
    int from = geometry_first_seen(n - 1, window) / stretch, splits = (n - 1) / stretch - from + 1;
    int thread = (int)threadIdx.x, warp = thread / WARP, lane = thread % WARP;
    int64_t at = geometry_partial_at((int)blockIdx.y, (int)blockIdx.x, from, n_heads, batch.max_splits);

    float exponent = EXPONENT_NONE, sum = 0; // of stretch `thread`: there are at most as many as threads
    if (thread < splits) exponent = partials[2 * (at + thread)], sum = partials[2 * (at + thread) + 1];
    float most = warp_max(exponent);
    if (lane == 0) warp_most[warp] = most;
    __syncthreads();
    most = fmaxf(fmaxf(warp_most[0], warp_most[1]), fmaxf(warp_most[2], warp_most[3]));
    float factor = exp2_approx(exponent - most), total = warp_sum(sum * factor);
    weight[thread] = factor;
    if (lane == 0) warp_total[warp] = total;
    __syncthreads();
    total = warp_total[0] + warp_total[1] + warp_total[2] + warp_total[3];

    const float *outs = partials + geometry_partial_sums(batch.n_lone, n_heads, batch.max_splits) + at * d;
    for (int dim = 4 * lane; dim < d; dim += 4 * WARP) {
        float4 acc = make_float4(0, 0, 0, 0);
#pragma unroll 4
        for (int i = warp; i < splits; i += WARPS) {
            float4 x = __ldg(reinterpret_cast<const float4 *>(outs + (int64_t)i * d + dim));
            acc.x += weight[i] * x.x, acc.y += weight[i] * x.y;
            acc.z += weight[i] * x.z, acc.w += weight[i] * x.w;
        }
        *reinterpret_cast<float4 *>(&sums[warp][dim]) = acc;
    }
    __syncthreads();
    uint16_t *to = out + (int64_t)row * out_stride + (int64_t)blockIdx.x * d;
    for (int dim = 2 * thread; dim < d; dim += 2 * WARPS * WARP) {
        float low = sums[0][dim] + sums[1][dim] + sums[2][dim] + sums[3][dim];
        float high = sums[0][dim + 1] + sums[1][dim + 1] + sums[2][dim + 1] + sums[3][dim + 1];
        *reinterpret_cast<uint32_t *>(to + dim) = pack_bf16(low / total, high / total);
    }
}

// ---- launching ------------------------------------------------------------------------------------------------------

template <int DP, bool FP8>
static cudaError_t launch_stretches(cudaStream_t stream, const kv_cache *kv, const device_batch *batch, int layer,
                                    const float *qkv, int n_heads, int window, float *partials)
{
    dim3 grid((unsigned)batch->max_splits, (unsigned)score_chunks(n_heads, kv->n_kv_heads), (unsigned)batch->n_lone);
    size_t shared = score_q<DP>::BYTES + sizeof(warp_results<DP>);
    return CUDA_LAUNCH((attend_stretch_kernel<DP, FP8>), grid, WARPS * WARP, shared, stream, *kv, *batch, layer, qkv,
                       n_heads, window, partials);
}

template <int DP>
static cudaError_t launch_head_size(cudaStream_t stream, const kv_cache *kv, const device_batch *batch, int layer,
                                    const float *qkv, int n_heads, int window, float *partials)
{
    return kv->fp8 ? launch_stretches<DP, true>(stream, kv, batch, layer, qkv, n_heads, window, partials)
                   : launch_stretches<DP, false>(stream, kv, batch, layer, qkv, n_heads, window, partials);
}

size_t attention_partial_floats(int max_lone, int max_splits, int n_heads, int head_size)
{
    size_t n = (size_t)max_lone * (size_t)max_splits * (size_t)n_heads;
    return (size_t)geometry_partial_sums(max_lone, n_heads, max_splits) + n * (size_t)head_size;
}

cudaError_t launch_attention_lone(cudaStream_t stream, const struct kv_cache *kv, const struct device_batch *batch,
                                  int layer, void *out, int out_stride, const float *qkv, int n_heads, int window,
                                  float *partials)
{
    int d = kv->head_size;
    cudaError_t error = d <= 64    ? launch_head_size<64>(stream, kv, batch, layer, qkv, n_heads, window, partials)
                        : d <= 128 ? launch_head_size<128>(stream, kv, batch, layer, qkv, n_heads, window, partials)
                                   : launch_head_size<256>(stream, kv, batch, layer, qkv, n_heads, window, partials);
    if (error != cudaSuccess) return error;
    dim3 grid((unsigned)n_heads, (unsigned)batch->n_lone);
    return CUDA_LAUNCH(combine_kernel, grid, WARPS * WARP, 0, stream, *batch, static_cast<uint16_t *>(out), out_stride,
                       n_heads, d, window, static_cast<const float *>(partials));
}
