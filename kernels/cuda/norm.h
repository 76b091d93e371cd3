// SPDX-License-Identifier: Apache-2.0
// The parts of RMSNorm (arXiv 1910.07467) that rows.cu and gemv.cu share, so that a row has the same bits in both. A
// row is divided among at most NORM_THREADS_MAX threads. Their number depends only on the row's length. Each thread has
// groups of W values.
#pragma once

#include "kernels/cuda/device.h"

enum { NORM_THREADS_MAX = 512, NORM_WARPS_MAX = NORM_THREADS_MAX / WARP };
enum { WIDE = 8 }; // elements that a thread processes together: 8 bf16 are 16 bytes, 8 f32 are two times 16 bytes

// Returns the number of threads for a row of n elements. Each thread has few steps, and no warp is without work.
static __host__ __device__ __forceinline__ int norm_threads(int n)
{
    const int threads = (n / WIDE + WARP - 1) / WARP * WARP;
    return threads < WARP ? WARP : threads > NORM_THREADS_MAX ? NORM_THREADS_MAX : threads;
}

// Adds the squares of a group to a thread's sum. Products and sums are fused explicitly: the compiler must not choose.
template <int W> static __device__ __forceinline__ float norm_add(float squares, const float *group)
{
#pragma unroll
    for (int j = 0; j < W; j++)
        squares = __fmaf_rn(group[j], group[j], squares);
    return squares;
}

// Returns the factor of a row from the sums of its warps.
static __device__ __forceinline__ float norm_factor(const float *warp_squares, int warps, int n, float epsilon)
{
    float sum = 0;
    for (int w = 0; w < warps; w++)
        sum += warp_squares[w];
    return 1 / sqrtf(sum / (float)n + epsilon);
}

// Returns one value of the norm's result, not yet rounded to bf16.
static __device__ __forceinline__ float norm_value(float x, float factor, float gain)
{
    return __fmul_rn(__fmul_rn(x, factor), gain);
}
