// SPDX-License-Identifier: Apache-2.0
// Prefill attention: sequences with several rows. Uses the tensor cores through mma, an instruction of one warp (sm_80
// and later). Softmax is computed online over tiles of K and V in shared memory (FlashAttention-2, arXiv 2307.08691).
// The tiles are gathered from the paged cache.
//
// A thread block computes TILE_ROW_HEADS row-heads (a row and one query head) of one KV head. The heads of a group
// share the tile and its K and V. So short sequences fill tiles, the causal triangle is divided more finely, and K and
// V are read once per group.
//
// Work per block for D = 128: 4 warps of 32 row-heads, tiles of 64 entries. ldmatrix reads shared memory at 128 bytes a
// cycle and must not take longer than the mma instructions. With 16 row-heads per warp, a fragment of K or V is used
// for two mma, and ldmatrix takes exactly as long. With 32 row-heads, a fragment is used for four mma. This leaves 128
// registers for sums, 64 for scores and about 40 for everything else, so q is read again from shared memory for each
// tile. K and V are single-buffered, as in the paper: V is copied while K is multiplied, and the next K is copied while
// V is multiplied. With q this takes 64 KiB of shared memory, so two blocks fit on a multiprocessor (also on A100). The
// copies and exponentials of one block overlap with the mma of the other block. D = 256 has twice as many sums, so it
// uses 8 warps of 16 row-heads, and one block fits.
//
// FlashAttention-2 reaches 60 to 70 % of the peak of mma.sync with the same shape; this kernel has not been measured.
// Hopper has its own kernel for heads of 64 and 128 dims, attention_wgmma.cu.
//
// A row's result does not depend on its tile. Entries are processed from 0 in the same steps of 64. Weights do not
// depend on the choice of the integer M (see backend.h). Steps whose entries a row does not attend to add exact zeros.
#include "kernels/cuda/device.h"
#include "kernels/cuda/scores.h"

// Sizes of the kernel for heads of D dims, padded to DP, with K and V in bf16 or FP8.
template <int D, bool IN_FP8> struct tile_plan {
    static const int DP = D;
    static const bool FP8 = IN_FP8;
    // FP8 needs registers for scales and conversions. So DP = 128, the largest DP with two slabs, uses half as many
    // entries.
    static const int ENTRIES = FP8 && DP == 128 ? 32 : 64;
    static const int WARPS = DP > 128 ? 8 : 4;
    static const int SLABS = TILE_ROW_HEADS / WARPS / 16; // slabs of 16 row-heads per warp
    static const int THREADS = WARPS * WARP;
    static const int BLOCKS = DP > 128 ? 1 : 2;   // blocks on a multiprocessor
    static const int CHUNKS = DP / 8;             // chunks of 16 bytes per row of q, K or V
    static const int TOGETHER = THREADS / CHUNKS; // entries that the block copies at the same time
    static const int SLAB_BYTES = 16 * DP * 2;

    // Shared memory: q, K and V; in FP8 also K and V as bytes and a scale for each entry; the last entry of each
    // row-head.
    static const int TILE_BYTES = ENTRIES * DP * 2;
    static const int RAW_BYTES = FP8 ? ENTRIES * DP : 0;
    static const int SCALE_BYTES = FP8 ? ENTRIES * 4 : 0;
    static const int TILE_AT = TILE_ROW_HEADS * DP * 2;
    static const int RAW_AT = TILE_AT + 2 * TILE_BYTES;
    static const int SCALE_AT = RAW_AT + 2 * RAW_BYTES;
    static const int LAST_AT = SCALE_AT + 2 * SCALE_BYTES;
    static const int BYTES = LAST_AT + TILE_ROW_HEADS * 4;
};

// Returns K (v false) or V of the current tile.
template <class P> static __device__ __forceinline__ unsigned char *tile_of(unsigned char *shared, bool v)
{
    return shared + P::TILE_AT + (v ? P::TILE_BYTES : 0);
}

template <class P> static __device__ __forceinline__ unsigned char *raw_of(unsigned char *shared, bool v)
{
    return shared + P::RAW_AT + (v ? P::RAW_BYTES : 0);
}

template <class P> static __device__ __forceinline__ float *scales_of(unsigned char *shared, bool v)
{
    return reinterpret_cast<float *>(shared + P::SCALE_AT + (v ? P::SCALE_BYTES : 0));
}

// Returns the array [TILE_ROW_HEADS] of the last entry that each row-head attends to, or -1 for a missing row-head.
template <class P> static __device__ __forceinline__ int32_t *last_of(unsigned char *shared)
{
    return reinterpret_cast<int32_t *>(shared + P::LAST_AT);
}

// ---- tiles in shared memory -----------------------------------------------------------------------------------------

// Returns the offset of chunk `chunk` of row `row`. Chunks are permuted within a row: ldmatrix reads the same chunk of
// 8 consecutive rows together, and these must be in 8 different bank groups (for rows of 32 bytes or more).
template <int DP> static __device__ __forceinline__ int chunk_at(int row, int chunk)
{
    int turn = DP % 64 == 0 ? row & 7 : DP % 32 == 0 ? row >> 1 & 3 : row >> 2 & 1;
    return row * DP * 2 + (chunk ^ turn) * 16;
}

// KV entries of one sequence and KV head.
struct cached {
    const int32_t *table;
    const char *data; // K in block 0; V follows after values_bytes, the next block after block_bytes
    const float *scale;
    int values_bytes, block_bytes, block_scales, head_size;
    int end; // entries to read
};

template <class P>
static __device__ __forceinline__ cached cached_of(const kv_cache *kv, int layer, int kv_head, const int32_t *table,
                                                   int end)
{
    const int bytes = P::FP8 ? 1 : 2;
    int64_t at = geometry_kv_at(kv, layer, 0, false, kv_head);
    cached of;
    of.table = table;
    of.data = static_cast<const char *>(kv->data) + at * kv->head_size * bytes;
    of.scale = kv->scale + (P::FP8 ? at : 0);
    of.block_scales = 2 * kv->n_kv_heads * KV_BLOCK_TOKENS;
    of.block_bytes = of.block_scales * kv->head_size * bytes;
    of.values_bytes = of.block_bytes / 2;
    of.head_size = kv->head_size;
    of.end = end;
    return of;
}

// Starts the copy of K (v false) or V of the tile whose first entry is `first`. tile_arrive completes it, and a barrier
// must follow. Entries from `end` on become zeros, since a NaN there times a weight of zero would be NaN. Each thread
// copies one chunk of every TOGETHER-th entry. bf16 is copied to its final place. FP8 is copied as bytes, which the
// same thread converts later.
template <class P>
static __device__ __forceinline__ void tile_start(unsigned char *shared, const cached *of, int first, bool v)
{
    const int chunk = (int)threadIdx.x % P::CHUNKS, part = (int)threadIdx.x / P::CHUNKS;
    const int chunk_bytes = P::FP8 ? 8 : 16;
    if (chunk * 8 < of->head_size) {
        const char *data = of->data + (v ? of->values_bytes : 0) + chunk * chunk_bytes;
#pragma unroll 2 // use few addresses at a time: registers hold the scores
        for (int i = 0; i < P::ENTRIES / P::TOGETHER; i++) {
            int e = i * P::TOGETHER + part; // entry in the tile; its KV block is a compile-time constant for long rows
            int block = (P::TOGETHER <= KV_BLOCK_TOKENS ? i * P::TOGETHER : e) / KV_BLOCK_TOKENS;
            bool there = first + e < of->end;
            const char *from = data;
            if (there)
                from += (int64_t)__ldg(of->table + first / KV_BLOCK_TOKENS + block) * of->block_bytes +
                        e % KV_BLOCK_TOKENS * of->head_size * (chunk_bytes / 8);
            if (P::FP8)
                copy_async<8>(raw_of<P>(shared, v) + (e * P::CHUNKS + chunk) * 8, from, there ? 8 : 0);
            else
                copy_async<16>(tile_of<P>(shared, v) + chunk_at<P::DP>(e, chunk), from, there ? 16 : 0);
        }
    }
    int e = 4 * (int)threadIdx.x; // four scales per thread
    if (P::FP8 && e < P::ENTRIES) {
        int rest = of->end - first - e;
        const float *from = of->scale + (v ? of->block_scales / 2 : 0);
        if (rest > 0)
            from += (int64_t)__ldg(of->table + (first + e) / KV_BLOCK_TOKENS) * of->block_scales + e % KV_BLOCK_TOKENS;
        copy_async<16>(scales_of<P>(shared, v) + e, from, rest > 0 ? min(rest, 4) * 4 : 0);
    }
    copy_async_commit();
}

template <class P> static __device__ __forceinline__ void tile_convert(unsigned char *shared, const cached *of, bool v)
{
    const int chunk = (int)threadIdx.x % P::CHUNKS, part = (int)threadIdx.x / P::CHUNKS;
    if (chunk * 8 >= of->head_size) return;
#pragma unroll 2
    for (int i = 0; i < P::ENTRIES / P::TOGETHER; i++) {
        int e = i * P::TOGETHER + part;
        uint2 bytes = *reinterpret_cast<const uint2 *>(raw_of<P>(shared, v) + (e * P::CHUNKS + chunk) * 8);
        *reinterpret_cast<uint4 *>(tile_of<P>(shared, v) + chunk_at<P::DP>(e, chunk)) = bf16_from_e4m3x8(bytes);
    }
}

template <class P> static __device__ __forceinline__ void tile_arrive(unsigned char *shared, const cached *of, bool v)
{
    copy_async_wait<0>();
    if (P::FP8) tile_convert<P>(shared, of, v);
}

// Loads q of the tile's row-heads as bf16, and the last entry of each. Row-heads that do not exist become zeros. Clears
// the padding of K and V.
template <class P>
static __device__ __forceinline__ void load_row_heads(unsigned char *shared, const attend_tile *tile, const float *qkv,
                                                      int64_t columns, int row, int kv_len, int kv_head, int group,
                                                      int d)
{
    for (int i = (int)threadIdx.x; i < TILE_ROW_HEADS * P::CHUNKS; i += P::THREADS) {
        int row_head = i / P::CHUNKS, chunk = i % P::CHUNKS, in_seq = tile->first + row_head;
        uint4 values = uint4();
        if (row_head < tile->count && chunk * 8 < d) {
            int head = kv_head * group + in_seq % group;
            values = pack8(qkv + (row + in_seq / group) * columns + (int64_t)head * d + chunk * 8);
        }
        *reinterpret_cast<uint4 *>(shared + chunk_at<P::DP>(row_head, chunk)) = values;
    }
    for (int i = (int)threadIdx.x; i < TILE_ROW_HEADS; i += P::THREADS)
        last_of<P>(shared)[i] = i < tile->count ? kv_len + (tile->first + i) / group : -1;
    for (int i = (int)threadIdx.x; i < 2 * P::ENTRIES * P::CHUNKS; i += P::THREADS) {
        int chunk = i % P::CHUNKS, e = i / P::CHUNKS;
        if (chunk * 8 >= d)
            *reinterpret_cast<uint4 *>(tile_of<P>(shared, e >= P::ENTRIES) + chunk_at<P::DP>(e % P::ENTRIES, chunk)) =
                uint4();
    }
}

// ---- the work of a warp ---------------------------------------------------------------------------------------------

// Running sums of a warp's row-heads: weighted V in `out`, and weights in `sum`. Lane 4 g + c has row-heads 16 slab + g
// (r = 0) and 16 slab + g + 8 (r = 1). Its sums of weights cover only its own columns. out[slab][n] is fragment C
// (ptx.h) of dims 8 n to 8 n + 7.
template <class P> struct running_sums {
    float exponent[P::SLABS][2], sum[P::SLABS][2], out[P::SLABS][P::DP / 8][4];
};

// Computes the scores: s[slab][n] is fragment C (ptx.h) of the row-heads and the tile's entries 8 n to 8 n + 7.
template <class P>
static __device__ __forceinline__ void multiply_keys(float s[P::SLABS][P::ENTRIES / 8][4], const unsigned char *q,
                                                     const unsigned char *k)
{
    int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP, i = lane / 8, j = lane % 8;
    // Order of the four 8 x 8 matrices of an ldmatrix. For q: upper left, lower left, upper right, lower right. For K:
    // upper left, upper right, lower left, lower right.
    const int q_place = chunk_at<P::DP>(warp * P::SLABS * 16 + i % 2 * 8 + j, i / 2);
    const int k_place = chunk_at<P::DP>(i / 2 * 8 + j, i % 2);
#pragma unroll
    for (int slab = 0; slab < P::SLABS; slab++)
#pragma unroll
        for (int n = 0; n < P::ENTRIES / 8; n++)
#pragma unroll
            for (int x = 0; x < 4; x++)
                s[slab][n][x] = 0;
#pragma unroll
    for (int step = 0; step < P::DP / 16; step++) { // 16 dims are two chunks: an xor of the offset
        uint32_t a[P::SLABS][4];
#pragma unroll
        for (int slab = 0; slab < P::SLABS; slab++)
            load_matrices(a[slab], q + slab * P::SLAB_BYTES + (q_place ^ step * 32));
#pragma unroll
        for (int n = 0; n < P::ENTRIES / 16; n++) {
            uint32_t b[4];
            load_matrices(b, k + n * P::SLAB_BYTES + (k_place ^ step * 32));
#pragma unroll
            for (int slab = 0; slab < P::SLABS; slab++) {
                mma_bf16(s[slab][2 * n], a[slab], b[0], b[1]);
                mma_bf16(s[slab][2 * n + 1], a[slab], b[2], b[3]);
            }
        }
    }
}

// Sets the scores of entries that a row-head does not attend to to -inf.
template <class P>
static __device__ __forceinline__ void mask_tile(float s[P::SLABS][P::ENTRIES / 8][4], const int32_t *last, int first)
{
    int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
#pragma unroll
    for (int slab = 0; slab < P::SLABS; slab++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            int own = last[(warp * P::SLABS + slab) * 16 + r * 8 + lane / 4];
#pragma unroll
            for (int n = 0; n < P::ENTRIES / 8; n++)
#pragma unroll
                for (int x = 0; x < 2; x++) {
                    int entry = first + n * 8 + lane % 4 * 2 + x;
                    if (entry > own) s[slab][n][2 * r + x] = -INFINITY;
                }
        }
}

// Turns scores into weights and rescales the running sums to the new exponents. The exponent is an integer near the
// largest score (see backend.h), so it changes rarely.
template <class P>
static __device__ __forceinline__ void tile_weigh(float s[P::SLABS][P::ENTRIES / 8][4], running_sums<P> *so_far,
                                                  float scale)
{
#pragma unroll
    for (int slab = 0; slab < P::SLABS; slab++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float largest = s[slab][0][2 * r];
#pragma unroll
            for (int n = 0; n < P::ENTRIES / 8; n++)
                largest = fmaxf(largest, fmaxf(s[slab][n][2 * r], s[slab][n][2 * r + 1]));
            largest = fmaxf(largest, __shfl_xor_sync(FULL_WARP, largest, 1));
            largest = fmaxf(largest, __shfl_xor_sync(FULL_WARP, largest, 2));
            largest = fmaxf(so_far->exponent[slab][r], rintf(largest * scale));
            if (largest != so_far->exponent[slab][r]) {
                float factor = exp2_approx(so_far->exponent[slab][r] - largest);
                so_far->exponent[slab][r] = largest;
                so_far->sum[slab][r] *= factor;
#pragma unroll
                for (int n = 0; n < P::DP / 8; n++) {
                    so_far->out[slab][n][2 * r] *= factor;
                    so_far->out[slab][n][2 * r + 1] *= factor;
                }
            }
#pragma unroll
            for (int n = 0; n < P::ENTRIES / 8; n++)
#pragma unroll
                for (int x = 0; x < 2; x++) {
                    float weight = exp2_approx(fmaf(s[slab][n][2 * r + x], scale, -largest));
                    so_far->sum[slab][r] += weight;
                    s[slab][n][2 * r + x] = weight;
                }
        }
}

// Multiplies scores, or weights, by the scale of their entry. A weight of zero stays zero even if the scale is NaN.
template <class P, bool WEIGHTS>
static __device__ __forceinline__ void scale_entries(float s[P::SLABS][P::ENTRIES / 8][4], const float *scale)
{
    int c = (int)threadIdx.x % 4;
#pragma unroll
    for (int n = 0; n < P::ENTRIES / 8; n++) {
        float2 two = *reinterpret_cast<const float2 *>(scale + n * 8 + 2 * c);
#pragma unroll
        for (int slab = 0; slab < P::SLABS; slab++)
#pragma unroll
            for (int x = 0; x < 4; x++) {
                float y = s[slab][n][x];
                s[slab][n][x] = WEIGHTS && y == 0 ? 0 : y * (x % 2 ? two.y : two.x);
            }
    }
}

// Computes out += weights V.
template <class P>
static __device__ __forceinline__ void
multiply_values(running_sums<P> *so_far, const float s[P::SLABS][P::ENTRIES / 8][4], const unsigned char *v)
{
    int lane = (int)threadIdx.x % WARP, i = lane / 8, j = lane % 8;
    // matrix i: V's lower rows come first, then its right half
    const int v_place = chunk_at<P::DP>(i % 2 * 8 + j, i / 2);
#pragma unroll
    for (int step = 0; step < P::ENTRIES / 16; step++) {
        uint32_t a[P::SLABS][4];
#pragma unroll
        for (int slab = 0; slab < P::SLABS; slab++)
#pragma unroll
            for (int x = 0; x < 4; x++) {
                const float *two = &s[slab][2 * step + x / 2][x % 2 * 2];
                a[slab][x] = pack_bf16(two[0], two[1]);
            }
#pragma unroll
        for (int n = 0; n < P::DP / 16; n++) {
            uint32_t b[4];
            load_matrices_transposed(b, v + step * P::SLAB_BYTES + (v_place ^ n * 32));
#pragma unroll
            for (int slab = 0; slab < P::SLABS; slab++) {
                mma_bf16(so_far->out[slab][2 * n], a[slab], b[0], b[1]);
                mma_bf16(so_far->out[slab][2 * n + 1], a[slab], b[2], b[3]);
            }
        }
    }
}

// Divides by the sums of weights and writes the results of the warp's row-heads. The results go through the shared
// memory of q, so that whole lines are written.
template <class P>
static __device__ __forceinline__ void tile_finish(running_sums<P> *all, unsigned char *q, uint16_t *out,
                                                   int64_t out_stride, const attend_tile *tile, int row, int kv_head,
                                                   int group, int d)
{
    int lane = (int)threadIdx.x % WARP, g = lane / 4, c = lane % 4;
    int first = (int)threadIdx.x / WARP * P::SLABS * 16;
    __syncwarp(); // all lanes have read q
#pragma unroll
    for (int slab = 0; slab < P::SLABS; slab++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float sum = all->sum[slab][r];
            sum += __shfl_xor_sync(FULL_WARP, sum, 1);
            sum += __shfl_xor_sync(FULL_WARP, sum, 2);
            float factor = 1 / sum;
#pragma unroll
            for (int n = 0; n < P::DP / 8; n++) {
                const float *two = &all->out[slab][n][2 * r];
                *reinterpret_cast<uint32_t *>(q + chunk_at<P::DP>(first + slab * 16 + r * 8 + g, n) + 4 * c) =
                    pack_bf16(two[0] * factor, two[1] * factor);
            }
        }
    __syncwarp();
    for (int i = lane; i < P::SLABS * 16 * P::CHUNKS; i += WARP) {
        int row_head = first + i / P::CHUNKS, chunk = i % P::CHUNKS, in_seq = tile->first + row_head;
        if (row_head >= tile->count || chunk * 8 >= d) continue;
        int64_t at = (row + in_seq / group) * out_stride + (int64_t)(kv_head * group + in_seq % group) * d + chunk * 8;
        *reinterpret_cast<uint4 *>(out + at) = *reinterpret_cast<const uint4 *>(q + chunk_at<P::DP>(row_head, chunk));
    }
}

// ---- the kernel -----------------------------------------------------------------------------------------------------

// Grid: KV heads x tiles, so that the costliest tiles of all heads start first. Shared memory: tile_plan::BYTES.
template <class P>
static __global__ void __launch_bounds__(P::THREADS, P::BLOCKS)
    attend_tile_kernel(kv_cache kv, device_batch batch, int layer, uint16_t *out, int out_stride, const float *qkv,
                       int n_heads)
{
    DYNAMIC_SHARED(unsigned char, shared);
    const attend_tile tile = batch.tiles[blockIdx.y];
    if (tile.count == 0) return; // ends the whole block: padding of a captured pass
    const int d = kv.head_size, group = n_heads / kv.n_kv_heads, kv_head = (int)blockIdx.x;
    const int kv_len = batch.kv_len[tile.seq], row = batch.row_start[tile.seq];
    const cached entries = cached_of<P>(&kv, layer, kv_head, batch.block_table + (int64_t)tile.seq * batch.max_blocks,
                                        kv_len + (tile.first + tile.count - 1) / group + 1);
    int first = 0;

    tile_start<P>(shared, &entries, first, false);
    load_row_heads<P>(shared, &tile, qkv, (int64_t)(n_heads + 2 * kv.n_kv_heads) * d, row, kv_len, kv_head, group, d);

    // Every row-head of the warp attends to every entry below full_end. No row-head attends to entries from seen_end
    // on.
    const int warp_first = (int)threadIdx.x / WARP * P::SLABS * 16;
    const int warp_last = min(warp_first + P::SLABS * 16, (int)tile.count) - 1;
    const int full_end = kv_len + (tile.first + warp_first) / group + 1;
    const int seen_end = warp_last >= warp_first ? kv_len + (tile.first + warp_last) / group + 1 : 0;
    const float scale = score_scale(d);

    running_sums<P> so_far;
#pragma unroll
    for (int slab = 0; slab < P::SLABS; slab++) {
#pragma unroll
        for (int r = 0; r < 2; r++)
            so_far.exponent[slab][r] = EXPONENT_NONE, so_far.sum[slab][r] = 0;
#pragma unroll
        for (int n = 0; n < P::DP / 8; n++)
#pragma unroll
            for (int x = 0; x < 4; x++)
                so_far.out[slab][n][x] = 0;
    }

    for (; first < entries.end; first += P::ENTRIES) {
        float s[P::SLABS][P::ENTRIES / 8][4];
        bool seen = first < seen_end; // uniform in the warp
        tile_arrive<P>(shared, &entries, false);
        __syncthreads(); // K is complete, and all warps are done with the last V
        tile_start<P>(shared, &entries, first, true);
        if (seen) {
            multiply_keys<P>(s, shared, tile_of<P>(shared, false));
            if (P::FP8) scale_entries<P, false>(s, scales_of<P>(shared, false));
        }
        tile_arrive<P>(shared, &entries, true);
        __syncthreads(); // V is complete, and all warps are done with K
        if (first + P::ENTRIES < entries.end) tile_start<P>(shared, &entries, first + P::ENTRIES, false);
        if (seen) {
            if (first + P::ENTRIES > full_end) mask_tile<P>(s, last_of<P>(shared), first);
            tile_weigh<P>(s, &so_far, scale);
            if (P::FP8) scale_entries<P, true>(s, scales_of<P>(shared, true));
            multiply_values<P>(&so_far, s, tile_of<P>(shared, true));
        }
    }
    tile_finish<P>(&so_far, shared, out, out_stride, &tile, row, kv_head, group, d);
}

// ---- launching ------------------------------------------------------------------------------------------------------

template <class P>
static cudaError_t launch_tiles(cudaStream_t stream, const kv_cache *kv, const device_batch *batch, int layer,
                                uint16_t *out, int out_stride, const float *qkv, int n_heads)
{
    dim3 grid((unsigned)kv->n_kv_heads, (unsigned)batch->n_tiles);
    return CUDA_LAUNCH(attend_tile_kernel<P>, grid, (unsigned)P::THREADS, P::BYTES, stream, *kv, *batch, layer, out,
                       out_stride, qkv, n_heads);
}

template <int DP>
static cudaError_t launch_head_size(cudaStream_t stream, const kv_cache *kv, const device_batch *batch, int layer,
                                    uint16_t *out, int out_stride, const float *qkv, int n_heads)
{
    return kv->fp8 ? launch_tiles<tile_plan<DP, true>>(stream, kv, batch, layer, out, out_stride, qkv, n_heads)
                   : launch_tiles<tile_plan<DP, false>>(stream, kv, batch, layer, out, out_stride, qkv, n_heads);
}

cudaError_t launch_attention(cudaStream_t stream, const struct kv_cache *kv, const struct device_batch *batch,
                             int layer, void *out, int out_stride, const float *qkv, int n_heads,
                             const struct attention_scratch *scratch)
{
    int d = kv->head_size;
    uint16_t *to = static_cast<uint16_t *>(out);
    cudaError_t error = cudaSuccess;
    if (batch->n_tiles > 0)
        error = scratch->map.made
                    ? launch_attention_wgmma(stream, kv, batch, layer, out, out_stride, qkv, n_heads, scratch)
                : d <= 16  ? launch_head_size<16>(stream, kv, batch, layer, to, out_stride, qkv, n_heads)
                : d <= 32  ? launch_head_size<32>(stream, kv, batch, layer, to, out_stride, qkv, n_heads)
                : d <= 64  ? launch_head_size<64>(stream, kv, batch, layer, to, out_stride, qkv, n_heads)
                : d <= 128 ? launch_head_size<128>(stream, kv, batch, layer, to, out_stride, qkv, n_heads)
                           : launch_head_size<256>(stream, kv, batch, layer, to, out_stride, qkv, n_heads);
    if (error != cudaSuccess || batch->n_single == 0) return error;
    return launch_attention_single(stream, kv, batch, layer, out, out_stride, qkv, n_heads, scratch, NULL);
}
