// SPDX-License-Identifier: Apache-2.0
// Gemms of up to GEMV_ROWS rows, as in decode passes. Their time is the time to read the weight once from memory. A
// row's result has the same bits for any number of rows up to GEMV_ROWS, and for any place of the row.
//
// A tile is 16 outputs. The warps of a block divide K among them, and each multiplies its part of the tile's weight by
// all rows with tensor cores (16 outputs x 8 rows). The sums of the warps are added in order. How K is divided depends
// on K alone. A weight goes from memory directly to registers, in its stored layout. Lane 4 g + c of a warp loads 16
// bytes each of outputs g and g + 8, and the same columns of row g. An mma sums its columns in one group. So the order
// of columns does not matter, as long as it is the same for weight and rows.
//
// Loads in flight: a stage is 8 loads of 16 bytes per lane, 4 KiB per warp. The next stage, also of the next tile, is
// loaded before the current stage is multiplied. Two blocks of 8 warps per multiprocessor have 64 to 128 KiB in flight.
// Latency times bandwidth (1 us x 4.8 TB/s over 132 multiprocessors) is only 36 KiB. The first stage is loaded while
// the previous kernel still runs (dependent.h): decode is a chain of short kernels, and memory would idle between them.
// Prefetching more of the weight into the L2 cache made decode passes 1 to 2 % slower on an H100.
//
// Every block prepares the rows itself (enum gemv_rows). A separate kernel would leave memory idle for longer than the
// blocks need to read a few rows from the L2 cache. Values are converted when they are loaded. From the second tile on,
// they are in the L1 cache.
//
// gemm_stream.cu multiplies more rows in the same order.
#include "kernels/cuda/dependent.h"
#include "kernels/cuda/few_rows.h"
#include "kernels/cuda/geometry.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/norm.h"
#include "kernels/cuda/ptx.h"

enum { WARPS = FEW_PARTS, THREADS = WARPS * WARP, TILE = FEW_TILE, STEPS = FEW_STEPS, GROUP = 16 };

// How a weight is stored. COLUMNS: columns in 16 bytes. STEP: columns of a step (16 bytes in each of 4 lanes). STAGE:
// columns of a stage (STEPS steps).
template <bool FP8> struct stored {
    enum { BYTES = FP8 ? 1 : 2, COLUMNS = GROUP / BYTES, STEP = 4 * COLUMNS, STAGE = STEPS * STEP };
};

// A lane's part of one stage of a weight: 16 bytes of output g (low) and of output g + 8 (high) for every step.
struct stage {
    uint4 low[STEPS], high[STEPS];
};

template <bool FP8> static __device__ __forceinline__ const char *output_at(const struct gemv *a, int tile, int i)
{
    return static_cast<const char *>(a->w) + (int64_t)few_tile_output(a, tile, i) * a->k * stored<FP8>::BYTES;
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

// ---- rows -----------------------------------------------------------------------------------------------------------

// The row of x that a lane multiplies: row lane / 4, or the last row if row lane / 4 does not exist.
struct lane_row {
    const void *at;
    float factor; // factor of the norm, or of quantisation
};

static __device__ __forceinline__ int column_blocks(const struct gemv *a)
{
    return (a->k + FP8_BLOCK - 1) / FP8_BLOCK;
}

static __device__ __forceinline__ int lane_row_number(const struct gemv *a)
{
    return min((int)threadIdx.x % WARP / 4, a->rows - 1);
}

// Sums and scales of the rows, in shared memory.
struct row_facts {
    float warp_values[GEMV_ROWS][NORM_WARPS_MAX]; // sums of squares, or largest magnitudes
    float scale[GEMV_ROWS];                       // QUANTISE with one scale per row
};

// QUANTISE with one scale per block of columns: the scales of row r begin at r * (blocks of K).
enum { BLOCKS_MAX = GEMV_VALUES_MAX / FP8_BLOCK };
struct block_facts {
    float factor[BLOCKS_MAX], scale[BLOCKS_MAX];
};

template <gemv_rows X> static __device__ __forceinline__ lane_row lane_row_of(const struct gemv *a, bool fp8)
{
    const int number = lane_row_number(a), size = X == GEMV_NORM ? 4 : X == GEMV_READY && fp8 ? 1 : 2;
    const int index = X == GEMV_NORM && a->row_index ? a->row_index[number] : number;
    return {static_cast<const char *>(a->x) + (int64_t)index * a->x_stride * size, 0};
}

static __device__ __forceinline__ void unpack_bf16(float to[8], uint4 from)
{
    const uint32_t words[4] = {from.x, from.y, from.z, from.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        to[2 * i] = __uint_as_float(words[i] << 16);
        to[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000);
    }
}

static __device__ __forceinline__ void load8_f32(float to[8], const float *from)
{
    const float4 low = *reinterpret_cast<const float4 *>(from), high = *reinterpret_cast<const float4 *>(from + 4);
    to[0] = low.x, to[1] = low.y, to[2] = low.z, to[3] = low.w;
    to[4] = high.x, to[5] = high.y, to[6] = high.z, to[7] = high.w;
}

// Returns the factor of the lane's row. Warp w does the work of warps w and w + WARPS of launch_rmsnorm.
static __device__ __forceinline__ float find_norm(row_facts *facts, const struct gemv *a)
{
    const int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP;
    const int threads = norm_threads(a->columns), warps = threads / WARP;
    for (int w = warp; w < warps; w += WARPS) {
        float squares[GEMV_ROWS] = {};
        for (int i = (w * WARP + lane) * WIDE; i < a->columns; i += threads * WIDE)
#pragma unroll
            for (int r = 0; r < GEMV_ROWS; r++) {
                if (r >= a->rows) continue;
                float group[WIDE];
                const int64_t index = a->row_index ? a->row_index[r] : r;
                load8_f32(group, static_cast<const float *>(a->x) + index * a->x_stride + i);
                squares[r] = norm_add<WIDE>(squares[r], group);
            }
#pragma unroll
        for (int r = 0; r < GEMV_ROWS; r++) {
            const float sum = warp_sum(squares[r]);
            if (lane == 0) facts->warp_values[r][w] = sum;
        }
    }
    __syncthreads();
    return norm_factor(facts->warp_values[lane_row_number(a)], warps, a->columns, a->epsilon);
}

// Returns the factor of the lane's row, and finds the scales of all rows.
static __device__ __forceinline__ float find_scales(row_facts *facts, const struct gemv *a)
{
    const int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP, row = lane_row_number(a);
    float largest[GEMV_ROWS] = {};
    for (int i = (int)threadIdx.x; a->x_maxima && i < a->n_maxima; i += THREADS)
#pragma unroll
        for (int r = 0; r < GEMV_ROWS; r++)
            if (r < a->rows) largest[r] = fmaxf(largest[r], a->x_maxima[r * GEMV_BLOCKS_MAX + i]);
    for (int i = (int)threadIdx.x * 8; !a->x_maxima && i < a->k; i += THREADS * 8)
#pragma unroll
        for (int r = 0; r < GEMV_ROWS; r++) {
            if (r >= a->rows) continue;
            float values[8];
            const uint16_t *from = static_cast<const uint16_t *>(a->x) + (int64_t)r * a->x_stride + i;
            unpack_bf16(values, *reinterpret_cast<const uint4 *>(from));
#pragma unroll
            for (int j = 0; j < 8; j++)
                largest[r] = fmaxf(largest[r], magnitude(values[j]));
        }
#pragma unroll
    for (int r = 0; r < GEMV_ROWS; r++) {
        const float all = warp_max(largest[r]);
        if (lane == 0) facts->warp_values[r][warp] = all;
    }
    __syncthreads();
    float all = 0;
#pragma unroll
    for (int w = 0; w < WARPS; w++)
        all = fmaxf(all, facts->warp_values[row][w]);
    if (warp == 0 && lane % 4 == 0) facts->scale[row] = e4m3_scale(all); // read after the barrier of a tile
    return e4m3_factor(all);
}

// Finds the factors and scales of all rows and blocks of columns.
static __device__ __forceinline__ void find_block_scales(block_facts *facts, const struct gemv *a)
{
    const int EACH = FP8_BLOCK / WARP, blocks = column_blocks(a), lane = (int)threadIdx.x % WARP;
#pragma unroll 4
    for (int i = (int)threadIdx.x / WARP; i < a->rows * blocks; i += WARPS) {
        const int column = i % blocks * FP8_BLOCK + lane * EACH;
        uint2 four = make_uint2(0, 0);
        const uint16_t *from = static_cast<const uint16_t *>(a->x) + (int64_t)(i / blocks) * a->x_stride + column;
        if (column < a->k) four = *reinterpret_cast<const uint2 *>(from);
        const uint32_t words[2] = {four.x, four.y};
        float largest = 0;
#pragma unroll
        for (int j = 0; j < 2; j++)
            largest = fmaxf(largest, fmaxf(magnitude(__uint_as_float(words[j] << 16)),
                                           magnitude(__uint_as_float(words[j] & 0xffff0000))));
        largest = warp_max(largest);
        if (lane == 0) facts->factor[i] = e4m3_factor(largest), facts->scale[i] = e4m3_scale(largest);
    }
    __syncthreads();
}

static __device__ __forceinline__ uint4 quantise16(const float values[16], float factor)
{
    uint32_t words[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
        words[i] = e4m3x2_from_floats(values[4 * i] * factor, values[4 * i + 1] * factor) |
                   e4m3x2_from_floats(values[4 * i + 2] * factor, values[4 * i + 3] * factor) << 16;
    return factor == 0 ? make_uint4(0, 0, 0, 0) : make_uint4(words[0], words[1], words[2], words[3]);
}

// Loads 16 bytes of the lane's row in the form of the weight, with zeros for columns that do not exist.
template <bool FP8, gemv_rows X>
static __device__ __forceinline__ uint4 load_row(const struct gemv *a, const lane_row *row, float factor, int column)
{
    if (column >= (X == GEMV_NORM ? a->columns : a->k)) return make_uint4(0, 0, 0, 0);
    if (X == GEMV_READY)
        return *reinterpret_cast<const uint4 *>(static_cast<const char *>(row->at) + column * stored<FP8>::BYTES);
    if (X == GEMV_NORM) {
        float values[8], gain[8];
        load8_f32(values, static_cast<const float *>(row->at) + column);
        load8_f32(gain, a->gain + column);
#pragma unroll
        for (int j = 0; j < 8; j++)
            values[j] = norm_value(values[j], factor, gain[j]);
        return make_uint4(pack_bf16(values[0], values[1]), pack_bf16(values[2], values[3]),
                          pack_bf16(values[4], values[5]), pack_bf16(values[6], values[7]));
    }
    float values[16];
    const uint16_t *from = static_cast<const uint16_t *>(row->at) + column;
    unpack_bf16(values, *reinterpret_cast<const uint4 *>(from));
    unpack_bf16(values + 8, *reinterpret_cast<const uint4 *>(from + 8));
    return quantise16(values, factor);
}

// ---- products -------------------------------------------------------------------------------------------------------

static __device__ __forceinline__ void multiply_bf16(float sum[4], uint4 low, uint4 high, uint4 x)
{
    few_multiply_first(sum, low, high, x);
    few_multiply_second(sum, low, high, x);
}

static __device__ __forceinline__ void multiply_e4m3(float sum[4], uint4 low, uint4 high, uint4 x)
{
    multiply_bf16(sum, bf16_from_e4m3x8(make_uint2(low.x, low.y)), bf16_from_e4m3x8(make_uint2(high.x, high.y)),
                  bf16_from_e4m3x8(make_uint2(x.x, x.y)));
    multiply_bf16(sum, bf16_from_e4m3x8(make_uint2(low.z, low.w)), bf16_from_e4m3x8(make_uint2(high.z, high.w)),
                  bf16_from_e4m3x8(make_uint2(x.z, x.w)));
}

// Adds the sums of one block of FP8_BLOCK columns, multiplied by the scales of weight and rows. `scale` holds the
// scales of rows 2c and 2c + 1.
static __device__ __forceinline__ void add_block(float sum[4], const float part[4], const float scale[2],
                                                 const struct gemv *a, int tile, int block)
{
    const int g = (int)threadIdx.x % WARP / 4;
    if (block * FP8_BLOCK >= a->k) return;
    const float low = a->column_scale[few_tile_output(a, tile, g) / FP8_BLOCK * a->block_stride + block];
    const float high = a->column_scale[few_tile_output(a, tile, g + 8) / FP8_BLOCK * a->block_stride + block];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        sum[i] += part[i] * (low * scale[i]);
        sum[i + 2] += part[i + 2] * (high * scale[i]);
    }
}

// Returns the scales of a block of columns in rows 2c and 2c + 1.
template <gemv_rows X>
static __device__ __forceinline__ void block_scales(float scale[2], const block_facts *facts, const struct gemv *a,
                                                    int block)
{
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int row = 2 * ((int)threadIdx.x % 4) + i;
        scale[i] = 0;
        if (row >= a->rows || block >= column_blocks(a)) continue;
        scale[i] = X == GEMV_QUANTISE ? facts->scale[row * column_blocks(a) + block]
                                      : a->row_scale[block * a->row_scale_stride + row];
    }
}

enum { PER_BLOCK = FP8_BLOCK / (4 * GROUP) }; // steps of FP8 per block of columns
template <gemv_rows X>
static __device__ __forceinline__ void multiply_blocks(float sum[4], const struct stage *w, const struct gemv *a,
                                                       const block_facts *facts, const lane_row *row, int tile, int s)
{
    const int column = s * stored<true>::STAGE + (int)threadIdx.x % 4 * stored<true>::COLUMNS;
#pragma unroll
    for (int first = 0; first < STEPS; first += PER_BLOCK) {
        const int block = (s * STEPS + first) / PER_BLOCK;
        float part[4] = {0, 0, 0, 0}, factor = 0, scale[2];
        if (X == GEMV_QUANTISE && block < column_blocks(a))
            factor = facts->factor[lane_row_number(a) * column_blocks(a) + block];
#pragma unroll
        for (int i = first; i < first + PER_BLOCK; i++) {
            const uint4 x = load_row<true, X>(a, row, factor, column + i * stored<true>::STEP);
            multiply_e4m3(part, w->low[i], w->high[i], x);
        }
        block_scales<X>(scale, facts, a, block);
        add_block(sum, part, scale, a, tile, block);
    }
}

template <bool FP8, gemv_rows X>
static __device__ __forceinline__ void multiply_stage(float sum[4], const struct stage *w, const struct gemv *a,
                                                      const lane_row *row, int s)
{
    const int column = s * stored<FP8>::STAGE + (int)threadIdx.x % 4 * stored<FP8>::COLUMNS;
    uint4 x[STEPS];
#pragma unroll
    for (int i = 0; i < STEPS; i++)
        x[i] = load_row<FP8, X>(a, row, row->factor, column + i * stored<FP8>::STEP);
#pragma unroll
    for (int i = 0; i < STEPS; i++) {
        if (FP8)
            multiply_e4m3(sum, w->low[i], w->high[i], x[i]);
        else
            multiply_bf16(sum, w->low[i], w->high[i], x[i]);
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

// Returns one result: the sum over the warps. `row_scale` holds the scales of all rows, or is NULL if results have no
// scales.
static __device__ __forceinline__ float total(const tile_sums all, const struct gemv *a, const float *row_scale,
                                              int tile, int row, int i)
{
    float sum = all[0][row][i];
#pragma unroll
    for (int w = 1; w < WARPS; w++)
        sum += all[w][row][i];
    return row_scale ? sum * row_scale[row] * a->column_scale[few_tile_output(a, tile, i)] : sum;
}

// Stores the thread's result of SwiGLU and returns its magnitude.
static __device__ __forceinline__ float finish_swiglu(const tile_sums all, const struct gemv *a, const float *row_scale,
                                                      int tile)
{
    const int i = (int)threadIdx.x % 8, row = (int)threadIdx.x / 8, output = tile * (TILE / 2) + i;
    if (row >= a->rows || output >= a->n / 2) return 0;
    const float gate = total(all, a, row_scale, tile, row, i), up = total(all, a, row_scale, tile, row, i + 8);
    const __nv_bfloat16 y = few_swiglu(gate, up);
    static_cast<__nv_bfloat16 *>(a->out)[(int64_t)row * a->out_stride + output] = y;
    return magnitude(__bfloat162float(y));
}

// Stores the largest magnitudes of the block's results, one for each row. `largest` is the largest magnitude of the
// thread's results. Call it in whole warps.
static __device__ __forceinline__ void store_maxima(const struct gemv *a, float largest)
{
#pragma unroll
    for (int lanes = 1; lanes < 8; lanes *= 2)
        largest = fmaxf(largest, __shfl_xor_sync(FULL_WARP, largest, lanes));
    const int row = (int)threadIdx.x / 8;
    if (threadIdx.x % 8 == 0 && row < a->rows) a->out_maxima[row * GEMV_BLOCKS_MAX + blockIdx.x] = largest;
}

static __device__ __forceinline__ void finish_tile(const tile_sums all, const struct gemv *a, const float *row_scale,
                                                   int tile)
{
    const int i = (int)threadIdx.x % TILE, row = (int)threadIdx.x / TILE, output = tile * TILE + i;
    if (row >= a->rows || output >= a->n) return;
    few_store(a, row, output, total(all, a, row_scale, tile, row, i));
}

// ---- all tiles ------------------------------------------------------------------------------------------------------

// Computes the gemm. The grid has as many blocks as can run concurrently, or as there are tiles. With n blocks, each
// block computes every n-th tile.
template <bool FP8, bool BLOCKS, gemv_rows X>
static __global__ void __launch_bounds__(THREADS, 2) gemv_kernel(struct gemv a)
{
    __shared__ tile_sums sums[2]; // sums of alternate tiles, so that one barrier per tile suffices
    __shared__ row_facts facts;
    __shared__ block_facts of_blocks;
    const int tiles = few_tiles(&a);
    int tile = (int)blockIdx.x, turn = 0, first, end;
    few_part(a.k, stored<FP8>::STAGE, (int)threadIdx.x / WARP, &first, &end);
    struct stage now = {}, next = {};
    if (first < end) load_stage<FP8>(&now, &a, tile, first);
    dependents_start();
    lane_row row = lane_row_of<X>(&a, FP8);
    dependency_wait();
    if (X == GEMV_NORM) row.factor = find_norm(&facts, &a);
    if (X == GEMV_QUANTISE && !BLOCKS) row.factor = find_scales(&facts, &a);
    if (X == GEMV_QUANTISE && BLOCKS) find_block_scales(&of_blocks, &a);
    const float *row_scale = !FP8 || BLOCKS ? NULL : X == GEMV_QUANTISE ? facts.scale : a.row_scale;
    float largest = 0;
    for (; tile < tiles; tile += (int)gridDim.x, turn ^= 1) {
        float sum[4] = {0, 0, 0, 0};
        for (int s = first; s < end; s++) {
            const bool last = s + 1 == end;
            const int next_tile = last ? tile + (int)gridDim.x : tile;
            if (next_tile < tiles) load_stage<FP8>(&next, &a, next_tile, last ? first : s + 1);
            if (BLOCKS)
                multiply_blocks<X>(sum, &now, &a, &of_blocks, &row, tile, s);
            else
                multiply_stage<FP8, X>(sum, &now, &a, &row, s);
            now = next;
        }
        store_sums(sums[turn], sum);
        __syncthreads();
        if (a.mode == GEMV_SWIGLU)
            largest = fmaxf(largest, finish_swiglu(sums[turn], &a, row_scale, tile));
        else
            finish_tile(sums[turn], &a, row_scale, tile);
    }
    if (a.mode == GEMV_SWIGLU && a.out_maxima && threadIdx.x < 8 * GEMV_ROWS) store_maxima(&a, largest);
}

int gemv_blocks(const struct gemv *gemv, int multiprocessors)
{
    return min(few_tiles(gemv), min(2 * multiprocessors, (int)GEMV_BLOCKS_MAX));
}

// Smallest number of rows for which an early start pays, because preparing the rows takes time. A decode pass of an 8B
// model on an H100 takes 6.26 ms for one sequence with ordinary launches, and 6.60 ms with early launches. For eight
// sequences it takes 7.65 ms and 7.46 ms.
enum { EARLY_ROWS = 3 };

template <bool FP8, bool BLOCKS, gemv_rows X>
static cudaError_t launch(cudaStream_t stream, const struct gemv *gemv, int multiprocessors)
{
    const dim3 grid((unsigned)gemv_blocks(gemv, multiprocessors));
    if (gemv->rows < EARLY_ROWS)
        return CUDA_LAUNCH((gemv_kernel<FP8, BLOCKS, X>), grid, dim3(THREADS), 0, stream, *gemv);
    return CUDA_LAUNCH_EARLY((gemv_kernel<FP8, BLOCKS, X>), grid, dim3(THREADS), 0, stream, *gemv);
}

cudaError_t launch_gemv(cudaStream_t stream, const struct gemv *gemv, int multiprocessors)
{
    const bool ready = gemv->x_is == GEMV_READY;
    if (!gemv->fp8)
        return (ready ? launch<false, false, GEMV_READY> : launch<false, false, GEMV_NORM>)(stream, gemv,
                                                                                            multiprocessors);
    if (!gemv->block_stride)
        return (ready ? launch<true, false, GEMV_READY> : launch<true, false, GEMV_QUANTISE>)(stream, gemv,
                                                                                              multiprocessors);
    return (ready ? launch<true, true, GEMV_READY> : launch<true, true, GEMV_QUANTISE>)(stream, gemv, multiprocessors);
}
