// SPDX-License-Identifier: Apache-2.0
// Gemms by weights of 4 bits. A warp computes one output (with SwiGLU one of gate and the one of up) of up to GEMV_ROWS
// rows, and more rows take more thread blocks. So a row has the same bits for any number of rows. A lane loads a word
// of eight codes, and the 32 words of a step are contiguous. It multiplies the rows by code - zero in f32, and adds the
// sum of a word times the scale of its group. Many rows read a weight once for every GEMV_ROWS of them: this kernel is
// made for decode.
#include "kernels/cuda/device.h"
#include "kernels/cuda/few_rows.h"
#include "kernels/cuda/launch.h"

enum { OUTPUTS = 4, GROUP_WORDS = INT4_GROUP_SIZE / INT4_WORD_CODES };

// The words, scales and zeros of one output.
struct output_weights {
    const uint32_t *words;
    const float *scale;
    const uint8_t *zero;
};

static __device__ __forceinline__ output_weights weights_of(const struct gemv *a, int output)
{
    const int64_t words = a->k / INT4_WORD_CODES, groups = (words + GROUP_WORDS - 1) / GROUP_WORDS;
    const uint8_t *zeros = reinterpret_cast<const uint8_t *>(a->column_scale + a->n * groups);
    return {static_cast<const uint32_t *>(a->w) + output * words, a->column_scale + output * groups,
            zeros + output * groups};
}

// Adds the lane's products of one output to sum [rows].
static __device__ __forceinline__ void add_products(float sum[GEMV_ROWS], const struct gemv *a, int output,
                                                    const __nv_bfloat16 *x, int rows)
{
    const output_weights w = weights_of(a, output);
    for (int at = (int)threadIdx.x % WARP; at < a->k / INT4_WORD_CODES; at += WARP) {
        const uint32_t word = w.words[at];
        const float scale = w.scale[at / GROUP_WORDS];
        const int zero = w.zero[at / GROUP_WORDS];
        float weight[INT4_WORD_CODES];
#pragma unroll
        for (int i = 0; i < INT4_WORD_CODES; i++)
            weight[i] = (float)((int)(word >> 4 * i & 15) - zero);
#pragma unroll
        for (int r = 0; r < GEMV_ROWS; r++) {
            if (r >= rows) continue;
            const uint4 eight = *reinterpret_cast<const uint4 *>(x + (int64_t)r * a->x_stride + at * INT4_WORD_CODES);
            const uint32_t pairs[4] = {eight.x, eight.y, eight.z, eight.w};
            float part = 0;
#pragma unroll
            for (int i = 0; i < 4; i++) {
                part = fmaf(__uint_as_float(pairs[i] << 16), weight[2 * i], part);
                part = fmaf(__uint_as_float(pairs[i] & 0xffff0000), weight[2 * i + 1], part);
            }
            sum[r] = fmaf(part, scale, sum[r]);
        }
    }
#pragma unroll
    for (int r = 0; r < GEMV_ROWS; r++)
#pragma unroll
        for (int lanes = WARP / 2; lanes; lanes /= 2)
            sum[r] += __shfl_xor_sync(FULL_WARP, sum[r], lanes);
}

// Grid: groups of OUTPUTS outputs x chunks of GEMV_ROWS rows.
static __global__ void __launch_bounds__(OUTPUTS *WARP) int4_kernel(struct gemv a)
{
    const bool swiglu = a.mode == GEMV_SWIGLU;
    const int output = (int)blockIdx.x * OUTPUTS + (int)threadIdx.x / WARP, first = (int)blockIdx.y * GEMV_ROWS;
    const int rows = min(a.rows - first, (int)GEMV_ROWS);
    if (output >= (swiglu ? a.n / 2 : a.n)) return; // no barrier follows
    const __nv_bfloat16 *x = static_cast<const __nv_bfloat16 *>(a.x) + (int64_t)first * a.x_stride;
    float sum[GEMV_ROWS] = {}, up[GEMV_ROWS] = {};
    add_products(sum, &a, output, x, rows);
    if (swiglu) add_products(up, &a, output + a.n / 2, x, rows);
    if (threadIdx.x % WARP != 0) return;
    for (int r = 0; r < rows; r++) {
        const int row = first + r;
        if (swiglu)
            static_cast<__nv_bfloat16 *>(a.out)[(int64_t)row * a.out_stride + output] = few_swiglu(sum[r], up[r]);
        else
            few_store(&a, row, output, sum[r]);
    }
}

cudaError_t launch_int4_gemm(cudaStream_t stream, const struct gemv *gemv)
{
    const int outputs = gemv->mode == GEMV_SWIGLU ? gemv->n / 2 : gemv->n;
    const dim3 grid((unsigned)((outputs + OUTPUTS - 1) / OUTPUTS),
                    (unsigned)((gemv->rows + GEMV_ROWS - 1) / GEMV_ROWS));
    return CUDA_LAUNCH(int4_kernel, grid, dim3(OUTPUTS * WARP), 0, stream, *gemv);
}
