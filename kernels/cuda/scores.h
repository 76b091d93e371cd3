// SPDX-License-Identifier: Apache-2.0
// Scores of the 16 entries of a KV block for up to 16 query heads of one row, computed by one warp. Used by kernels
// whose time is bound by reading K and V: the heads of a group share each read. The heads are the 16 rows of an mma,
// and rows without a head are zeros. Tensor cores have time to spare here, and K needs no conversion to f32.
//
// K goes from global memory directly into registers, 16 bytes per lane, without shared memory. This works because the
// order of dims in a sum is free, as long as q uses the same order. Lane 4 g + c of fragment B (ptx.h) holds column g,
// which is entry g. In each pair p of mma, the lane's rows 2c, 2c+1, 2c+8 and 2c+9 of both mma are the 8 dims from 32 p
// + 8 c on. So in bf16 four lanes read 64 contiguous bytes of an entry.
#pragma once

#include "kernels/cuda/geometry.h"
#include "kernels/cuda/ptx.h"

enum { SCORE_HEADS = 16 };

// Initial value of the largest exponent (see score_scale), before any entry. It is finite: the -inf of a masked score
// minus a finite number is no NaN.
#define EXPONENT_NONE (-0x1p100f)

// Eight values of K or V as stored in the cache.
template <bool FP8> struct packed8 {
    typedef uint4 type;
};
template <> struct packed8<true> {
    typedef uint2 type;
};

static __device__ __forceinline__ uint4 as_bf16(uint4 values)
{
    return values;
}

static __device__ __forceinline__ uint4 as_bf16(uint2 values)
{
    return bf16_from_e4m3x8(values);
}

// Returns the address of a block's values. `at` is geometry_kv_at of its entry 0.
template <bool FP8> static __device__ __forceinline__ const char *block_data(const kv_cache *kv, int64_t at)
{
    return static_cast<const char *>(kv->data) + at * kv->head_size * (FP8 ? 1 : 2);
}

// Loads values `at` to `at` + 7 of a block if `there` is true, else returns zeros. Does not use __ldg, see dependent.h.
template <bool FP8>
static __device__ __forceinline__ typename packed8<FP8>::type load8(const char *block, int at, bool there)
{
    typedef typename packed8<FP8>::type packed;
    return there ? *reinterpret_cast<const packed *>(block + at * (FP8 ? 1 : 2)) : packed();
}

static __device__ __forceinline__ uint4 pack8(const float *from)
{
    float4 low = *reinterpret_cast<const float4 *>(from), high = *reinterpret_cast<const float4 *>(from + 4);
    uint4 packed;
    packed.x = pack_bf16(low.x, low.y), packed.y = pack_bf16(low.z, low.w);
    packed.z = pack_bf16(high.x, high.y), packed.w = pack_bf16(high.z, high.w);
    return packed;
}

// Query heads of a thread block: up to SCORE_HEADS heads of one KV head.
struct score_heads {
    int kv_head, first, count;
};

HOST_DEVICE static inline int score_chunks(int n_heads, int n_kv_heads)
{
    return n_kv_heads * ((n_heads / n_kv_heads + SCORE_HEADS - 1) / SCORE_HEADS);
}

static __device__ __forceinline__ score_heads score_heads_of(int chunk, int n_heads, int n_kv_heads)
{
    int group = n_heads / n_kv_heads, chunks = (group + SCORE_HEADS - 1) / SCORE_HEADS;
    int first = chunk % chunks * SCORE_HEADS;
    score_heads heads;
    heads.kv_head = chunk / chunks;
    heads.first = heads.kv_head * group + first;
    heads.count = min((int)SCORE_HEADS, group - first);
    return heads;
}

// q of the heads as bf16 in shared memory, [SCORE_HEADS][STRIDE]. Rows without a head and columns from D on are zeros.
// The padding puts neighbouring rows into different halves of the banks, so that a quarter of a warp reads without bank
// conflicts.
template <int DP> struct score_q {
    enum { STRIDE = DP + 32, BYTES = SCORE_HEADS * STRIDE * 2 };
};

template <int DP>
static __device__ __forceinline__ void load_q(uint16_t *q, const float *row, const score_heads *heads, int d)
{
    for (int i = (int)threadIdx.x; i < SCORE_HEADS * (DP / 8); i += (int)blockDim.x) {
        int head = i / (DP / 8), dim = i % (DP / 8) * 8;
        uint4 values = uint4();
        if (head < heads->count && dim < d) values = pack8(row + (int64_t)(heads->first + head) * d + dim);
        *reinterpret_cast<uint4 *>(q + head * score_q<DP>::STRIDE + dim) = values;
    }
}

// A lane's part of a KV block's K. Registers hold DIMS dims at a time.
template <int DP, bool FP8> struct score_keys {
    enum { DIMS = DP < 128 ? DP : 128, PARTS = DP / DIMS };
    typename packed8<FP8>::type values[2][DIMS / 32]; // [entries 0..7, 8..15]
};

template <int DP, bool FP8>
static __device__ __forceinline__ void load_keys(score_keys<DP, FP8> *keys, const char *block, int d, int part)
{
    int lane = (int)threadIdx.x % WARP, g = lane / 4, c = lane % 4;
#pragma unroll
    for (int half = 0; half < 2; half++)
#pragma unroll
        for (int p = 0; p < score_keys<DP, FP8>::DIMS / 32; p++) {
            int dim = score_keys<DP, FP8>::DIMS * part + 32 * p + 8 * c;
            keys->values[half][p] = load8<FP8>(block, (8 * half + g) * d + dim, dim < d);
        }
}

// Adds to s[half] the products of q and K for the heads and the entries 8 half to 8 half + 7, over the dims in `keys`.
// s[half] is fragment C (ptx.h): its rows are heads and its columns entries.
template <int DP, bool FP8>
static __device__ __forceinline__ void add_scores(float s[2][4], const score_keys<DP, FP8> *keys, const uint16_t *q,
                                                  int part)
{
    int lane = (int)threadIdx.x % WARP, g = lane / 4, c = lane % 4;
#pragma unroll
    for (int p = 0; p < score_keys<DP, FP8>::DIMS / 32; p++) {
        const uint16_t *at = q + g * score_q<DP>::STRIDE + score_keys<DP, FP8>::DIMS * part + 32 * p + 8 * c;
        uint4 upper = *reinterpret_cast<const uint4 *>(at);
        uint4 lower = *reinterpret_cast<const uint4 *>(at + 8 * score_q<DP>::STRIDE);
        uint32_t a[4] = {upper.x, lower.x, upper.y, lower.y}, b[4] = {upper.z, lower.z, upper.w, lower.w};
#pragma unroll
        for (int half = 0; half < 2; half++) {
            uint4 k = as_bf16(keys->values[half][p]);
            mma_bf16(s[half], a, k.x, k.y);
            mma_bf16(s[half], b, k.z, k.w);
        }
    }
}

// Multiplies scores by `scale`, and with FP8 by the scales of the entries, which begin at `entry_scales`.
template <bool FP8>
static __device__ __forceinline__ void scale_scores(float s[2][4], const float *entry_scales, float scale)
{
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float2 two = make_float2(1, 1);
        if (FP8) two = *reinterpret_cast<const float2 *>(entry_scales + 8 * half + 2 * ((int)threadIdx.x % 4));
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if (FP8) s[half][i] *= i % 2 ? two.y : two.x;
            s[half][i] *= scale;
        }
    }
}

// Sets the scores of entries from `end` on to -inf. `entry` is the first entry of the block.
static __device__ __forceinline__ void mask_scores(float s[2][4], int entry, int end)
{
    if (entry + KV_BLOCK_TOKENS <= end) return;
    int c = (int)threadIdx.x % 4;
#pragma unroll
    for (int half = 0; half < 2; half++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int e = entry + 8 * half + 2 * c + i % 2;
            if (e >= end) s[half][i] = -INFINITY;
        }
}

// Returns log2(e) / sqrt(D): scores times this factor are exponents of 2.
static __device__ __forceinline__ float score_scale(int d)
{
    return 1.4426950408889634f * rsqrtf((float)d);
}
