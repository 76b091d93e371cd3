// SPDX-License-Identifier: Apache-2.0
// Steps over rows that only some families of models have. They are bound by memory: the threads of a block access
// neighbouring elements. A row belongs to one block, and its sums run in one order.
#include "kernels/cuda/launch.h"
#include "kernels/cuda/norm.h"

enum { THREADS = 256 };

static dim3 grid_of(int rows, int n)
{
    return dim3((unsigned)rows, (unsigned)((n + THREADS - 1) / THREADS));
}

static __device__ __forceinline__ int column_of(void)
{
    return (int)(blockIdx.y * THREADS + threadIdx.x);
}

// ---- activations ----------------------------------------------------------------------------------------------------

// Returns e^x - 1 for x <= 0: a series near 0, where the difference would lose digits.
static __device__ __forceinline__ float expm1_below(float x)
{
    const float LOG2_E = 1.44269504f;
    float series = 1;
    if (x < -0.5f) return exp2f(x * LOG2_E) - 1;
    for (int k = 9; k > 1; k--)
        series = __fmaf_rn(series, x * (1 / (float)k), 1);
    return series * x;
}

static __device__ __forceinline__ float activation_value(const struct activation *a, float x, float up)
{
    const float LOG2_E = 1.44269504f;
    if (a->kind == ACTIVATION_SWIGLU) return x / (1 + exp2f(-x * LOG2_E)) * up;
    if (a->kind == ACTIVATION_RELU2) return x < 0 ? 0 : x * x;
    const float below = x > a->epsilon ? a->epsilon : x;
    const float curved = x > 0 ? __fmul_rn(__fmul_rn(x, x), a->a) : __fmul_rn(expm1_below(below) - x, a->b);
    return __fmaf_rn(x, a->beta, curved);
}

static __global__ void __launch_bounds__(THREADS)
    activate_kernel(__nv_bfloat16 *out, int out_stride, const float *x, struct activation a, int n)
{
    const int i = column_of(), parts = a.kind == ACTIVATION_SWIGLU ? 2 : 1;
    if (i >= n) return;
    const float *from = x + (int64_t)blockIdx.x * parts * n + i;
    out[(int64_t)blockIdx.x * out_stride + i] =
        __float2bfloat16_rn(activation_value(&a, from[0], parts == 2 ? from[n] : 0));
}

cudaError_t launch_activate(cudaStream_t stream, void *out, int out_stride, const float *x, const struct activation *a,
                            int rows, int n)
{
    return CUDA_LAUNCH(activate_kernel, grid_of(rows, n), dim3(THREADS), 0, stream, (__nv_bfloat16 *)out, out_stride, x,
                       *a, n);
}

// ---- norms of outputs -----------------------------------------------------------------------------------------------

// Returns the sum of squares of n values, in every thread of the block.
static __device__ __forceinline__ float block_squares(const float *x, int n, float *warp_values)
{
    float squares = 0, sum = 0;
    for (int i = (int)threadIdx.x; i < n; i += THREADS)
        squares = __fmaf_rn(x[i], x[i], squares);
    squares = warp_sum(squares);
    if (threadIdx.x % WARP == 0) warp_values[threadIdx.x / WARP] = squares;
    __syncthreads();
    for (int w = 0; w < THREADS / WARP; w++)
        sum += warp_values[w];
    return sum;
}

static __global__ void __launch_bounds__(THREADS)
    add_norm_kernel(__nv_bfloat16 *out, int out_stride, float *x, const float *addend, const float *gain, float epsilon,
                    int n)
{
    __shared__ float warp_values[THREADS / WARP];
    float *row = x + (int64_t)blockIdx.x * n;
    const float *plus = addend ? addend + (int64_t)blockIdx.x * n : NULL;
    const float factor = plus ? 1 / sqrtf(block_squares(plus, n, warp_values) / (float)n + epsilon) : 0;
    for (int i = (int)threadIdx.x; i < n; i += THREADS) {
        if (plus) row[i] = __fadd_rn(row[i], norm_value(plus[i], factor, gain[i]));
        out[(int64_t)blockIdx.x * out_stride + i] = __float2bfloat16_rn(row[i]);
    }
}

cudaError_t launch_add_norm(cudaStream_t stream, void *out, int out_stride, float *x, const float *addend,
                            const float *gain, float epsilon, int rows, int n)
{
    return CUDA_LAUNCH(add_norm_kernel, dim3((unsigned)rows), dim3(THREADS), 0, stream, (__nv_bfloat16 *)out,
                       out_stride, x, addend, gain, epsilon, n);
}

// ---- norms of all heads ---------------------------------------------------------------------------------------------

static __global__ void __launch_bounds__(THREADS)
    sum_squares_kernel(float *squares, const float *qkv, int stride, int q, int k)
{
    __shared__ float q_values[THREADS / WARP], k_values[THREADS / WARP];
    const float *row = qkv + (int64_t)blockIdx.x * stride;
    const float of_q = block_squares(row, q, q_values), of_k = block_squares(row + q, k, k_values);
    if (threadIdx.x) return;
    squares[2 * blockIdx.x] = of_q;
    squares[2 * blockIdx.x + 1] = of_k;
}

cudaError_t launch_sum_squares(cudaStream_t stream, float *squares, const float *qkv, int stride, int rows, int q,
                               int k)
{
    return CUDA_LAUNCH(sum_squares_kernel, dim3((unsigned)rows), dim3(THREADS), 0, stream, squares, qkv, stride, q, k);
}

static __global__ void __launch_bounds__(THREADS) norm_whole_kernel(float *qkv, struct whole_rows n)
{
    const int i = column_of(), is_k = i >= n.q;
    if (i >= n.q + n.k) return;
    const float mean = n.squares[2 * blockIdx.x + is_k] / (float)(is_k ? n.k_dims : n.q_dims);
    float *value = qkv + (int64_t)blockIdx.x * n.stride + i;
    *value = norm_value(*value, 1 / sqrtf(mean + n.epsilon), is_k ? n.k_gain[i - n.q] : n.q_gain[i]);
}

cudaError_t launch_norm_whole(cudaStream_t stream, float *qkv, const struct whole_rows *norm, int rows)
{
    return CUDA_LAUNCH(norm_whole_kernel, grid_of(rows, norm->q + norm->k), dim3(THREADS), 0, stream, qkv, *norm);
}

// ---- queries --------------------------------------------------------------------------------------------------------

static __global__ void __launch_bounds__(THREADS)
    scale_queries_kernel(float *qkv, int stride, const int32_t *position, float beta, int context, int n)
{
    const int i = column_of();
    if (i < n) qkv[(int64_t)blockIdx.x * stride + i] *= rope_query_scale(position[blockIdx.x], beta, context);
}

cudaError_t launch_scale_queries(cudaStream_t stream, float *qkv, int stride, const int32_t *position, float beta,
                                 int context, int rows, int n)
{
    return CUDA_LAUNCH(scale_queries_kernel, grid_of(rows, n), dim3(THREADS), 0, stream, qkv, stride, position, beta,
                       context, n);
}
