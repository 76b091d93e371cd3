// SPDX-License-Identifier: Apache-2.0
// Defines the order of sums in gemv.cu (up to GEMV_ROWS rows) and gemm_stream.cu (up to STREAM_ROWS rows). So with bf16
// weights a row gets the same bits from both.
//
// An output of a row is the sum of FEW_PARTS parts of K, added in order. A part is a range of stages, and depends only
// on K. A stage has FEW_STEPS steps of 16 bytes for each of 4 lanes. Within a part, the tensor cores add the products
// of the steps in order. In bf16 a step has 32 columns, and lane c of four holds its columns 8c to 8c + 7. The first of
// two mma multiplies columns 8c to 8c + 3 of each lane, and the second mma the other columns.
#pragma once

#include "kernels/cuda/geometry.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/ptx.h"

enum { FEW_PARTS = 8, FEW_STEPS = 4, FEW_TILE = 16 }; // FEW_TILE: outputs of an mma

HOST_DEVICE static inline int few_tiles(const struct gemv *a)
{
    const int half = FEW_TILE / 2;
    return a->mode == GEMV_SWIGLU ? (a->n / 2 + half - 1) / half : (a->n + FEW_TILE - 1) / FEW_TILE;
}

// Returns the index of output i of a tile, clamped to the last output. With SwiGLU a tile is 8 outputs of gate and the
// 8 outputs of up with the same index, so that one thread has both.
static __device__ __forceinline__ int few_tile_output(const struct gemv *a, int tile, int i)
{
    const int half = FEW_TILE / 2;
    if (a->mode == GEMV_SWIGLU) return min(tile * half + i % half, a->n / 2 - 1) + (i < half ? 0 : a->n / 2);
    return min(tile * FEW_TILE + i, a->n - 1);
}

// Computes the range [*first_p, *end_p) of stages of a part. A stage has `columns` columns.
static __device__ __forceinline__ void few_part(int k, int columns, int part, int *first_p, int *end_p)
{
    const int stages = (k + columns - 1) / columns, each = (stages + FEW_PARTS - 1) / FEW_PARTS;
    *first_p = part * each;
    *end_p = min(*first_p + each, stages);
}

// Add to `sum` the products of the first half, or the second half, of a lane's 8 columns. `low` is the weight of output
// g of the tile, and `high` of output g + 8.
static __device__ __forceinline__ void few_multiply_first(float sum[4], uint4 low, uint4 high, uint4 x)
{
    const uint32_t weight[4] = {low.x, high.x, low.y, high.y};
    mma_bf16(sum, weight, x.x, x.y);
}

static __device__ __forceinline__ void few_multiply_second(float sum[4], uint4 low, uint4 high, uint4 x)
{
    const uint32_t weight[4] = {low.z, high.z, low.w, high.w};
    mma_bf16(sum, weight, x.z, x.w);
}

static __device__ __forceinline__ __nv_bfloat16 few_swiglu(float gate, float up)
{
    const float LOG2_E = 1.44269504f;
    return __float2bfloat16_rn(gate / (1 + exp2f(-gate * LOG2_E)) * up);
}

// Stores sum + bias in the form that the mode asks for.
static __device__ __forceinline__ void few_store(const struct gemv *a, int row, int output, float sum)
{
    if (a->bias) sum += a->bias[output];
    const int64_t at = (int64_t)row * a->out_stride + output;
    if (a->mode == GEMV_BF16)
        static_cast<__nv_bfloat16 *>(a->out)[at] = __float2bfloat16_rn(sum);
    else
        static_cast<float *>(a->out)[at] = a->mode == GEMV_ADD ? static_cast<const float *>(a->out)[at] + sum : sum;
}
