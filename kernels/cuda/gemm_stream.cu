// SPDX-License-Identifier: Apache-2.0
// Gemms of GEMV_ROWS + 1 to STREAM_ROWS rows with bf16 weights, bound by reading the weight. A row has the same bits as
// from gemv.cu: both use the same instructions in the same order (few_rows.h). So a row's bits do not depend on the
// number of rows, from 1 to STREAM_ROWS. wgmma could not guarantee this: it sums other groups of 16 columns, and its
// rounding is not documented.
//
// A thread block multiplies TILES x 16 outputs by GROUPS x 8 rows. Each of its 8 warps has one part of K and streams
// weight and rows by itself. A lane copies the 16-byte pieces that it will multiply, asynchronously and several steps
// ahead. It copies them to shared memory that no other thread touches. So the loop has no barrier, and the copies for
// the next tile start before the current tile ends. Copies of the weight start while the previous kernel still runs
// (dependent.h).
//
// Each multiprocessor has 128 to 176 KiB in flight, of which at least half is data of the weight. The rows are read
// from the L2 cache once per TILES x 16 outputs. So more outputs per block mean fewer reads, and fewer outputs mean
// more thread blocks. The host chooses the number (stream_tiles). The choice changes no bit.
#include "kernels/cuda/dependent.h"
#include "kernels/cuda/few_rows.h"

enum { WARPS = FEW_PARTS, THREADS = WARPS * WARP, STEP_COLUMNS = 32, PIECE = 16 * THREADS };
enum { RING_BYTES = 192 * 1024, STAGES_MAX = 8 };

template <int OF_TILES, int OF_GROUPS> struct stream_plan {
    static const int TILES = OF_TILES, GROUPS = OF_GROUPS;
    static const int PIECES = 2 * TILES + GROUPS; // 16 bytes of a lane in a step: outputs g and g + 8, then rows
    static const int STEP_BYTES = PIECES * PIECE;
    static const int FIT = RING_BYTES / STEP_BYTES, STAGES = FIT < STAGES_MAX ? FIT : (int)STAGES_MAX;
    static const int SUMS_AT = STAGES * STEP_BYTES; // float4 [WARPS][GROUPS][WARP]: sums of one tile
    static const int BYTES = SUMS_AT + WARPS * GROUPS * WARP * 16;
};

// A step of a warp. `tile` is the index of a tile of TILES x 16 outputs.
struct stream_step {
    int tile, step;
};

// The steps of a warp, in all tiles of its thread block.
struct stream_steps {
    int first, end, tiles;

    __device__ __forceinline__ bool exists(const stream_step &at) const
    {
        return at.tile < tiles && first < end;
    }

    __device__ __forceinline__ void advance(stream_step *at) const
    {
        if (++at->step < end) return;
        at->step = first;
        at->tile += (int)gridDim.x;
    }
};

static __device__ __forceinline__ void copy_piece(unsigned char *to, const void *row, const struct gemv *a, int step)
{
    const int column = step * STEP_COLUMNS + (int)threadIdx.x % 4 * 8;
    copy_async<16>(to + threadIdx.x * 16, static_cast<const uint16_t *>(row) + column, column < a->k ? 16 : 0);
}

template <class P>
static __device__ __forceinline__ void copy_weight(unsigned char *to, const struct gemv *a, const stream_step &at)
{
    const int g = (int)threadIdx.x % WARP / 4;
#pragma unroll
    for (int i = 0; i < 2 * P::TILES; i++) {
        const int64_t output = few_tile_output(a, at.tile * P::TILES + i / 2, i % 2 * 8 + g);
        copy_piece(to + i * PIECE, static_cast<const uint16_t *>(a->w) + output * a->k, a, at.step);
    }
}

// Copies the rows' pieces of a step. It copies the last row in place of rows that do not exist.
template <class P>
static __device__ __forceinline__ void copy_rows(unsigned char *to, const struct gemv *a, const stream_step &at)
{
    const int g = (int)threadIdx.x % WARP / 4;
#pragma unroll
    for (int n = 0; n < P::GROUPS; n++) {
        const int64_t row = min(8 * n + g, a->rows - 1);
        const uint16_t *from = static_cast<const uint16_t *>(a->x) + row * a->x_stride;
        copy_piece(to + (2 * P::TILES + n) * PIECE, from, a, at.step);
    }
}

template <class P>
static __device__ __forceinline__ void multiply_step(float sum[P::TILES][P::GROUPS][4], const unsigned char *from)
{
    const uint4 *piece = reinterpret_cast<const uint4 *>(from) + threadIdx.x;
    uint4 x[P::GROUPS];
#pragma unroll
    for (int n = 0; n < P::GROUPS; n++)
        x[n] = piece[(2 * P::TILES + n) * THREADS];
#pragma unroll
    for (int t = 0; t < P::TILES; t++) {
        const uint4 low = piece[2 * t * THREADS], high = piece[(2 * t + 1) * THREADS];
#pragma unroll
        for (int n = 0; n < P::GROUPS; n++)
            few_multiply_first(sum[t][n], low, high, x[n]);
#pragma unroll
        for (int n = 0; n < P::GROUPS; n++)
            few_multiply_second(sum[t][n], low, high, x[n]);
    }
}

// Stores one lane's fragment: outputs g (x, y) and g + 8 (z, w), rows 2c (x, z) and 2c + 1 (y, w) of group n.
static __device__ __forceinline__ void store_fragment(const struct gemv *a, int tile, int n, int lane, float4 y)
{
    const float low[2] = {y.x, y.y}, high[2] = {y.z, y.w};
    const int g = lane / 4, half = FEW_TILE / 2;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int row = 8 * n + 2 * (lane % 4) + i;
        if (row >= a->rows) continue;
        if (a->mode == GEMV_SWIGLU) {
            const int output = tile * half + g;
            __nv_bfloat16 *out = static_cast<__nv_bfloat16 *>(a->out) + (int64_t)row * a->out_stride;
            if (output < a->n / 2) out[output] = few_swiglu(low[i], high[i]);
            continue;
        }
        const int output = tile * FEW_TILE + g;
        if (output < a->n) few_store(a, row, output, low[i]);
        if (output + half < a->n) few_store(a, row, output + half, high[i]);
    }
}

// Adds the parts of K in order and stores the results. Every thread of the block must call it.
template <class P>
static __device__ __forceinline__ void finish_tiles(float4 *sums, const float sum[P::TILES][P::GROUPS][4],
                                                    const struct gemv *a, int tile)
{
    const int i = (int)threadIdx.x, warp = i / WARP, lane = i % WARP;
#pragma unroll
    for (int t = 0; t < P::TILES; t++) {
        __syncthreads(); // every thread has read the previous sums
#pragma unroll
        for (int n = 0; n < P::GROUPS; n++)
            sums[(warp * P::GROUPS + n) * WARP + lane] =
                make_float4(sum[t][n][0], sum[t][n][1], sum[t][n][2], sum[t][n][3]);
        __syncthreads();
        if (i >= P::GROUPS * WARP) continue;
        float4 total = sums[i];
#pragma unroll
        for (int part = 1; part < WARPS; part++) {
            const float4 more = sums[part * P::GROUPS * WARP + i];
            total.x += more.x, total.y += more.y, total.z += more.z, total.w += more.w;
        }
        store_fragment(a, tile * P::TILES + t, warp, lane, total);
    }
}

// Computes the gemm. The grid has as many blocks as can run concurrently, or as there are tiles. With n blocks, each
// block computes every n-th tile.
template <class P> static __global__ void __launch_bounds__(THREADS, 1) gemm_stream_kernel(struct gemv a)
{
    DYNAMIC_SHARED(unsigned char, shared);
    stream_steps steps;
    few_part(a.k, FEW_STEPS * STEP_COLUMNS, (int)threadIdx.x / WARP, &steps.first, &steps.end);
    steps.first *= FEW_STEPS, steps.end *= FEW_STEPS;
    steps.tiles = (few_tiles(&a) + P::TILES - 1) / P::TILES;
    stream_step ahead = {(int)blockIdx.x, steps.first}, again = ahead;
#pragma unroll
    for (int s = 0; s < P::STAGES - 1; s++, steps.advance(&ahead))
        if (steps.exists(ahead)) copy_weight<P>(shared + s * P::STEP_BYTES, &a, ahead);
    dependents_start();
    dependency_wait();
#pragma unroll
    for (int s = 0; s < P::STAGES - 1; s++, steps.advance(&again)) {
        if (steps.exists(again)) copy_rows<P>(shared + s * P::STEP_BYTES, &a, again);
        copy_async_commit();
    }
    int now = 0, next = P::STAGES - 1; // stages of the ring
    for (int tile = (int)blockIdx.x; tile < steps.tiles; tile += (int)gridDim.x) {
        float sum[P::TILES][P::GROUPS][4] = {};
        for (int step = steps.first; step < steps.end; step++) {
            // Waits for the lane's copies for this step. The lane has read the copies at `next`.
            copy_async_wait<P::STAGES - 2>();
            unsigned char *to = shared + next * P::STEP_BYTES;
            if (steps.exists(ahead)) copy_weight<P>(to, &a, ahead), copy_rows<P>(to, &a, ahead);
            copy_async_commit();
            steps.advance(&ahead);
            multiply_step<P>(sum, shared + now * P::STEP_BYTES);
            next = now;
            now = now + 1 == P::STAGES ? 0 : now + 1;
        }
        finish_tiles<P>(reinterpret_cast<float4 *>(shared + P::SUMS_AT), sum, &a, tile);
    }
}

// ---- launching ------------------------------------------------------------------------------------------------------

template <class P> static cudaError_t launch(cudaStream_t stream, const struct gemv *gemv, int multiprocessors)
{
    const int tiles = (few_tiles(gemv) + P::TILES - 1) / P::TILES;
    const dim3 grid((unsigned)min(tiles, multiprocessors));
    return CUDA_LAUNCH_EARLY(gemm_stream_kernel<P>, grid, dim3(THREADS), P::BYTES, stream, *gemv);
}

template <int GROUPS>
static cudaError_t launch_tiles(cudaStream_t stream, const struct gemv *gemv, int tiles, int multiprocessors)
{
    if (tiles == 4) return launch<stream_plan<4, GROUPS>>(stream, gemv, multiprocessors);
    if (tiles == 2) return launch<stream_plan<2, GROUPS>>(stream, gemv, multiprocessors);
    return launch<stream_plan<1, GROUPS>>(stream, gemv, multiprocessors);
}

// Returns the tiles of 16 outputs per thread block. The L2 cache delivers 1 + rows / outputs times the bytes of the
// weight. About three eighths of the multiprocessors are enough to use all of its bandwidth (5.5 TB/s on an H100, 112
// GB/s per multiprocessor).
static int stream_tiles(const struct gemv *gemv, int multiprocessors)
{
    const int enough = max(1, multiprocessors * 3 / 8);
    int best = 4;
    double best_time = INFINITY;
    for (int tiles = 4; tiles >= 1; tiles /= 2) {
        const int blocks = (few_tiles(gemv) + tiles - 1) / tiles;
        const double time = (1 + (double)gemv->rows / (tiles * FEW_TILE)) / min(blocks, enough);
        if (time < best_time) best = tiles, best_time = time;
    }
    return best;
}

size_t gemm_stream_shared_bytes(void)
{
    return stream_plan<4, STREAM_ROWS / 8>::BYTES;
}

cudaError_t launch_gemm_stream(cudaStream_t stream, const struct gemv *gemv, int multiprocessors)
{
    const int tiles = stream_tiles(gemv, multiprocessors);
    return (gemv->rows <= 16   ? launch_tiles<2>
            : gemv->rows <= 32 ? launch_tiles<4>
                               : launch_tiles<8>)(stream, gemv, tiles, multiprocessors);
}
