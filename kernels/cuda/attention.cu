// SPDX-License-Identifier: Apache-2.0
// Attention of sequences with several rows (prefill), on tensor cores by the mma of one warp, which sm_80 and its
// successors all have: online softmax over tiles of K and V in shared memory (FlashAttention-2, arXiv 2307.08691) that
// are gathered from the paged cache.
//
// A thread block takes ATTEND_PAIRS pairs of (row, query head of one KV head): the heads of a group share K and V and
// the tile, so short sequences fill tiles, the causal triangle is cut finer, and K and V pass by once for a group.
//
// Shape of the work, for D = 128: 4 warps of 32 pairs, tiles of 64 entries. What ldmatrix reads from shared memory, at
// 128 bytes a cycle, must not take longer than the products: with 16 pairs to a warp a fragment of K or V serves two
// products, which is the limit itself; with 32 it serves four. That leaves 128 registers of sums, 64 of scores and some
// 40 for all else, so q is read again from shared memory for each tile and not held. K's and V's buffers are single, as
// in the paper: V is copied while K is multiplied and the next K while V is. With q that is 64 KiB, so two blocks lie
// on a multiprocessor (A100 too), and one's copies and exponentials hide behind the other's products. D = 256 has twice
// the sums: there it is 8 warps of 16 pairs, one block.
//
// Expected, not measured (no GPU was at hand): what FlashAttention-2 with the same shape reaches, which is 60 to 70 %
// of what mma.sync can do; wgmma would be needed for more on Hopper.
//
// A row's result does not depend on its tile: entries are gone through from 0 in the same steps of 64, weights do not
// depend on which integer the largest exponent is (see backend.h), and steps that it does not see add exact zeros.
#include "kernels/cuda/device.h"
#include "kernels/cuda/scores.h"

// D padded to a size that there is a kernel for, and the type of K and V.
template <int D, bool IN_FP8> struct plan {
    static const int DP = D;
    static const bool FP8 = IN_FP8;
    // Scales and conversions take registers, too: half a tile for the largest heads that have two slabs.
    static const int ENTRIES = FP8 && DP == 128 ? 32 : 64;
    static const int WARPS = DP > 128 ? 8 : 4;
    static const int SLABS = ATTEND_PAIRS / WARPS / 16; // of 16 pairs, in a warp
    static const int THREADS = WARPS * WARP;
    static const int BLOCKS = DP > 128 ? 1 : 2;   // on a multiprocessor
    static const int CHUNKS = DP / 8;             // of 16 bytes, in a row of q, K or V
    static const int TOGETHER = THREADS / CHUNKS; // entries that the block copies at a time
    static const int SLAB_BYTES = 16 * DP * 2;

    // Shared memory: q, K and V; in FP8 their bytes and a scale for each entry; the last entry that each pair sees.
    static const int TILE_BYTES = ENTRIES * DP * 2;
    static const int RAW_BYTES = FP8 ? ENTRIES * DP : 0;
    static const int SCALE_BYTES = FP8 ? ENTRIES * 4 : 0;
    static const int TILE_AT = ATTEND_PAIRS * DP * 2;
    static const int RAW_AT = TILE_AT + 2 * TILE_BYTES;
    static const int SCALE_AT = RAW_AT + 2 * RAW_BYTES;
    static const int LAST_AT = SCALE_AT + 2 * SCALE_BYTES;
    static const int BYTES = LAST_AT + ATTEND_PAIRS * 4;
};

// K (v false) or V of the tile at hand.
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

// [ATTEND_PAIRS]; -1: there is no such pair.
template <class P> static __device__ __forceinline__ int32_t *last_of(unsigned char *shared)
{
    return reinterpret_cast<int32_t *>(shared + P::LAST_AT);
}

// ---- tiles in shared memory -----------------------------------------------------------------------------------------

// Where chunk `chunk` of row `row` lies. Chunks are permuted within a row so that the same chunk of 8 rows one below
// the other, which is what ldmatrix reads at a time, lies in 8 different groups of banks, for rows of 32 bytes or more.
template <int DP> static __device__ __forceinline__ int place(int row, int chunk)
{
    int turn = DP % 64 == 0 ? row & 7 : DP % 32 == 0 ? row >> 1 & 3 : row >> 2 & 1;
    return row * DP * 2 + (chunk ^ turn) * 16;
}

// The entries of a sequence and a KV head.
struct cached {
    const int32_t *table;
    const char *data; // of K in block 0; V and the next block are so many bytes further
    const float *scale;
    int values_bytes, block_bytes, block_scales, head_size;
    int end; // entries to be read
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

// Starts to bring K (v false) or V of the tile whose first entry is `first`; `arrive` makes it ready, and a barrier
// must follow that. Entries from `end` on become zeros: their weights are zero, and nobody knows what lies there. A
// thread copies the same chunk of every so many entries; bf16 into place, bytes as they are, to convert them itself
// later.
template <class P>
static __device__ __forceinline__ void start(unsigned char *shared, const cached *of, int first, bool v)
{
    const int chunk = (int)threadIdx.x % P::CHUNKS, part = (int)threadIdx.x / P::CHUNKS;
    const int chunk_bytes = P::FP8 ? 8 : 16;
    if (chunk * 8 < of->head_size) {
        const char *data = of->data + (v ? of->values_bytes : 0) + chunk * chunk_bytes;
#pragma unroll 2 // few addresses at a time: the scores are in registers meanwhile
        for (int i = 0; i < P::ENTRIES / P::TOGETHER; i++) {
            int e = i * P::TOGETHER + part; // of the tile; its KV block is known at compile time where rows are long
            int block = (P::TOGETHER <= KV_BLOCK_TOKENS ? i * P::TOGETHER : e) / KV_BLOCK_TOKENS;
            bool there = first + e < of->end;
            const char *from = data;
            if (there)
                from += (int64_t)__ldg(of->table + first / KV_BLOCK_TOKENS + block) * of->block_bytes +
                        e % KV_BLOCK_TOKENS * of->head_size * (chunk_bytes / 8);
            if (P::FP8)
                copy_async<8>(raw_of<P>(shared, v) + (e * P::CHUNKS + chunk) * 8, from, there ? 8 : 0);
            else
                copy_async<16>(tile_of<P>(shared, v) + place<P::DP>(e, chunk), from, there ? 16 : 0);
        }
    }
    int e = 4 * (int)threadIdx.x; // four scales at a time
    if (P::FP8 && e < P::ENTRIES) {
        int rest = of->end - first - e;
        const float *from = of->scale + (v ? of->block_scales / 2 : 0);
        if (rest > 0)
            from += (int64_t)__ldg(of->table + (first + e) / KV_BLOCK_TOKENS) * of->block_scales + e % KV_BLOCK_TOKENS;
        copy_async<16>(scales_of<P>(shared, v) + e, from, rest > 0 ? min(rest, 4) * 4 : 0);
    }
    copy_async_commit();
}

template <class P> static __device__ __forceinline__ void convert(unsigned char *shared, const cached *of, bool v)
{
    const int chunk = (int)threadIdx.x % P::CHUNKS, part = (int)threadIdx.x / P::CHUNKS;
    if (chunk * 8 >= of->head_size) return;
#pragma unroll 2
    for (int i = 0; i < P::ENTRIES / P::TOGETHER; i++) {
        int e = i * P::TOGETHER + part;
        uint2 bytes = *reinterpret_cast<const uint2 *>(raw_of<P>(shared, v) + (e * P::CHUNKS + chunk) * 8);
        *reinterpret_cast<uint4 *>(tile_of<P>(shared, v) + place<P::DP>(e, chunk)) = bf16_from_e4m3x8(bytes);
    }
}

template <class P> static __device__ __forceinline__ void arrive(unsigned char *shared, const cached *of, bool v)
{
    copy_async_wait<0>();
    if (P::FP8) convert<P>(shared, of, v);
}

// q of the tile's pairs as bf16, zeros for those that there are not; and what each sees. Clears the padding of K, V.
template <class P>
static __device__ __forceinline__ void load_pairs(unsigned char *shared, const attend_tile *tile, const float *qkv,
                                                  int64_t columns, int row, int kv_len, int kv_head, int group, int d)
{
    for (int i = (int)threadIdx.x; i < ATTEND_PAIRS * P::CHUNKS; i += P::THREADS) {
        int pair = i / P::CHUNKS, chunk = i % P::CHUNKS, of_seq = tile->pair + pair;
        uint4 values = uint4();
        if (pair < tile->pairs && chunk * 8 < d) {
            int head = kv_head * group + of_seq % group;
            values = pack8(qkv + (row + of_seq / group) * columns + (int64_t)head * d + chunk * 8);
        }
        *reinterpret_cast<uint4 *>(shared + place<P::DP>(pair, chunk)) = values;
    }
    for (int i = (int)threadIdx.x; i < ATTEND_PAIRS; i += P::THREADS)
        last_of<P>(shared)[i] = i < tile->pairs ? kv_len + (tile->pair + i) / group : -1;
    for (int i = (int)threadIdx.x; i < 2 * P::ENTRIES * P::CHUNKS; i += P::THREADS) {
        int chunk = i % P::CHUNKS, e = i / P::CHUNKS;
        if (chunk * 8 >= d)
            *reinterpret_cast<uint4 *>(tile_of<P>(shared, e >= P::ENTRIES) + place<P::DP>(e % P::ENTRIES, chunk)) =
                uint4();
    }
}

// ---- the work of a warp ---------------------------------------------------------------------------------------------

// Sums of V and of weights of a warp's pairs so far. Lane (g, c) has pairs 16 slab + g and + 8 (r: 0, 1); sums of
// weights are of its own columns. `out[slab][n]` is C for dims 8 n .. 8 n + 7.
template <class P> struct totals {
    float exponent[P::SLABS][2], sum[P::SLABS][2], out[P::SLABS][P::DP / 8][4];
};

// s[slab][n] = C of pairs x entries 8 n .. 8 n + 7 of the tile.
template <class P>
static __device__ __forceinline__ void multiply_keys(float s[P::SLABS][P::ENTRIES / 8][4], const unsigned char *q,
                                                     const unsigned char *k)
{
    int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP, i = lane / 8, j = lane % 8;
    // Matrix i of an ldmatrix: q's lower rows, then its right half; K's right half, then its lower rows.
    const int q_place = place<P::DP>(warp * P::SLABS * 16 + i % 2 * 8 + j, i / 2);
    const int k_place = place<P::DP>(i / 2 * 8 + j, i % 2);
#pragma unroll
    for (int slab = 0; slab < P::SLABS; slab++)
#pragma unroll
        for (int n = 0; n < P::ENTRIES / 8; n++)
#pragma unroll
            for (int x = 0; x < 4; x++)
                s[slab][n][x] = 0;
#pragma unroll
    for (int step = 0; step < P::DP / 16; step++) { // 16 dims: two chunks further, which is a bit pattern of the place
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

// Scores of entries that a pair does not see become -inf.
template <class P>
static __device__ __forceinline__ void mask_tile(float s[P::SLABS][P::ENTRIES / 8][4], const int32_t *last, int first,
                                                 int window)
{
    int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
#pragma unroll
    for (int slab = 0; slab < P::SLABS; slab++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            int own = last[(warp * P::SLABS + slab) * 16 + r * 8 + lane / 4], from = geometry_first_seen(own, window);
#pragma unroll
            for (int n = 0; n < P::ENTRIES / 8; n++)
#pragma unroll
                for (int x = 0; x < 2; x++) {
                    int entry = first + n * 8 + lane % 4 * 2 + x;
                    if (entry > own || entry < from) s[slab][n][2 * r + x] = -INFINITY;
                }
        }
}

// Scores to weights, with the totals so far brought to the new exponents. The exponent is an integer near the largest
// one (see backend.h) and so rarely changes.
template <class P>
static __device__ __forceinline__ void weigh(float s[P::SLABS][P::ENTRIES / 8][4], totals<P> *so_far, float scale)
{
#pragma unroll
    for (int slab = 0; slab < P::SLABS; slab++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float most = s[slab][0][2 * r];
#pragma unroll
            for (int n = 0; n < P::ENTRIES / 8; n++)
                most = fmaxf(most, fmaxf(s[slab][n][2 * r], s[slab][n][2 * r + 1]));
            most = fmaxf(most, __shfl_xor_sync(FULL_WARP, most, 1));
            most = fmaxf(most, __shfl_xor_sync(FULL_WARP, most, 2));
            most = fmaxf(so_far->exponent[slab][r], rintf(most * scale));
            if (most != so_far->exponent[slab][r]) {
                float factor = exp2_approx(so_far->exponent[slab][r] - most);
                so_far->exponent[slab][r] = most;
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
                    float weight = exp2_approx(fmaf(s[slab][n][2 * r + x], scale, -most));
                    so_far->sum[slab][r] += weight;
                    s[slab][n][2 * r + x] = weight;
                }
        }
}

// Scores, or weights, times the scale of their entry. A weight of zero stays so: the entry need not be the pair's.
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

// out += weights V.
template <class P>
static __device__ __forceinline__ void multiply_values(totals<P> *so_far, const float s[P::SLABS][P::ENTRIES / 8][4],
                                                       const unsigned char *v)
{
    int lane = (int)threadIdx.x % WARP, i = lane / 8, j = lane % 8;
    const int v_place = place<P::DP>(i % 2 * 8 + j, i / 2); // matrix i: V's lower rows, then its right half
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

// Divides by the sums and writes the warp's pairs, through the shared memory of their q for whole lines.
template <class P>
static __device__ __forceinline__ void finish(totals<P> *all, unsigned char *q, uint16_t *out, int64_t out_stride,
                                              const attend_tile *tile, int row, int kv_head, int group, int d)
{
    int lane = (int)threadIdx.x % WARP, g = lane / 4, c = lane % 4;
    int first = (int)threadIdx.x / WARP * P::SLABS * 16;
    __syncwarp(); // no lane reads q any more
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
                *reinterpret_cast<uint32_t *>(q + place<P::DP>(first + slab * 16 + r * 8 + g, n) + 4 * c) =
                    pack_bf16(two[0] * factor, two[1] * factor);
            }
        }
    __syncwarp();
    for (int i = lane; i < P::SLABS * 16 * P::CHUNKS; i += WARP) {
        int pair = first + i / P::CHUNKS, chunk = i % P::CHUNKS, of_seq = tile->pair + pair;
        if (pair >= tile->pairs || chunk * 8 >= d) continue;
        int64_t at = (row + of_seq / group) * out_stride + (int64_t)(kv_head * group + of_seq % group) * d + chunk * 8;
        *reinterpret_cast<uint4 *>(out + at) = *reinterpret_cast<const uint4 *>(q + place<P::DP>(pair, chunk));
    }
}

// ---- the kernel -----------------------------------------------------------------------------------------------------

// Grid: KV heads x tiles, so that the costliest tiles of all heads start first. Shared memory: BYTES of the plan.
template <class P>
static __global__ void __launch_bounds__(P::THREADS, P::BLOCKS)
    attend_tile_kernel(kv_cache kv, device_batch batch, int layer, uint16_t *out, int out_stride, const float *qkv,
                       int n_heads, int window)
{
    DYNAMIC_SHARED(unsigned char, shared);
    const attend_tile tile = batch.tiles[blockIdx.y];
    const int d = kv.head_size, group = n_heads / kv.n_kv_heads, kv_head = (int)blockIdx.x;
    const int kv_len = batch.kv_len[tile.seq], row = batch.row_start[tile.seq];
    const cached entries = cached_of<P>(&kv, layer, kv_head, batch.block_table + (int64_t)tile.seq * batch.max_blocks,
                                        kv_len + (tile.pair + tile.pairs - 1) / group + 1);
    // Steps begin at multiples of their length.
    int first = geometry_first_seen(kv_len + tile.pair / group, window) / P::ENTRIES * P::ENTRIES;

    start<P>(shared, &entries, first, false);
    load_pairs<P>(shared, &tile, qkv, (int64_t)(n_heads + 2 * kv.n_kv_heads) * d, row, kv_len, kv_head, group, d);

    // Of the warp's own pairs: all see what they see from full_end on, none sees any entry from seen_end on.
    const int warp_first = (int)threadIdx.x / WARP * P::SLABS * 16;
    const int warp_last = min(warp_first + P::SLABS * 16, (int)tile.pairs) - 1;
    const int full_end = kv_len + (tile.pair + warp_first) / group + 1;
    const int seen_end = warp_last >= warp_first ? kv_len + (tile.pair + warp_last) / group + 1 : 0;
    const float scale = score_scale(d);

    totals<P> so_far;
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
        bool seen = first < seen_end; // the same in the whole warp
        arrive<P>(shared, &entries, false);
        __syncthreads(); // K is there, and no warp multiplies with V any more
        start<P>(shared, &entries, first, true);
        if (seen) {
            multiply_keys<P>(s, shared, tile_of<P>(shared, false));
            if (P::FP8) scale_entries<P, false>(s, scales_of<P>(shared, false));
        }
        arrive<P>(shared, &entries, true);
        __syncthreads(); // V is there, and no warp multiplies with K any more
        if (first + P::ENTRIES < entries.end) start<P>(shared, &entries, first + P::ENTRIES, false);
        if (seen) {
            if (first + P::ENTRIES > full_end || (window > 0 && first < geometry_first_seen(seen_end - 1, window)))
                mask_tile<P>(s, last_of<P>(shared), first, window);
            weigh<P>(s, &so_far, scale);
            if (P::FP8) scale_entries<P, true>(s, scales_of<P>(shared, true));
            multiply_values<P>(&so_far, s, tile_of<P>(shared, true));
        }
    }
    finish<P>(&so_far, shared, out, out_stride, &tile, row, kv_head, group, d);
}

// ---- launching ------------------------------------------------------------------------------------------------------

template <class P>
static cudaError_t launch_tiles(cudaStream_t stream, const kv_cache *kv, const device_batch *batch, int layer,
                                uint16_t *out, int out_stride, const float *qkv, int n_heads, int window)
{
    dim3 grid((unsigned)kv->n_kv_heads, (unsigned)batch->n_tiles);
    return CUDA_LAUNCH(attend_tile_kernel<P>, grid, (unsigned)P::THREADS, P::BYTES, stream, *kv, *batch, layer, out,
                       out_stride, qkv, n_heads, window);
}

template <int DP>
static cudaError_t launch_head_size(cudaStream_t stream, const kv_cache *kv, const device_batch *batch, int layer,
                                    uint16_t *out, int out_stride, const float *qkv, int n_heads, int window)
{
    return kv->fp8 ? launch_tiles<plan<DP, true>>(stream, kv, batch, layer, out, out_stride, qkv, n_heads, window)
                   : launch_tiles<plan<DP, false>>(stream, kv, batch, layer, out, out_stride, qkv, n_heads, window);
}

cudaError_t launch_attention(cudaStream_t stream, const struct kv_cache *kv, const struct device_batch *batch,
                             int layer, void *out, int out_stride, const float *qkv, int n_heads, int window,
                             float *partials)
{
    int d = kv->head_size;
    uint16_t *to = static_cast<uint16_t *>(out);
    cudaError_t error = cudaSuccess;
    if (batch->n_tiles > 0)
        error = d <= 16    ? launch_head_size<16>(stream, kv, batch, layer, to, out_stride, qkv, n_heads, window)
                : d <= 32  ? launch_head_size<32>(stream, kv, batch, layer, to, out_stride, qkv, n_heads, window)
                : d <= 64  ? launch_head_size<64>(stream, kv, batch, layer, to, out_stride, qkv, n_heads, window)
                : d <= 128 ? launch_head_size<128>(stream, kv, batch, layer, to, out_stride, qkv, n_heads, window)
                           : launch_head_size<256>(stream, kv, batch, layer, to, out_stride, qkv, n_heads, window);
    if (error != cudaSuccess || batch->n_lone == 0) return error;
    return launch_attention_lone(stream, kv, batch, layer, out, out_stride, qkv, n_heads, window, partials);
}
