// SPDX-License-Identifier: Apache-2.0
// Gemms of up to GEMV_ROWS rows, as decode passes have them: bound by reading the weight, once, at the speed of memory.
// A row's result has the same bits for any number of rows up to GEMV_ROWS and at any place among them.
//
// A tile is 16 outputs. The warps of a block divide K among them and each multiplies its part of the tile's weight by
// all rows with tensor cores (16 outputs x 8 rows); the sums of the warps are added in order. How K is divided depends
// on K alone. A weight goes from memory to the registers that multiply it, in the layout it has: lane (g, c) of a warp
// loads 16 bytes of outputs g and g + 8, and the same columns of row g. An mma sums over its columns in one group, so
// their order does not matter as long as weight and rows have the same.
//
// In flight: a stage is 8 loads of 16 bytes per lane, 4 KiB per warp, and the next stage, also of the next tile, is
// loaded before this one is multiplied. Two blocks of 8 warps per multiprocessor are 64 to 128 KiB, where 4.8 TB/s
// times 1 us over 132 multiprocessors is 36 KiB. The first stage is loaded, and more of the weight is brought into the
// L2 cache, while the kernel before still runs (dependent.h): decode is a chain of short kernels, in whose gaps memory
// would idle.
//
// SwiGLU: a tile is 8 outputs of gate and the same 8 of up, so that the two meet in one thread.
#include "kernels/cuda/dependent.h"
#include "kernels/cuda/geometry.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/ptx.h"

enum { WARPS = 8, THREADS = WARPS * WARP, TILE = 16, STEPS = 4, GROUP = 16, PREFETCHED = 2 };

// How a weight is stored. COLUMNS: of 16 bytes. A stage has STEPS steps of 4 lanes of 16 bytes.
template <bool FP8> struct stored {
    enum { BYTES = FP8 ? 1 : 2, COLUMNS = GROUP / BYTES, STEP = 4 * COLUMNS, STAGE = STEPS * STEP };
};

// One stage of a weight: 16 bytes of outputs g and g + 8 for every step.
struct stage {
    uint4 low[STEPS], high[STEPS];
};

// Output i of a tile. Outputs that do not exist are the last one.
static __device__ __forceinline__ int tile_output(const struct gemv *a, int tile, int i)
{
    if (a->mode == GEMV_SWIGLU) return min(tile * (TILE / 2) + i % 8, a->n / 2 - 1) + (i < 8 ? 0 : a->n / 2);
    return min(tile * TILE + i, a->n - 1);
}

template <bool FP8> static __device__ __forceinline__ const char *output_at(const struct gemv *a, int tile, int i)
{
    return static_cast<const char *>(a->w) + (int64_t)tile_output(a, tile, i) * a->k * stored<FP8>::BYTES;
}

template <bool FP8>
static __device__ __forceinline__ void load_stage(struct stage *to, const struct gemv *a, int tile, int s)
{
    const int lane = (int)threadIdx.x % WARP;
    const char *low = output_at<FP8>(a, tile, lane / 4), *high = output_at<FP8>(a, tile, lane / 4 + 8);
#pragma unroll
    for (int i = 0; i < STEPS; i++) {
        const int column = s * stored<FP8>::STAGE + i * stored<FP8>::STEP + lane % 4 * stored<FP8>::COLUMNS;
        to->low[i] = to->high[i] = make_uint4(0, 0, 0, 0);
        if (column >= a->k) continue;
        to->low[i] = load_streamed(low + column * stored<FP8>::BYTES);
        to->high[i] = load_streamed(high + column * stored<FP8>::BYTES);
    }
}

// A stage of an output is two lines, if the weight begins at a line.
template <bool FP8> static __device__ __forceinline__ void prefetch_stage(const struct gemv *a, int tile, int s)
{
    const int lane = (int)threadIdx.x % WARP;
    const int column = s * stored<FP8>::STAGE + lane % 2 * (stored<FP8>::STAGE / 2);
    if (column < a->k) prefetch_line(output_at<FP8>(a, tile, lane / 2) + column * stored<FP8>::BYTES);
}

// 16 bytes of row g, zeros for rows and columns that do not exist.
template <bool FP8> static __device__ __forceinline__ uint4 load_row(const struct gemv *a, int g, int column)
{
    if (g >= a->rows || column >= a->k) return make_uint4(0, 0, 0, 0);
    const char *row = static_cast<const char *>(a->x) + (int64_t)g * a->x_stride * stored<FP8>::BYTES;
    return *reinterpret_cast<const uint4 *>(row + column * stored<FP8>::BYTES);
}

static __device__ __forceinline__ void multiply_bf16(float sum[4], uint4 low, uint4 high, uint4 x)
{
    const uint32_t first[4] = {low.x, high.x, low.y, high.y}, second[4] = {low.z, high.z, low.w, high.w};
    mma_bf16(sum, first, x.x, x.y);
    mma_bf16(sum, second, x.z, x.w);
}

static __device__ __forceinline__ void multiply_e4m3(float sum[4], uint4 low, uint4 high, uint4 x)
{
    multiply_bf16(sum, bf16_from_e4m3x8(make_uint2(low.x, low.y)), bf16_from_e4m3x8(make_uint2(high.x, high.y)),
                  bf16_from_e4m3x8(make_uint2(x.x, x.y)));
    multiply_bf16(sum, bf16_from_e4m3x8(make_uint2(low.z, low.w)), bf16_from_e4m3x8(make_uint2(high.z, high.w)),
                  bf16_from_e4m3x8(make_uint2(x.z, x.w)));
}

// Adds the sums of one block of FP8_BLOCK columns, times the scales of weight and row.
static __device__ __forceinline__ void add_block(float sum[4], const float part[4], const struct gemv *a, int tile,
                                                 int block)
{
    const int lane = (int)threadIdx.x % WARP, g = lane / 4, c = lane % 4;
    if (block * FP8_BLOCK >= a->k) return;
    const float low = a->column_scale[tile_output(a, tile, g) / FP8_BLOCK * a->block_stride + block];
    const float high = a->column_scale[tile_output(a, tile, g + 8) / FP8_BLOCK * a->block_stride + block];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int row = 2 * c + i;
        const float scale = row < a->rows ? a->row_scale[block * a->row_scale_stride + row] : 0;
        sum[i] += part[i] * (low * scale);
        sum[i + 2] += part[i + 2] * (high * scale);
    }
}

template <bool FP8, bool BLOCKS>
static __device__ __forceinline__ void multiply_stage(float sum[4], const struct stage *w, const struct gemv *a,
                                                      int tile, int s)
{
    const int lane = (int)threadIdx.x % WARP, PER_BLOCK = FP8_BLOCK / stored<FP8>::STEP;
    const int column = s * stored<FP8>::STAGE + lane % 4 * stored<FP8>::COLUMNS;
    uint4 x[STEPS];
#pragma unroll
    for (int i = 0; i < STEPS; i++)
        x[i] = load_row<FP8>(a, lane / 4, column + i * stored<FP8>::STEP);
    float part[4] = {0, 0, 0, 0};
#pragma unroll
    for (int i = 0; i < STEPS; i++) {
        if (FP8)
            multiply_e4m3(BLOCKS ? part : sum, w->low[i], w->high[i], x[i]);
        else
            multiply_bf16(sum, w->low[i], w->high[i], x[i]);
        if (!BLOCKS || (i + 1) % PER_BLOCK) continue;
        add_block(sum, part, a, tile, s * (STEPS / PER_BLOCK) + i / PER_BLOCK);
#pragma unroll
        for (int k = 0; k < 4; k++)
            part[k] = 0;
    }
}

// ---- the end of a tile ----------------------------------------------------------------------------------------------

// Sums of the warps of a tile.
typedef float tile_sums[WARPS][GEMV_ROWS][TILE];

static __device__ __forceinline__ void store_sums(tile_sums all, const float sum[4])
{
    const int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP, g = lane / 4, c = lane % 4;
#pragma unroll
    for (int i = 0; i < 4; i++)
        all[warp][2 * c + i % 2][g + i / 2 * 8] = sum[i];
}

template <bool SCALED>
static __device__ __forceinline__ float total(const tile_sums all, const struct gemv *a, int tile, int row, int i)
{
    float sum = all[0][row][i];
#pragma unroll
    for (int w = 1; w < WARPS; w++)
        sum += all[w][row][i];
    return SCALED ? sum * a->row_scale[row] * a->column_scale[tile_output(a, tile, i)] : sum;
}

template <bool SCALED>
static __device__ __forceinline__ void finish_swiglu(const tile_sums all, const struct gemv *a, int tile)
{
    const float LOG2_E = 1.44269504f;
    const int i = (int)threadIdx.x % 8, row = (int)threadIdx.x / 8, output = tile * (TILE / 2) + i;
    if (row >= a->rows || output >= a->n / 2) return;
    const float gate = total<SCALED>(all, a, tile, row, i), up = total<SCALED>(all, a, tile, row, i + 8);
    static_cast<__nv_bfloat16 *>(a->out)[(int64_t)row * a->out_stride + output] =
        __float2bfloat16_rn(gate / (1 + exp2f(-gate * LOG2_E)) * up);
}

template <bool SCALED>
static __device__ __forceinline__ void finish_tile(const tile_sums all, const struct gemv *a, int tile)
{
    const int i = (int)threadIdx.x % TILE, row = (int)threadIdx.x / TILE, output = tile * TILE + i;
    if (row >= a->rows || output >= a->n) return;
    float y = total<SCALED>(all, a, tile, row, i);
    if (a->bias) y += a->bias[output];
    const int64_t at = (int64_t)row * a->out_stride + output;
    if (a->mode == GEMV_BF16)
        static_cast<__nv_bfloat16 *>(a->out)[at] = __float2bfloat16_rn(y);
    else
        static_cast<float *>(a->out)[at] = a->mode == GEMV_ADD ? static_cast<const float *>(a->out)[at] + y : y;
}

// ---- all tiles ------------------------------------------------------------------------------------------------------

HOST_DEVICE static inline int gemv_tiles(const struct gemv *a)
{
    return a->mode == GEMV_SWIGLU ? (a->n / 2 + TILE / 2 - 1) / (TILE / 2) : (a->n + TILE - 1) / TILE;
}

// Grid: as many blocks as run at once, or as there are tiles; the blocks take the tiles in turn.
template <bool FP8, bool BLOCKS> static __global__ void __launch_bounds__(THREADS, 2) gemv_kernel(struct gemv a)
{
    __shared__ tile_sums sums[2]; // of tiles in turn, so that one barrier per tile suffices
    const int stages = (a.k + stored<FP8>::STAGE - 1) / stored<FP8>::STAGE, each = (stages + WARPS - 1) / WARPS;
    const int first = (int)threadIdx.x / WARP * each, end = min(first + each, stages), tiles = gemv_tiles(&a);
    int tile = (int)blockIdx.x, turn = 0;
    struct stage now = {}, next = {};
    if (first < end) load_stage<FP8>(&now, &a, tile, first);
    for (int s = first + 1; s < min(first + 1 + PREFETCHED, end); s++)
        prefetch_stage<FP8>(&a, tile, s);
    dependents_start();
    dependency_wait();
    for (; tile < tiles; tile += (int)gridDim.x, turn ^= 1) {
        float sum[4] = {0, 0, 0, 0};
        for (int s = first; s < end; s++) {
            const bool last = s + 1 == end;
            const int next_tile = last ? tile + (int)gridDim.x : tile;
            if (next_tile < tiles) load_stage<FP8>(&next, &a, next_tile, last ? first : s + 1);
            multiply_stage<FP8, BLOCKS>(sum, &now, &a, tile, s);
            now = next;
        }
        store_sums(sums[turn], sum);
        __syncthreads();
        if (a.mode == GEMV_SWIGLU)
            finish_swiglu<FP8 && !BLOCKS>(sums[turn], &a, tile);
        else
            finish_tile<FP8 && !BLOCKS>(sums[turn], &a, tile);
    }
}

cudaError_t launch_gemv(cudaStream_t stream, const struct gemv *gemv, int multiprocessors)
{
    const dim3 grid((unsigned)min(gemv_tiles(gemv), 2 * multiprocessors));
    if (!gemv->fp8) return CUDA_LAUNCH_EARLY((gemv_kernel<false, false>), grid, dim3(THREADS), 0, stream, *gemv);
    if (!gemv->block_stride)
        return CUDA_LAUNCH_EARLY((gemv_kernel<true, false>), grid, dim3(THREADS), 0, stream, *gemv);
    return CUDA_LAUNCH_EARLY((gemv_kernel<true, true>), grid, dim3(THREADS), 0, stream, *gemv);
}
