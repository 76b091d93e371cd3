// SPDX-License-Identifier: Apache-2.0
// RoPE (arXiv 2104.09864) by one warp for one head: the norm, the rotation, and the write to the paged cache, so that
// q, k and v are read only once. A lane has dims i and i + 1 with their partners i + D/2 and i + 1 + D/2, so that a
// warp reads and writes whole lines. D is a multiple of 8, at most ROPE_HEAD_MAX.
//
// rope.cu and decode.cu compute the same entries, and a KV entry must have the same bits in both. So the functions
// state explicitly which products are fused with sums.
#pragma once

#include "kernels/cuda/geometry.h"
#include "kernels/cuda/ptx.h"

enum { ROPE_HEAD_MAX = 256, ROUNDS = ROPE_HEAD_MAX / 4 / WARP }; // rounds of four dims per lane

// A lane's dims of a head. In round j: dim_of(j) and dim_of(j) + 1 in `low`, and their partners half a head later in
// `high`.
struct lane_dims {
    float low[ROUNDS][2], high[ROUNDS][2];
};

static __device__ __forceinline__ int dim_of(int j)
{
    return 2 * ((int)threadIdx.x % WARP + j * WARP);
}

static __device__ __forceinline__ void load_dims(lane_dims *x, const float *head, int half)
{
#pragma unroll
    for (int j = 0; j < ROUNDS; j++) {
        int i = dim_of(j);
        float2 low = make_float2(0, 0), high = make_float2(0, 0);
        if (i < half) {
            low = *reinterpret_cast<const float2 *>(head + i);
            high = *reinterpret_cast<const float2 *>(head + half + i);
        }
        x->low[j][0] = low.x, x->low[j][1] = low.y;
        x->high[j][0] = high.x, x->high[j][1] = high.y;
    }
}

static __device__ __forceinline__ void normalise(lane_dims *x, const float *gain, int half, float epsilon)
{
    float sum = 0;
#pragma unroll
    for (int j = 0; j < ROUNDS; j++)
#pragma unroll
        for (int k = 0; k < 2; k++)
            sum = __fmaf_rn(x->low[j][k], x->low[j][k], __fmaf_rn(x->high[j][k], x->high[j][k], sum));
    float scale = rsqrtf(warp_sum(sum) / (float)(2 * half) + epsilon);
#pragma unroll
    for (int j = 0; j < ROUNDS; j++)
#pragma unroll
        for (int k = 0; k < 2; k++) {
            int i = dim_of(j) + k;
            if (i >= half) continue;
            x->low[j][k] *= scale * gain[i];
            x->high[j][k] *= scale * gain[half + i];
        }
}

// Rotates by the angles of a row: [D/2] pairs of cosine and sine.
static __device__ __forceinline__ void rotate(lane_dims *x, const float *angles, int half)
{
#pragma unroll
    for (int j = 0; j < ROUNDS; j++) {
        if (dim_of(j) >= half) continue;
        const float4 two = *reinterpret_cast<const float4 *>(angles + 2 * dim_of(j));
#pragma unroll
        for (int k = 0; k < 2; k++) {
            const float c = k ? two.z : two.x, s = k ? two.w : two.y, a = x->low[j][k], b = x->high[j][k];
            x->low[j][k] = __fmaf_rn(a, c, -__fmul_rn(b, s));
            x->high[j][k] = __fmaf_rn(b, c, __fmul_rn(a, s));
        }
    }
}

static __device__ __forceinline__ void store_f32(const lane_dims *x, float *head, int half)
{
#pragma unroll
    for (int j = 0; j < ROUNDS; j++) {
        int i = dim_of(j);
        if (i >= half) continue;
        *reinterpret_cast<float2 *>(head + i) = make_float2(x->low[j][0], x->low[j][1]);
        *reinterpret_cast<float2 *>(head + half + i) = make_float2(x->high[j][0], x->high[j][1]);
    }
}

static __device__ __forceinline__ void store_bf16(const lane_dims *x, uint16_t *entry, int half)
{
#pragma unroll
    for (int j = 0; j < ROUNDS; j++) {
        int i = dim_of(j);
        if (i >= half) continue;
        *reinterpret_cast<uint32_t *>(entry + i) = pack_bf16(x->low[j][0], x->low[j][1]);
        *reinterpret_cast<uint32_t *>(entry + half + i) = pack_bf16(x->high[j][0], x->high[j][1]);
    }
}

// Quantises to e4m3 as kernels/convert.h defines. Stores zeros with the scale NaN if a value is not finite.
static __device__ __forceinline__ void store_e4m3(const lane_dims *x, uint8_t *entry, float *scale, int half)
{
    float largest = 0;
#pragma unroll
    for (int j = 0; j < ROUNDS; j++)
#pragma unroll
        for (int k = 0; k < 2; k++)
            largest = fmaxf(largest, fmaxf(magnitude(x->low[j][k]), magnitude(x->high[j][k])));
    largest = warp_max(largest);
    const float factor = e4m3_factor(largest);
#pragma unroll
    for (int j = 0; j < ROUNDS; j++) {
        int i = dim_of(j);
        if (i >= half) continue;
        uint16_t low = 0, high = 0;
        if (factor != 0) {
            low = (uint16_t)e4m3x2_from_floats(x->low[j][0] * factor, x->low[j][1] * factor);
            high = (uint16_t)e4m3x2_from_floats(x->high[j][0] * factor, x->high[j][1] * factor);
        }
        *reinterpret_cast<uint16_t *>(entry + i) = low;
        *reinterpret_cast<uint16_t *>(entry + half + i) = high;
    }
    if (threadIdx.x % WARP == 0) *scale = e4m3_scale(largest);
}

// Writes K or V of the newest entry of a row, see backend_ops.rope_append.
static __device__ __forceinline__ void store_entry(const lane_dims *x, const kv_cache *kv, const device_batch *batch,
                                                   int layer, int row, bool is_v, int kv_head)
{
    const int s = batch->row_seq[row], entry = batch->kv_len[s] + row - batch->row_start[s], d = kv->head_size;
    const int block = batch->block_table[(int64_t)s * batch->max_blocks + entry / KV_BLOCK_TOKENS];
    const int64_t at = geometry_kv_at(kv, layer, block, is_v, kv_head) + entry % KV_BLOCK_TOKENS;
    if (kv->fp8)
        store_e4m3(x, static_cast<uint8_t *>(kv->data) + at * d, kv->scale + at, d / 2);
    else
        store_bf16(x, static_cast<uint16_t *>(kv->data) + at * d, d / 2);
}

// Loads a head of a row of qkv, normalises and rotates it. A head of V is only loaded. Heads are numbered q first, then
// k, then v.
static __device__ __forceinline__ void load_head(lane_dims *x, const struct rope *rope, const float *row_angles,
                                                 const float *data, int head, int n_heads, int n_kv_heads, int d)
{
    load_dims(x, data, d / 2);
    if (head >= n_heads + n_kv_heads) return;
    const float *gain = head < n_heads ? rope->q_gain : rope->k_gain;
    if (gain) normalise(x, gain, d / 2, rope->epsilon);
    rotate(x, row_angles, d / 2);
}
