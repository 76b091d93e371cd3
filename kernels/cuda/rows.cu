// SPDX-License-Identifier: Apache-2.0
// Steps that are one loop over rows: embedding, RMSNorm, SwiGLU, quantisation to FP8, gemm epilogue. They are bound by
// memory. They use 16-byte accesses if the shape allows them, else they access one element at a time. A row belongs to
// one thread block whose size depends only on the row's length, and sums run in one order. So a row's result does not
// depend on the number of rows.
#include "kernels/cuda/dependent.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/norm.h"

enum { THREADS_MAX = NORM_THREADS_MAX, STRIPE_THREADS = 256 };

// ---- groups of W elements -------------------------------------------------------------------------------------------

template <int W> static __device__ __forceinline__ void load(float *to, const float *from)
{
    if constexpr (W == 1) {
        to[0] = from[0];
    } else {
#pragma unroll
        for (int i = 0; i < W; i += 4) {
            float4 four = *reinterpret_cast<const float4 *>(from + i);
            to[i] = four.x, to[i + 1] = four.y, to[i + 2] = four.z, to[i + 3] = four.w;
        }
    }
}

template <int W> static __device__ __forceinline__ void store(float *to, const float *from)
{
    if constexpr (W == 1) {
        to[0] = from[0];
    } else {
#pragma unroll
        for (int i = 0; i < W; i += 4)
            *reinterpret_cast<float4 *>(to + i) = make_float4(from[i], from[i + 1], from[i + 2], from[i + 3]);
    }
}

struct __align__(16) eight
{
    __nv_bfloat16 of[WIDE];
};

template <int W> static __device__ __forceinline__ void load(float *to, const __nv_bfloat16 *from)
{
    if constexpr (W == 1) {
        to[0] = __bfloat162float(from[0]);
    } else {
#pragma unroll
        for (int i = 0; i < W; i += WIDE) {
            eight group = *reinterpret_cast<const eight *>(from + i);
#pragma unroll
            for (int j = 0; j < WIDE; j++)
                to[i + j] = __bfloat162float(group.of[j]);
        }
    }
}

template <int W> static __device__ __forceinline__ void store(__nv_bfloat16 *to, const float *from)
{
    if constexpr (W == 1) {
        to[0] = __float2bfloat16_rn(from[0]);
    } else {
#pragma unroll
        for (int i = 0; i < W; i += WIDE) {
            eight group;
#pragma unroll
            for (int j = 0; j < WIDE; j++)
                group.of[j] = __float2bfloat16_rn(from[i + j]);
            *reinterpret_cast<eight *>(to + i) = group;
        }
    }
}

struct __align__(8) eight_bytes
{
    uint8_t of[WIDE];
};

template <int W> static __device__ __forceinline__ void store_bytes(uint8_t *to, const float *from)
{
    if constexpr (W == 1) {
        to[0] = e4m3_from_float(from[0]);
    } else {
        eight_bytes group;
#pragma unroll
        for (int j = 0; j < WIDE; j++)
            group.of[j] = e4m3_from_float(from[j]);
        *reinterpret_cast<eight_bytes *>(to) = group;
    }
}

// ---- embedding ------------------------------------------------------------------------------------------------------

// One thread block per row.
template <int W>
static __global__ void __launch_bounds__(THREADS_MAX)
    embed_kernel(float *out, const __nv_bfloat16 *table, int table_stride, int64_t table_rows, int32_t first_row,
                 const int32_t *token, int hidden, float scale)
{
    int64_t row = (int64_t)token[blockIdx.x] - first_row;
    bool here = row >= 0 && row < table_rows;
    const __nv_bfloat16 *from = table + row * table_stride;
    float *to = out + (int64_t)blockIdx.x * hidden;
    for (int i = (int)threadIdx.x * W; i < hidden; i += (int)blockDim.x * W) {
        float group[W];
#pragma unroll
        for (int j = 0; j < W; j++)
            group[j] = 0;
        if (here) load<W>(group, from + i);
#pragma unroll
        for (int j = 0; j < W; j++)
            group[j] *= scale;
        store<W>(to + i, group);
    }
}

cudaError_t launch_embed(cudaStream_t stream, float *out, const void *table, int table_stride, int64_t table_rows,
                         int32_t first_row, const int32_t *token, int rows, int hidden, float scale)
{
    const __nv_bfloat16 *bf16 = (const __nv_bfloat16 *)table;
    if (hidden % WIDE == 0)
        return CUDA_LAUNCH(embed_kernel<WIDE>, dim3((unsigned)rows), dim3((unsigned)norm_threads(hidden)), 0, stream,
                           out, bf16, table_stride, table_rows, first_row, token, hidden, scale);
    return CUDA_LAUNCH(embed_kernel<1>, dim3((unsigned)rows), dim3((unsigned)norm_threads(hidden)), 0, stream, out,
                       bf16, table_stride, table_rows, first_row, token, hidden, scale);
}

// ---- RMSNorm (arXiv 1910.07467) -------------------------------------------------------------------------------------

// Loads W values of a row from index i on: values of x or, with ADD, sums of x and the addend.
template <int W, bool ADD>
static __device__ __forceinline__ void load_sum(float *to, const float *x, const __nv_bfloat16 *addend, int i)
{
    load<W>(to, x + i);
    if constexpr (ADD) {
        float group[W];
        load<W>(group, addend + i);
#pragma unroll
        for (int j = 0; j < W; j++)
            to[j] += group[j];
    }
}

// Returns the norm's factor of a row, in every thread. Every thread of the block must call it.
template <int W, bool ADD>
static __device__ __forceinline__ float row_factor(const float *row, const __nv_bfloat16 *addend, int n, float epsilon,
                                                   float *warp_values)
{
    float squares = 0;
    for (int i = (int)threadIdx.x * W; i < n; i += (int)blockDim.x * W) {
        float group[W];
        load_sum<W, ADD>(group, row, addend, i);
        squares = norm_add<W>(squares, group);
    }
    squares = warp_sum(squares);
    if (threadIdx.x % WARP == 0) warp_values[threadIdx.x / WARP] = squares;
    __syncthreads();
    return norm_factor(warp_values, (int)blockDim.x / WARP, n, epsilon);
}

// Returns the largest x of the block's threads, in every thread. Every thread must call it.
static __device__ __forceinline__ float block_max(float x, float *warp_values)
{
    x = warp_max(x);
    if (threadIdx.x % WARP == 0) warp_values[threadIdx.x / WARP] = x;
    __syncthreads();
    float largest = warp_values[0];
    for (int w = 1; w < (int)blockDim.x / WARP; w++)
        largest = fmaxf(largest, warp_values[w]);
    return largest;
}

// Type of the row that a norm reads, and with ADD also writes.
template <bool ADD> struct added {
    typedef const float row;
};
template <> struct added<true> {
    typedef float row;
};

// Has one thread block per row. The row is read twice, the second time from the cache. With ADD and without row_index,
// x is replaced by the sums: each thread stores its sums after its second read.
template <int W, bool ADD>
static __global__ void __launch_bounds__(THREADS_MAX)
    rmsnorm_kernel(__nv_bfloat16 *out, int out_stride, typename added<ADD>::row *x, const __nv_bfloat16 *addend,
                   int addend_stride, const float *gain, float epsilon, const int32_t *row_index, int n)
{
    __shared__ float warp_values[NORM_WARPS_MAX];
    dependents_start();
    dependency_wait();
    int64_t row = row_index ? row_index[blockIdx.x] : (int64_t)blockIdx.x;
    typename added<ADD>::row *from = x + row * n;
    const __nv_bfloat16 *plus = ADD ? addend + row * addend_stride : NULL;
    __nv_bfloat16 *to = out + (int64_t)blockIdx.x * out_stride;
    const int first = (int)threadIdx.x * W, step = (int)blockDim.x * W;
    const float factor = row_factor<W, ADD>(from, plus, n, epsilon, warp_values);
    for (int i = first; i < n; i += step) {
        float group[W], gains[W];
        load_sum<W, ADD>(group, from, plus, i);
        load<W>(gains, gain + i);
        if constexpr (ADD)
            if (!row_index) store<W>(from + i, group);
#pragma unroll
        for (int j = 0; j < W; j++)
            group[j] = norm_value(group[j], factor, gains[j]);
        store<W>(to + i, group);
    }
}

template <bool ADD>
static cudaError_t rmsnorm(cudaStream_t stream, void *out, int out_stride, typename added<ADD>::row *x,
                           const void *addend, int addend_stride, const float *gain, float epsilon,
                           const int32_t *row_index, int rows, int n)
{
    const dim3 grid((unsigned)rows), block((unsigned)norm_threads(n));
    __nv_bfloat16 *bf16 = (__nv_bfloat16 *)out;
    const __nv_bfloat16 *plus = (const __nv_bfloat16 *)addend;
    if (n % WIDE == 0)
        return CUDA_LAUNCH_EARLY((rmsnorm_kernel<WIDE, ADD>), grid, block, 0, stream, bf16, out_stride, x, plus,
                                 addend_stride, gain, epsilon, row_index, n);
    return CUDA_LAUNCH_EARLY((rmsnorm_kernel<1, ADD>), grid, block, 0, stream, bf16, out_stride, x, plus, addend_stride,
                             gain, epsilon, row_index, n);
}

cudaError_t launch_rmsnorm(cudaStream_t stream, void *out, int out_stride, const float *x, const float *gain,
                           float epsilon, const int32_t *row_index, int rows, int n)
{
    return rmsnorm<false>(stream, out, out_stride, x, NULL, 0, gain, epsilon, row_index, rows, n);
}

cudaError_t launch_add_rmsnorm(cudaStream_t stream, void *out, int out_stride, float *x, const void *addend,
                               int addend_stride, const float *gain, float epsilon, const int32_t *row_index, int rows,
                               int n)
{
    return rmsnorm<true>(stream, out, out_stride, x, addend, addend_stride, gain, epsilon, row_index, rows, n);
}

// ---- SwiGLU (arXiv 2002.05202) --------------------------------------------------------------------------------------

static __device__ __forceinline__ float swiglu(float gate, float up)
{
    const float LOG2_E = 1.44269504f;
    return gate / (1 + exp2f(-gate * LOG2_E)) * up;
}

// Grid: rows x stripes of columns.
template <int W>
static __global__ void __launch_bounds__(STRIPE_THREADS)
    swiglu_kernel(__nv_bfloat16 *out, int out_stride, const float *x, int x_stride, int n)
{
    int i = (int)(blockIdx.y * blockDim.x + threadIdx.x) * W;
    if (i >= n) return; // no barrier follows
    const float *from = x + (int64_t)blockIdx.x * x_stride + i;
    float gate[W], up[W];
    load<W>(gate, from);
    load<W>(up, from + n);
#pragma unroll
    for (int j = 0; j < W; j++)
        gate[j] = swiglu(gate[j], up[j]);
    store<W>(out + (int64_t)blockIdx.x * out_stride + i, gate);
}

// Grid of rows x stripes of `threads` groups of w elements.
static dim3 stripes(int rows, int n, int w, int threads)
{
    return dim3((unsigned)rows, (unsigned)((n + w * threads - 1) / (w * threads)));
}

static int stripe_threads(int n)
{
    int threads = norm_threads(n);
    return threads < STRIPE_THREADS ? threads : STRIPE_THREADS;
}

cudaError_t launch_swiglu(cudaStream_t stream, void *out, int out_stride, const float *x, int x_stride, int rows, int n)
{
    __nv_bfloat16 *bf16 = (__nv_bfloat16 *)out;
    int threads = stripe_threads(n);
    if (n % WIDE == 0 && x_stride % 4 == 0)
        return CUDA_LAUNCH(swiglu_kernel<WIDE>, stripes(rows, n, WIDE, threads), dim3((unsigned)threads), 0, stream,
                           bf16, out_stride, x, x_stride, n);
    return CUDA_LAUNCH(swiglu_kernel<1>, stripes(rows, n, 1, threads), dim3((unsigned)threads), 0, stream, bf16,
                       out_stride, x, x_stride, n);
}

// ---- rows as FP8 ----------------------------------------------------------------------------------------------------

// One thread block per row. The row is read twice. Bytes from n on are not written.
template <int W, typename T>
static __global__ void __launch_bounds__(THREADS_MAX)
    quantise_kernel(uint8_t *out, int out_stride, float *row_scale, const T *x, int x_stride, int n)
{
    __shared__ float warp_values[NORM_WARPS_MAX];
    dependents_start();
    dependency_wait();
    const T *from = x + (int64_t)blockIdx.x * x_stride;
    uint8_t *to = out + (int64_t)blockIdx.x * out_stride;
    const int first = (int)threadIdx.x * W, step = (int)blockDim.x * W;
    float largest = 0;
    for (int i = first; i < n; i += step) {
        float group[W];
        load<W>(group, from + i);
#pragma unroll
        for (int j = 0; j < W; j++)
            largest = fmaxf(largest, magnitude(group[j]));
    }
    largest = block_max(largest, warp_values);
    const float factor = e4m3_factor(largest);
    for (int i = first; i < n; i += step) {
        float group[W];
        load<W>(group, from + i);
#pragma unroll
        for (int j = 0; j < W; j++)
            group[j] = factor == 0 ? 0 : group[j] * factor;
        store_bytes<W>(to + i, group);
    }
    if (threadIdx.x == 0) row_scale[blockIdx.x] = e4m3_scale(largest);
}

template <typename T>
static cudaError_t quantise(cudaStream_t stream, void *out, int out_stride, float *row_scale, const void *x,
                            int x_stride, int rows, int n)
{
    uint8_t *bytes = (uint8_t *)out;
    const T *from = (const T *)x;
    if (n % WIDE == 0 && x_stride % WIDE == 0 && out_stride % WIDE == 0)
        return CUDA_LAUNCH_EARLY((quantise_kernel<WIDE, T>), dim3((unsigned)rows), dim3((unsigned)norm_threads(n)), 0,
                                 stream, bytes, out_stride, row_scale, from, x_stride, n);
    return CUDA_LAUNCH_EARLY((quantise_kernel<1, T>), dim3((unsigned)rows), dim3((unsigned)norm_threads(n)), 0, stream,
                             bytes, out_stride, row_scale, from, x_stride, n);
}

cudaError_t launch_quantise_rows(cudaStream_t stream, void *out, int out_stride, float *row_scale, const void *x,
                                 bool x_f32, int x_stride, int rows, int n)
{
    return (x_f32 ? quantise<float> : quantise<__nv_bfloat16>)(stream, out, out_stride, row_scale, x, x_stride, rows,
                                                               n);
}

// One warp per row and block.
static __global__ void __launch_bounds__(STRIPE_THREADS)
    quantise_blocks_kernel(uint8_t *out, int out_stride, float *row_scale, int scale_stride, const __nv_bfloat16 *x,
                           int x_stride, int n)
{
    const int EACH = FP8_BLOCK / WARP; // number of values of a lane
    dependents_start();
    dependency_wait();
    const int lane = (int)threadIdx.x % WARP, block = (int)(blockIdx.y * blockDim.x + threadIdx.x) / WARP;
    const int i = block * FP8_BLOCK + lane * EACH;
    if (block * FP8_BLOCK >= n) return; // ends the whole warp
    float values[EACH], largest = 0;
#pragma unroll
    for (int j = 0; j < EACH; j++) {
        values[j] = i + j < n ? __bfloat162float(x[(int64_t)blockIdx.x * x_stride + i + j]) : 0;
        largest = fmaxf(largest, magnitude(values[j]));
    }
    largest = warp_max(largest);
    const float factor = e4m3_factor(largest);
#pragma unroll
    for (int j = 0; j < EACH; j++)
        if (i + j < n)
            out[(int64_t)blockIdx.x * out_stride + i + j] = e4m3_from_float(factor == 0 ? 0 : values[j] * factor);
    if (lane == 0) row_scale[(int64_t)block * scale_stride + blockIdx.x] = e4m3_scale(largest);
}

cudaError_t launch_quantise_blocks(cudaStream_t stream, void *out, int out_stride, float *row_scale, int scale_stride,
                                   const void *x, int x_stride, int rows, int n)
{
    const int blocks = (n + FP8_BLOCK - 1) / FP8_BLOCK, warps = min(blocks, (int)STRIPE_THREADS / WARP);
    return CUDA_LAUNCH_EARLY(quantise_blocks_kernel, dim3((unsigned)rows, (unsigned)((blocks + warps - 1) / warps)),
                             dim3((unsigned)(warps * WARP)), 0, stream, (uint8_t *)out, out_stride, row_scale,
                             scale_stride, (const __nv_bfloat16 *)x, x_stride, n);
}

// ---- RMSNorm to FP8 -------------------------------------------------------------------------------------------------

// Computes results i to i + 7 of the norm, rounded as in launch_rmsnorm. Columns that do not exist become zeros.
template <int W, bool ADD>
static __device__ __forceinline__ void normed_group(float group[WIDE], const float *row, const __nv_bfloat16 *addend,
                                                    const float *gain, float factor, int i, int n)
{
    float gains[WIDE];
#pragma unroll
    for (int j = 0; j < WIDE; j += W) {
        const bool there = i + j < n;
        if (there) load_sum<W, ADD>(group + j, row, addend, i + j);
        if (there) load<W>(gains + j, gain + i + j);
#pragma unroll
        for (int k = j; k < j + W; k++)
            group[k] = there ? __bfloat162float(__float2bfloat16_rn(norm_value(group[k], factor, gains[k]))) : 0;
    }
}

static __device__ __forceinline__ float group_largest(const float group[WIDE])
{
    float largest = 0;
#pragma unroll
    for (int j = 0; j < WIDE; j++)
        largest = fmaxf(largest, magnitude(group[j]));
    return largest;
}

static __device__ __forceinline__ void store_quantised(uint8_t *to, const float group[WIDE], float factor)
{
    float values[WIDE];
#pragma unroll
    for (int j = 0; j < WIDE; j++)
        values[j] = factor == 0 ? 0 : group[j] * factor;
    store_bytes<WIDE>(to, values);
}

// Stores sums i .. i + 7 in x.
template <int W> static __device__ __forceinline__ void store_sums(float *x, const __nv_bfloat16 *addend, int i, int n)
{
    float sums[W];
#pragma unroll 1
    for (int j = i; j < i + WIDE && j < n; j += W) {
        load_sum<W, true>(sums, x, addend, j);
        store<W>(x + j, sums);
    }
}

// Has one thread block per row. The row is read three times, the second and third time from the cache. Sixteen threads
// share a block of FP8_BLOCK columns.
template <int W, bool BLOCKS, bool ADD>
static __global__ void __launch_bounds__(THREADS_MAX)
    rmsnorm_fp8_kernel(uint8_t *out, int out_stride, float *row_scale, int scale_stride, typename added<ADD>::row *x,
                       const __nv_bfloat16 *addend, int addend_stride, const float *gain, float epsilon,
                       const int32_t *row_index, int n)
{
    __shared__ float warp_squares[NORM_WARPS_MAX], warp_largest[NORM_WARPS_MAX];
    dependents_start();
    dependency_wait();
    const int64_t row = row_index ? row_index[blockIdx.x] : (int64_t)blockIdx.x;
    typename added<ADD>::row *from = x + row * n;
    const __nv_bfloat16 *plus = ADD ? addend + row * addend_stride : NULL;
    uint8_t *to = out + (int64_t)blockIdx.x * out_stride;
    const int mine = (int)threadIdx.x * WIDE, step = (int)blockDim.x * WIDE;
    const float norm = row_factor<W, ADD>(from, plus, n, epsilon, warp_squares);
    float largest = 0, group[WIDE];
    for (int i = mine; !BLOCKS && i < n; i += step) {
        normed_group<W, ADD>(group, from, plus, gain, norm, i, n);
        largest = fmaxf(largest, group_largest(group));
    }
    if (!BLOCKS) largest = block_max(largest, warp_largest);
    for (int first = 0; first < out_stride; first += step) { // every lane takes part, for the shuffles
        const int i = first + mine;
        normed_group<W, ADD>(group, from, plus, gain, norm, i, n);
        if (BLOCKS) {
            largest = group_largest(group);
#pragma unroll
            for (int lanes = 1; lanes < FP8_BLOCK / WIDE; lanes *= 2)
                largest = fmaxf(largest, __shfl_xor_sync(FULL_WARP, largest, lanes));
            if (i % FP8_BLOCK == 0 && i < out_stride)
                row_scale[(int64_t)(i / FP8_BLOCK) * scale_stride + blockIdx.x] = e4m3_scale(largest);
        }
        if (i < out_stride) store_quantised(to + i, group, e4m3_factor(largest));
    }
    if (!BLOCKS && threadIdx.x == 0) row_scale[blockIdx.x] = e4m3_scale(largest);
    if constexpr (ADD)
        for (int i = mine; !row_index && i < n; i += step)
            store_sums<W>(from, plus, i, n);
}

template <int W, bool BLOCKS, bool ADD>
static cudaError_t rmsnorm_fp8(cudaStream_t stream, void *out, int out_stride, float *row_scale, int scale_stride,
                               typename added<ADD>::row *x, const void *addend, int addend_stride, const float *gain,
                               float epsilon, const int32_t *row_index, int rows, int n)
{
    return CUDA_LAUNCH_EARLY((rmsnorm_fp8_kernel<W, BLOCKS, ADD>), dim3((unsigned)rows),
                             dim3((unsigned)norm_threads(n)), 0, stream, (uint8_t *)out, out_stride, row_scale,
                             scale_stride, x, (const __nv_bfloat16 *)addend, addend_stride, gain, epsilon, row_index,
                             n);
}

cudaError_t launch_rmsnorm_fp8(cudaStream_t stream, void *out, int out_stride, float *row_scale, int scale_stride,
                               const float *x, const float *gain, float epsilon, const int32_t *row_index, int rows,
                               int n)
{
    const bool wide = n % WIDE == 0;
    return (scale_stride ? wide ? rmsnorm_fp8<WIDE, true, false> : rmsnorm_fp8<1, true, false>
            : wide ? rmsnorm_fp8<WIDE, false, false>
                   : rmsnorm_fp8<1, false, false>)(stream, out, out_stride, row_scale, scale_stride, x, NULL, 0, gain,
                                                   epsilon, row_index, rows, n);
}

cudaError_t launch_add_rmsnorm_fp8(cudaStream_t stream, void *out, int out_stride, float *row_scale, float *x,
                                   const void *addend, int addend_stride, const float *gain, float epsilon,
                                   const int32_t *row_index, int rows, int n)
{
    return (n % WIDE == 0 ? rmsnorm_fp8<WIDE, false, true>
                          : rmsnorm_fp8<1, false, true>)(stream, out, out_stride, row_scale, 0, x, addend,
                                                         addend_stride, gain, epsilon, row_index, rows, n);
}

// ---- SwiGLU to FP8 --------------------------------------------------------------------------------------------------

// Has one thread block per row, which keeps the results as bf16 in shared memory until their largest magnitude is
// known.
template <int W>
static __global__ void __launch_bounds__(THREADS_MAX)
    swiglu_fp8_kernel(uint8_t *out, int out_stride, float *row_scale, const float *x, int x_stride, int n)
{
    __shared__ float warp_values[NORM_WARPS_MAX];
    DYNAMIC_SHARED(__nv_bfloat16, results);
    const float *from = x + (int64_t)blockIdx.x * x_stride;
    const int step = (int)blockDim.x * W;
    float largest = 0;
    for (int i = (int)threadIdx.x * W; i < n; i += step) {
        float gate[W], up[W];
        load<W>(gate, from + i);
        load<W>(up, from + n + i);
#pragma unroll
        for (int j = 0; j < W; j++)
            gate[j] = swiglu(gate[j], up[j]);
        store<W>(results + i, gate);
        load<W>(gate, results + i);
#pragma unroll
        for (int j = 0; j < W; j++)
            largest = fmaxf(largest, magnitude(gate[j]));
    }
    largest = block_max(largest, warp_values); // its barrier also makes all results visible
    for (int i = (int)threadIdx.x * WIDE; i < out_stride; i += (int)blockDim.x * WIDE) {
        float group[WIDE];
#pragma unroll
        for (int j = 0; j < WIDE; j++)
            group[j] = i + j < n ? __bfloat162float(results[i + j]) : 0;
        store_quantised(out + (int64_t)blockIdx.x * out_stride + i, group, e4m3_factor(largest));
    }
    if (threadIdx.x == 0) row_scale[blockIdx.x] = e4m3_scale(largest);
}

cudaError_t launch_swiglu_fp8(cudaStream_t stream, void *out, int out_stride, float *row_scale, const float *x,
                              int x_stride, int rows, int n)
{
    uint8_t *bytes = (uint8_t *)out;
    const size_t shared = (size_t)n * sizeof(__nv_bfloat16);
    if (n % WIDE == 0 && x_stride % 4 == 0)
        return CUDA_LAUNCH(swiglu_fp8_kernel<WIDE>, dim3((unsigned)rows), dim3((unsigned)norm_threads(n)), shared,
                           stream, bytes, out_stride, row_scale, x, x_stride, n);
    return CUDA_LAUNCH(swiglu_fp8_kernel<1>, dim3((unsigned)rows), dim3((unsigned)norm_threads(n)), shared, stream,
                       bytes, out_stride, row_scale, x, x_stride, n);
}

// ---- weights from FP8 -----------------------------------------------------------------------------------------------

// Grid: rows x stripes of columns.
static __global__ void __launch_bounds__(STRIPE_THREADS)
    dequantise_kernel(__nv_bfloat16 *out, const uint8_t *bytes, int stride, const float *scale, int scale_stride,
                      int64_t first)
{
    const int i = (int)(blockIdx.y * blockDim.x + threadIdx.x) * WIDE;
    if (i >= stride) return; // no barrier follows
    const int64_t row = first + blockIdx.x;
    const float by = scale_stride ? scale[row / FP8_BLOCK * scale_stride + i / FP8_BLOCK] : scale[row];
    const eight_bytes group = *reinterpret_cast<const eight_bytes *>(bytes + row * stride + i);
    float values[WIDE];
#pragma unroll
    for (int j = 0; j < WIDE; j++)
        values[j] = float_from_e4m3(group.of[j]) * by;
    store<WIDE>(out + (int64_t)blockIdx.x * stride + i, values);
}

cudaError_t launch_dequantise(cudaStream_t stream, void *out, const void *bytes, int stride, const float *scale,
                              int scale_stride, int64_t first, int rows)
{
    const int threads = min(norm_threads(stride), (int)STRIPE_THREADS);
    const int stripes = (stride + WIDE * threads - 1) / (WIDE * threads);
    return CUDA_LAUNCH(dequantise_kernel, dim3((unsigned)rows, (unsigned)stripes), dim3((unsigned)threads), 0, stream,
                       (__nv_bfloat16 *)out, (const uint8_t *)bytes, stride, scale, scale_stride, first);
}

// ---- gemm epilogue --------------------------------------------------------------------------------------------------

// Grid: rows x stripes of columns. x may be out.
template <int W, bool ADD, typename T>
static __global__ void __launch_bounds__(STRIPE_THREADS)
    epilogue_kernel(T *out, int out_stride, const float *x, int x_stride, const float *row_scale,
                    const float *column_scale, const float *bias, int n)
{
    int i = (int)(blockIdx.y * blockDim.x + threadIdx.x) * W;
    if (i >= n) return; // no barrier follows
    float y[W], column[W];
    load<W>(y, x + (int64_t)blockIdx.x * x_stride + i);
    if (row_scale) {
        float scale = row_scale[blockIdx.x];
#pragma unroll
        for (int j = 0; j < W; j++)
            y[j] *= scale;
    }
    if (column_scale) {
        load<W>(column, column_scale + i);
#pragma unroll
        for (int j = 0; j < W; j++)
            y[j] *= column[j];
    }
    if (bias) {
        load<W>(column, bias + i);
#pragma unroll
        for (int j = 0; j < W; j++)
            y[j] += column[j];
    }
    T *to = out + (int64_t)blockIdx.x * out_stride + i;
    if (ADD) {
        load<W>(column, to);
#pragma unroll
        for (int j = 0; j < W; j++)
            y[j] += column[j];
    }
    store<W>(to, y);
}

template <bool ADD, typename T>
static cudaError_t epilogue(cudaStream_t stream, void *out, int out_stride, const float *x, int x_stride,
                            const float *row_scale, const float *column_scale, const float *bias, int rows, int n)
{
    int threads = stripe_threads(n);
    if (n % WIDE == 0 && x_stride % WIDE == 0 && out_stride % WIDE == 0)
        return CUDA_LAUNCH((epilogue_kernel<WIDE, ADD, T>), stripes(rows, n, WIDE, threads), dim3((unsigned)threads), 0,
                           stream, (T *)out, out_stride, x, x_stride, row_scale, column_scale, bias, n);
    return CUDA_LAUNCH((epilogue_kernel<1, ADD, T>), stripes(rows, n, 1, threads), dim3((unsigned)threads), 0, stream,
                       (T *)out, out_stride, x, x_stride, row_scale, column_scale, bias, n);
}

cudaError_t launch_epilogue(cudaStream_t stream, void *out, int out_stride, bool out_bf16, bool add, const float *x,
                            int x_stride, const float *row_scale, const float *column_scale, const float *bias,
                            int rows, int n)
{
    if (out_bf16)
        return epilogue<false, __nv_bfloat16>(stream, out, out_stride, x, x_stride, row_scale, column_scale, bias, rows,
                                              n);
    return (add ? epilogue<true, float> : epilogue<false, float>)(stream, out, out_stride, x, x_stride, row_scale,
                                                                  column_scale, bias, rows, n);
}
