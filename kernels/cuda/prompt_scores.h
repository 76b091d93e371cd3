// SPDX-License-Identifier: Apache-2.0
// The scores of an importance row to the keys of its prompt. The kernel that computes the scores keeps them in memory,
// with the largest exponent and the sum of weights of each split. importance.cu turns them into weights once all splits
// are known, without reading K again. geometry_kept_at gives their place.
#pragma once

#include "kernels/cuda/scores.h"

enum { SCORE_WARPS = 4 }; // warps of a thread block that computes scores

// A warp's part of the kept scores of a split, for the heads of its thread block.
struct kept_scores {
    float *to; // where the scores of the first head go; the scores of the next head begin `stride` floats later
    int64_t stride;
    int keys, n_heads; // number of keys of the prompt, or 0 if the row is no importance row; number of heads
    // Largest exponent and sum of weights for heads g and g + 8, over the lane's own entries only: lanes exchange
    // nothing in the loop.
    float exponent[2], sum[2];
};

// Returns the kept scores before the first block. `p` is the number of the importance row, or -1 if the row is no
// importance row.
static __device__ __forceinline__ kept_scores kept_scores_of(const device_batch *batch, int p, const score_heads *heads,
                                                             int n_heads, float *kept)
{
    kept_scores of;
    of.keys = p < 0 ? 0 : batch->importance_keys[p];
    of.to = p < 0 ? NULL : kept + geometry_kept_at(batch, p, heads->first, n_heads);
    of.stride = p < 0 ? 0 : geometry_kept_width(batch, p);
    of.n_heads = heads->count;
    for (int r = 0; r < 2; r++)
        of.exponent[r] = EXPONENT_NONE, of.sum[r] = 0;
    return of;
}

// Keeps the scores of the KV block whose first entry is `entry`: exponents of 2, as scale_scores leaves them. Entries
// after the prompt have the exponent -inf.
static __device__ __forceinline__ void keep_scores(kept_scores *kept, const float s[2][4], int entry)
{
    if (entry >= kept->keys) return;
    const int lane = (int)threadIdx.x % WARP, g = lane / 4, c = lane % 4;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float of_prompt[4], largest = kept->exponent[r];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            of_prompt[i] = entry + i / 2 * 8 + 2 * c + i % 2 < kept->keys ? s[i / 2][2 * r + i % 2] : -INFINITY;
            largest = fmaxf(largest, rintf(of_prompt[i]));
        }
        kept->sum[r] *= exp2_approx(kept->exponent[r] - largest);
        kept->exponent[r] = largest;
#pragma unroll
        for (int i = 0; i < 4; i++)
            kept->sum[r] += exp2_approx(of_prompt[i] - largest);
        if (g + 8 * r >= kept->n_heads) continue;
        float *to = kept->to + (g + 8 * r) * kept->stride + KEPT_SUMS + entry + 2 * c;
#pragma unroll
        for (int half = 0; half < 2; half++)
            *reinterpret_cast<float2 *>(to + 8 * half) = make_float2(of_prompt[2 * half], of_prompt[2 * half + 1]);
    }
}

// Combines the exponents and sums of all warps, and writes the results for the split. Call it in all threads of the
// block, or in none.
static __device__ __forceinline__ void keep_sums(const kept_scores *kept, int split)
{
    __shared__ float exponent[SCORE_WARPS][SCORE_HEADS], sum[SCORE_WARPS][SCORE_HEADS];
    const int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float largest = fmaxf(kept->exponent[r], __shfl_xor_sync(FULL_WARP, kept->exponent[r], 1));
        largest = fmaxf(largest, __shfl_xor_sync(FULL_WARP, largest, 2));
        float of_quad = kept->sum[r] * exp2_approx(kept->exponent[r] - largest);
        of_quad += __shfl_xor_sync(FULL_WARP, of_quad, 1);
        of_quad += __shfl_xor_sync(FULL_WARP, of_quad, 2);
        if (lane % 4 == 0) exponent[warp][lane / 4 + 8 * r] = largest, sum[warp][lane / 4 + 8 * r] = of_quad;
    }
    __syncthreads();
    const int head = (int)threadIdx.x;
    if (head >= kept->n_heads) return;
    float largest = EXPONENT_NONE, total = 0;
    for (int w = 0; w < SCORE_WARPS; w++)
        largest = fmaxf(largest, exponent[w][head]);
    for (int w = 0; w < SCORE_WARPS; w++)
        total += sum[w][head] * exp2_approx(exponent[w][head] - largest);
    *reinterpret_cast<float2 *>(kept->to + head * kept->stride + 2 * split) = make_float2(largest, total);
}
