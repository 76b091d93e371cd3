// SPDX-License-Identifier: Apache-2.0
// Prefill attention on Hopper, for heads of 64 and 128 dims. Does the work of attention.cu with wgmma, TMA and
// specialised warps (the design of FlashAttention-3, arXiv 2407.08608).
//
// A thread block processes TILE_ROW_HEADS row-heads of one KV head at a time from the list of tiles, as in
// attention.cu. Two warps of its first warp group copy K and V from the paged cache into two stages, with one box of
// TMA for each KV block and 64 dims. The other two warp groups multiply, 64 row-heads each. A group issues the scores
// of the next entries while the tensor cores still multiply its last weights with V. The two groups take turns in
// issuing products, so that the exponentials of one group overlap with the products of the other group. One thread
// block runs on a multiprocessor and uses nearly all of its registers and shared memory. K and V in FP8 are copied as
// bytes, and the first group also converts them to bf16 in the stages. tests/check_cuda_code.py counts the instructions
// that FP8 takes.
//
// A row's result does not depend on its tile or on the batch. Entries are processed from 0 in the same steps, as in
// attention.cu. The sums start again at each multiple of TILE_SPAN entries, and the results of these spans are added in
// order. So the bits are the same if one thread block computes all spans of a tile, with the total in shared memory, or
// if each span has its own thread block. The host chooses (schedule.c): few rows with many entries get separate spans.
#include "kernels/cuda/device.h"
#include "kernels/cuda/hopper.h"
#include "kernels/cuda/scores.h"

// threads of a warp group; number of groups that multiply
enum { GROUP = 4 * WARP, GROUPS = 2, THREADS = (1 + GROUPS) * GROUP };
enum { GROUP_ROWS = TILE_ROW_HEADS / GROUPS, STAGES = 2, HALF = 64, HALF_ROW = 2 * HALF };
// Named barriers of multiplying group i (0 or 1): OWN_BARRIER + i for its own threads, TURN_BARRIER + i for its turn to
// issue products.
enum { OWN_BARRIER = 1, TURN_BARRIER = 3 };

template <int HEAD, bool IN_FP8> struct tile_plan {
    static const int D = HEAD;
    static const bool FP8 = IN_FP8;
    // Entries of a tile; fewer in FP8, because shared memory also holds the bytes.
    static const int ENTRIES = FP8 && D == 128 ? 64 : 128;
    static const int HALVES = D / HALF;
    static const int CHUNKS = D / 8;           // chunks of 16 bytes in a row of q
    static const int BOXES = FP8 ? 1 : HALVES; // boxes in which a KV block is copied
    static const int BLOCK_BYTES = KV_BLOCK_TOKENS * D * (FP8 ? 1 : 2);
    // Registers of a thread that copies or converts, and of a thread that multiplies.
    static const int LOW_REGISTERS = FP8 ? 72 : 24, HIGH_REGISTERS = FP8 ? 216 : 240;

    // Shared memory. q, K and V consist of parts of 64 dims, see hopper.h.
    static const int Q_BYTES = TILE_ROW_HEADS * D * 2;
    static const int TILE_BYTES = ENTRIES * D * 2;
    static const int K_AT = Q_BYTES;
    static const int V_AT = K_AT + STAGES * TILE_BYTES;
    static const int TOTAL_AT = V_AT + STAGES * TILE_BYTES; // f32 [D / 2][GROUPS * GROUP]: sums of earlier spans
    // Only in FP8: K and V as bytes, and the scales of their entries.
    static const int RAW_BYTES = FP8 ? ENTRIES * D : 0;
    static const int RAW_AT = TOTAL_AT + TILE_ROW_HEADS * D * 4;
    static const int SCALE_AT = RAW_AT + 2 * STAGES * RAW_BYTES;
    static const int SCALE_BYTES = FP8 ? ENTRIES * 4 : 0;
    static const int BARRIERS_AT = SCALE_AT + 2 * STAGES * SCALE_BYTES;
    static const int BROKEN_AT = BARRIERS_AT + (FP8 ? 2 : 1) * 4 * STAGES * 8; // FP8: see broken_of
    static const int BYTES = BROKEN_AT + (FP8 ? 8 : 0);
};

// Returns the scales of K (v false) or V of a stage.
template <class P> static __device__ __forceinline__ float *scales_of(unsigned char *shared, int stage, bool v)
{
    return reinterpret_cast<float *>(shared + P::SCALE_AT + (2 * stage + (v ? 1 : 0)) * P::SCALE_BYTES);
}

// Returns a flag for FP8. It becomes 1 when the thread block meets a scale of V that is not finite, and stays 1.
template <class P> static __device__ __forceinline__ int32_t *broken_of(unsigned char *shared)
{
    return reinterpret_cast<int32_t *>(shared + P::BROKEN_AT);
}

// Barriers of each stage, for K [0] and V [1]. `full`: the data has arrived. `free`: every reader has read it. FP8 has
// a second set, for the bytes before conversion.
struct stage_barriers {
    uint64_t full[2][STAGES], free[2][STAGES];
};

// Returns the parity of the barrier phase in which tile number `tile` uses its stage.
static __device__ __forceinline__ uint32_t tile_parity(int tile)
{
    return (uint32_t)(tile / STAGES & 1);
}

// ---- work -----------------------------------------------------------------------------------------------------------

// A tile of one KV head: all of its entries, or one span of them.
struct work {
    attend_tile tile;
    int kv_head, row, kv_len; // row: first row of the sequence
    int begin, end;           // first and end of the entries
};

// Finds work number i of this thread block. Returns false if there is none. Works are sorted by cost. The blocks take
// them in turns, forwards and then backwards, which balances the total cost of the blocks.
static __device__ __forceinline__ bool work_of(work *w, const device_batch *batch, int n_kv_heads, int group, int i)
{
    int block = i % 2 ? (int)gridDim.x - 1 - (int)blockIdx.x : (int)blockIdx.x, at = i * (int)gridDim.x + block;
    if (at >= batch->n_tiles * n_kv_heads) return false;
    w->tile = batch->tiles[at / n_kv_heads];
    if (w->tile.count == 0) return false; // padding of a captured pass: only such tiles follow
    w->kv_head = at % n_kv_heads;
    w->row = __ldg(batch->row_start + w->tile.seq);
    w->kv_len = __ldg(batch->kv_len + w->tile.seq);
    w->begin = max((int)w->tile.span, 0) * TILE_SPAN;
    w->end = w->kv_len + (w->tile.first + w->tile.count - 1) / group + 1;
    if (w->tile.span >= 0) w->end = min(w->end, w->begin + TILE_SPAN);
    return true;
}

// ---- copying --------------------------------------------------------------------------------------------------------

// Copies K or V of the thread block's works to the stages. In FP8 it copies bytes to the stages' memory for bytes. Used
// by one warp.
template <class P> struct copier {
    unsigned char *to;
    stage_barriers *barriers;
    const CUtensorMap *map;
    const kv_cache *kv;
    const device_batch *batch;
    int layer, group;
    int works, copied, rest; // number of works begun, of tiles copied, and of remaining entries of the work
    int row;                 // row of the map at which block 0 of the KV head begins
    const int32_t *block;    // the lane's entry of the block table for the next tile

    // Starts the copies of K (v false) or V of the next tile, once all readers have freed the stage. Skips KV blocks
    // without entries. Returns false after the last tile.
    __device__ __forceinline__ bool copy(bool v)
    {
        const int lane = (int)threadIdx.x % WARP, in_tile = lane / P::BOXES, box = lane % P::BOXES;
        if (rest <= 0) { // every work has entries
            work w;
            if (!work_of(&w, batch, kv->n_kv_heads, group, works)) return false;
            works++;
            rest = w.end - w.begin;
            row = (int)geometry_kv_at(kv, layer, 0, false, w.kv_head);
            block = batch->block_table + (int64_t)w.tile.seq * batch->max_blocks + w.begin / KV_BLOCK_TOKENS + in_tile;
        }
        const int stage = copied % STAGES, bytes = P::FP8 ? P::RAW_BYTES : P::TILE_BYTES;
        const int blocks = min((int)P::ENTRIES, rest + KV_BLOCK_TOKENS - 1) / KV_BLOCK_TOKENS;
        uint64_t *full = &barriers->full[v][stage];
        barrier_wait(&barriers->free[v][stage], tile_parity(copied) ^ 1);
        if (lane == 0) barrier_arrive_expect(full, blocks * P::BLOCK_BYTES);
        __syncwarp();
        if (in_tile < blocks)
            box_load(to + ((v ? STAGES : 0) + stage) * bytes + box * P::ENTRIES * HALF_ROW +
                         in_tile * (P::BLOCK_BYTES / P::BOXES),
                     map, box * HALF, row + (int)geometry_kv_at(kv, 0, __ldg(block), v, 0), full);
        rest -= P::ENTRIES, copied++;
        block += P::ENTRIES / KV_BLOCK_TOKENS;
        return true;
    }
};

// Copies all works: the first warp copies K, the second copies V.
template <class P>
static __device__ __forceinline__ void copy_works(unsigned char *shared, stage_barriers *barriers,
                                                  const CUtensorMap *map, const kv_cache *kv, const device_batch *batch,
                                                  int layer, int group)
{
    copier<P> all = {shared + P::K_AT, barriers, map, kv, batch, layer, group, 0, 0, 0, 0, NULL};
    while (all.copy(threadIdx.x >= WARP)) {
    }
}

// Place of the 16 values that a thread converts in each step. Eight lanes store 16 bytes each at the same time, and the
// two halves of a bf16 row are in the same banks. So four of these lanes store to one entry and four to another entry,
// in chunks of different parity.
template <class P> struct convert_place {
    static const int LANES = P::D / 16;            // lanes per entry
    static const int STEP_ENTRIES = GROUP / LANES; // entries that all threads convert in a step
    static const int STEPS = P::ENTRIES / STEP_ENTRIES;
    // In the first step: the entry, the offset of the thread's bytes, and the offsets of its two chunks of bf16.
    int entry, from, to[2];

    __device__ __forceinline__ convert_place(void)
    {
        const int thread = (int)threadIdx.x, lane = thread % LANES, chunk = 2 * lane;
        entry = thread / LANES;
        if (P::HALVES == 2) entry ^= lane / 4;
        from = entry * P::D + lane * 16;
        for (int i = 0; i < 2; i++)
            to[i] = chunk / 8 * P::ENTRIES * HALF_ROW + entry * HALF_ROW + ((chunk + i) % 8 ^ entry % 8) * 16;
    }
};

// Converts K or V of a tile from bytes to bf16. Sets entries from `end` on to zero, see clear_values.
template <class P>
static __device__ __forceinline__ void tile_convert(unsigned char *to, const unsigned char *from,
                                                    const convert_place<P> *place, int end)
{
    typedef convert_place<P> all;
    uint4 bytes[all::STEPS];
#pragma unroll
    for (int i = 0; i < all::STEPS; i++)
        bytes[i] = *reinterpret_cast<const uint4 *>(from + place->from + i * GROUP * 16);
    if (end < P::ENTRIES)
#pragma unroll
        for (int i = 0; i < all::STEPS; i++)
            if (i * all::STEP_ENTRIES >= end - place->entry) bytes[i] = uint4();
#pragma unroll
    for (int i = 0; i < all::STEPS; i++) {
        const int step = i * all::STEP_ENTRIES * HALF_ROW;
        *reinterpret_cast<uint4 *>(to + place->to[0] + step) = bf16_from_e4m3x8(make_uint2(bytes[i].x, bytes[i].y));
        *reinterpret_cast<uint4 *>(to + place->to[1] + step) = bf16_from_e4m3x8(make_uint2(bytes[i].z, bytes[i].w));
    }
}

// Only in FP8: converts K and V to bf16 and stores their scales. Each of the four warps runs on its own scheduler of
// the multiprocessor, next to two warps that multiply. The first two warps also copy the bytes, three conversions
// ahead, to the place that the last conversion has emptied.
template <class P>
static __device__ __forceinline__ void
convert_works(unsigned char *shared, stage_barriers *raw, stage_barriers *barriers, const CUtensorMap *map,
              const kv_cache *kv, const device_batch *batch, int layer, int group)
{
    enum { SCALES = 2 * P::ENTRIES / GROUP }; // scales that a thread loads, for one entry: K or V (1), or both (2)
    const int own_v = (int)threadIdx.x / P::ENTRIES, own = (int)threadIdx.x % P::ENTRIES;
    const int block_scales = (int)geometry_kv_at(kv, 0, 1, false, 0), v_scales = (int)geometry_kv_at(kv, 0, 0, true, 0);
    const int warp = (int)threadIdx.x / WARP;
    const convert_place<P> place;
    copier<P> ahead = {shared + P::RAW_AT, raw, map, kv, batch, layer, group, 0, 0, 0, 0, NULL};
    work w;
    int done = 0; // number of tiles done
    if (warp == 0) ahead.copy(false), ahead.copy(false);
    if (warp == 1) ahead.copy(true);
    for (int i = 0; work_of(&w, batch, kv->n_kv_heads, group, i); i++) {
        const int32_t *block =
            batch->block_table + (int64_t)w.tile.seq * batch->max_blocks + (w.begin + own) / KV_BLOCK_TOKENS;
        const float *scales = kv->scale + geometry_kv_at(kv, layer, 0, own_v, w.kv_head) + own % KV_BLOCK_TOKENS;
        for (int rest = w.end - w.begin; rest > 0; rest -= P::ENTRIES, done++) {
            const int stage = done % STAGES;
            float scale[SCALES] = {}; // loaded before the waits
            if (own < rest) {
                const float *of_block = scales + (int64_t)__ldg(block) * block_scales;
#pragma unroll
                for (int k = 0; k < SCALES; k++)
                    scale[k] = __ldg(of_block + k * v_scales);
            }
            block += P::ENTRIES / KV_BLOCK_TOKENS;
#pragma unroll
            for (int v = 0; v < 2; v++) {
                const int slot = v * STAGES + stage;
                if (warp == (v ? 0 : 1)) ahead.copy(!v);
                barrier_wait(&raw->full[v][stage], tile_parity(done));
                barrier_wait(&barriers->free[v][stage], tile_parity(done) ^ 1);
                tile_convert<P>(shared + P::K_AT + slot * P::TILE_BYTES, shared + P::RAW_AT + slot * P::RAW_BYTES,
                                &place, v ? rest : (int)P::ENTRIES);
                if (SCALES == 2 || own_v == v) {
                    const float x = scale[SCALES == 2 ? v : 0];
                    scales_of<P>(shared, stage, v)[own] = x;
                    if (v && !(fabsf(x) < INFINITY)) *broken_of<P>(shared) = 1;
                }
                writes_fence();
                barrier_arrive(&barriers->full[v][stage]);
                barrier_arrive(&raw->free[v][stage]);
            }
        }
    }
}

// ---- the work of a warp group ---------------------------------------------------------------------------------------

// Running sums for row-heads g and g + 8 of the warp's 16: weighted V in `out` (a result of wgmma), and weights in
// `sum`. The sums of weights cover only the lane's own columns.
template <class P> struct running_sums {
    float exponent[2], sum[2], out[P::D / 2];
};

// The row-heads of a warp group in a work.
struct group_rows {
    int number;   // number of the group: 0 or 1
    int last[2];  // last entry that each row-head of the lane attends to, or -1 if the row-head does not exist
    int full_end; // all row-heads of the group attend to every entry below
    int seen_end; // no row-head attends to this entry or later ones
};

static __device__ __forceinline__ group_rows group_rows_of(const work *w, int number, int group)
{
    const int first = number * GROUP_ROWS, lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x % GROUP / WARP;
    const int end = min(first + GROUP_ROWS, (int)w->tile.count);
    group_rows rows;
    rows.number = number;
    for (int r = 0; r < 2; r++) {
        int row_head = first + warp * 16 + r * 8 + lane / 4;
        rows.last[r] = row_head < end ? w->kv_len + (w->tile.first + row_head) / group : -1;
    }
    rows.full_end = w->kv_len + (w->tile.first + first) / group + 1;
    rows.seen_end = end > first ? min(w->end, w->kv_len + (w->tile.first + end - 1) / group + 1) : 0;
    return rows;
}

static __device__ __forceinline__ int q_chunk_at(int row_head, int chunk)
{
    return chunk / 8 * TILE_ROW_HEADS * HALF_ROW + row_head * HALF_ROW + (chunk % 8 ^ row_head % 8) * 16;
}

// Loads q of the warp's 16 row-heads as bf16. Row-heads that do not exist become zeros.
template <class P>
static __device__ __forceinline__ void load_q_rows(unsigned char *shared, const work *w, int number, const float *qkv,
                                                   int64_t columns, int group)
{
    const int lane = (int)threadIdx.x % WARP, first = number * GROUP_ROWS + (int)threadIdx.x % GROUP / WARP * 16;
#pragma unroll 4
    for (int i = lane; i < 16 * P::CHUNKS; i += WARP) {
        int row_head = first + i / P::CHUNKS, chunk = i % P::CHUNKS, in_seq = w->tile.first + row_head;
        uint4 values = uint4();
        if (row_head < w->tile.count)
            values = pack8(qkv + (w->row + in_seq / group) * columns +
                           (int64_t)(w->kv_head * group + in_seq % group) * P::D + chunk * 8);
        *reinterpret_cast<uint4 *>(shared + q_chunk_at(row_head, chunk)) = values;
    }
}

// Computes s = q K of the group's row-heads and the tile's entries.
template <class P>
static __device__ __forceinline__ void multiply_keys(float (&s)[P::ENTRIES / 2], uint64_t q, uint64_t k)
{
#pragma unroll
    for (int step = 0; step < P::D / 16; step++) {
        const int half = step / 4, at = step % 4 * 32; // 16 dims are 32 bytes of a row
        wgmma_shared(s, q + (uint64_t)((half * TILE_ROW_HEADS * HALF_ROW + at) >> 4),
                     k + (uint64_t)((half * P::ENTRIES * HALF_ROW + at) >> 4), step > 0);
    }
}

// Computes out += weights V, or without `add` out = weights V.
template <class P>
static __device__ __forceinline__ void multiply_values(float (&out)[P::D / 2],
                                                       const uint32_t (&weights)[P::ENTRIES / 4], uint64_t v, bool add)
{
#pragma unroll
    for (int step = 0; step < P::ENTRIES / 16; step++)
        wgmma_registers(out, weights + 4 * step, v + (uint64_t)(step * 16 * HALF_ROW >> 4), add || step > 0);
}

// Sets the scores of entries that a row-head does not attend to to -inf.
template <class P>
static __device__ __forceinline__ void mask_tile(float (&s)[P::ENTRIES / 2], const group_rows *rows, int first)
{
    const int column = first + (int)threadIdx.x % 4 * 2;
#pragma unroll
    for (int i = 0; i < P::ENTRIES / 2; i++)
        if (column + i / 4 * 8 + i % 2 > rows->last[i / 2 % 2]) s[i] = -INFINITY;
}

// Turns scores into weights 2^(score - M), where M is an integer near the largest score (see backend.h). Sets `factor`
// to the factors by which the running sums must be multiplied.
template <class P>
static __device__ __forceinline__ void tile_weigh(float (&s)[P::ENTRIES / 2], running_sums<P> *so_far, float factor[2],
                                                  float scale)
{
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float largest = s[2 * r];
#pragma unroll
        for (int i = 0; i < P::ENTRIES / 2; i += 4)
            largest = fmaxf(largest, fmaxf(s[i + 2 * r], s[i + 2 * r + 1]));
        largest = fmaxf(largest, __shfl_xor_sync(FULL_WARP, largest, 1));
        largest = fmaxf(largest, __shfl_xor_sync(FULL_WARP, largest, 2));
        largest = fmaxf(so_far->exponent[r], rintf(largest * scale));
        factor[r] = exp2_approx(so_far->exponent[r] - largest);
        so_far->exponent[r] = largest;
        so_far->sum[r] *= factor[r];
#pragma unroll
        for (int i = 0; i < P::ENTRIES / 2; i += 4)
#pragma unroll
            for (int x = 0; x < 2; x++) {
                float weight = exp2_approx(fmaf(s[i + 2 * r + x], scale, -largest));
                so_far->sum[r] += weight;
                s[i + 2 * r + x] = weight;
            }
    }
}

// Only in FP8: multiplies scores or weights by the scales of their entries. With KEEP_ZEROS a weight of zero stays zero
// even if the scale is NaN.
template <class P, bool KEEP_ZEROS>
static __device__ __forceinline__ void scale_entries(float (&s)[P::ENTRIES / 2], const float *scale)
{
#pragma unroll
    for (int i = 0; i < P::ENTRIES / 2; i += 4) {
        float2 two = *reinterpret_cast<const float2 *>(scale + i * 2 + (int)threadIdx.x % 4 * 2);
#pragma unroll
        for (int x = 0; x < 4; x++)
            s[i + x] = KEEP_ZEROS && s[i + x] == 0 ? 0 : s[i + x] * (x % 2 ? two.y : two.x);
    }
}

template <class P>
static __device__ __forceinline__ void pack_weights(uint32_t (&weights)[P::ENTRIES / 4],
                                                    const float (&s)[P::ENTRIES / 2])
{
#pragma unroll
    for (int i = 0; i < P::ENTRIES / 4; i++)
        weights[i] = pack_bf16(s[2 * i], s[2 * i + 1]);
}

// Multiplies the sums by the factor. The exponent is an integer and changes rarely, so the factor is usually 1.
template <class P> static __device__ __forceinline__ void rescale(float (&out)[P::D / 2], const float factor[2])
{
    if (!__any_sync(FULL_WARP, factor[0] != 1 || factor[1] != 1)) return;
#pragma unroll
    for (int i = 0; i < P::D / 2; i++)
        out[i] *= factor[i / 2 % 2];
}

// Sets V of the entries after the last one to zero, since a NaN there times a weight of zero would be NaN. Both groups
// do this, since each group waits only for its own writes.
template <class P>
static __device__ __forceinline__ void clear_values(unsigned char *v, const group_rows *rows, int from)
{
    for (int i = from * 8 + (int)threadIdx.x % GROUP; i < P::ENTRIES * 8; i += GROUP)
#pragma unroll
        for (int half = 0; half < P::HALVES; half++)
            *reinterpret_cast<uint4 *>(v + half * P::ENTRIES * HALF_ROW + i * 16) = uint4();
    writes_fence();
    named_sync(OWN_BARRIER + rows->number, GROUP);
}

// The stages as a multiplying group sees them. `ahead` counts tiles from the first tile that the group has not
// finished.
template <class P> struct stages {
    unsigned char *shared;
    stage_barriers *barriers;
    int done;

    __device__ __forceinline__ int stage(int ahead) const
    {
        return (done + ahead) % STAGES;
    }
    // Returns the place of K (v false) or V.
    __device__ __forceinline__ unsigned char *at(int ahead, bool v) const
    {
        return shared + P::K_AT + ((v ? STAGES : 0) + stage(ahead)) * P::TILE_BYTES;
    }
    // Waits for K or V.
    __device__ __forceinline__ unsigned char *wait(int ahead, bool v) const
    {
        barrier_wait(&barriers->full[v][stage(ahead)], tile_parity(done + ahead));
        return at(ahead, v);
    }
    // Waits for V of a tile that weigh_scores has weighed. With FP8, weigh_scores has already waited.
    __device__ __forceinline__ unsigned char *values(int ahead) const
    {
        return P::FP8 ? at(ahead, true) : wait(ahead, true);
    }
    // Reports that the warp has read K or V.
    __device__ __forceinline__ void free(int ahead, bool v) const
    {
        if (threadIdx.x % WARP == 0) barrier_arrive(&barriers->free[v][stage(ahead)]);
    }
};

template <class P> static __device__ __forceinline__ uint64_t values_at(const unsigned char *v)
{
    return matrix_at(v, P::ENTRIES * HALF_ROW);
}

// Waits for the turn of a group: the two groups issue their products in turns.
static __device__ __forceinline__ void turn_take(int number)
{
    named_sync(TURN_BARRIER + number, GROUPS * GROUP);
}

static __device__ __forceinline__ void turn_pass(int number)
{
    named_arrive(TURN_BARRIER + (number ^ 1), GROUPS * GROUP);
}

// Turns the scores of tile `tile` into weights. The product that computes the scores must be complete. Rounds the
// weights after `so_far->out` is complete.
template <class P>
static __device__ __forceinline__ void weigh_scores(float (&s)[P::ENTRIES / 2], running_sums<P> *so_far,
                                                    const stages<P> *in, const group_rows *rows, int first, int tile,
                                                    float factor[2], float scale)
{
    if (P::FP8) scale_entries<P, false>(s, scales_of<P>(in->shared, in->stage(tile), false));
    __syncwarp();
    in->free(tile, false);
    if (first + P::ENTRIES > rows->full_end) mask_tile<P>(s, rows, first);
    tile_weigh<P>(s, so_far, factor, scale);
    if (P::FP8) {
        in->wait(tile, true);
        const float *scales = scales_of<P>(in->shared, in->stage(tile), true);
        if (*broken_of<P>(in->shared)) // rare: the comparisons would slow every tile
            scale_entries<P, true>(s, scales);
        else
            scale_entries<P, false>(s, scales);
    }
}

// Computes attention of the group's row-heads to the entries [begin, end), which are a span or the last part of a span.
// Only its first `tiles` tiles have entries that a row-head of the group attends to.
template <class P>
static __device__ __forceinline__ void attend_span(running_sums<P> *so_far, const stages<P> *in, uint64_t q,
                                                   const group_rows *rows, int begin, int end, int tiles, float scale)
{
    float s[P::ENTRIES / 2], factor[2];
    uint32_t weights[P::ENTRIES / 4];
    for (int r = 0; r < 2; r++)
        so_far->exponent[r] = EXPONENT_NONE, so_far->sum[r] = 0;

    const unsigned char *k = in->wait(0, false);
    wgmma_fence();
    multiply_keys<P>(s, q, matrix_at(k, 0));
    wgmma_commit();
    wgmma_wait<0>(s);
    weigh_scores<P>(s, so_far, in, rows, begin, 0, factor, scale);
    pack_weights<P>(weights, s);
    for (int tile = 1; tile < tiles; tile++) {
        k = in->wait(tile, false);
        turn_take(rows->number);
        wgmma_fence();
        multiply_keys<P>(s, q, matrix_at(k, 0));
        wgmma_commit();
        const unsigned char *v = in->values(tile - 1);
        multiply_values<P>(so_far->out, weights, values_at<P>(v), tile > 1);
        wgmma_commit();
        turn_pass(rows->number);
        wgmma_wait<1>(s);
        weigh_scores<P>(s, so_far, in, rows, begin + tile * P::ENTRIES, tile, factor, scale);
        wgmma_wait<0>(so_far->out);
        in->free(tile - 1, true);
        rescale<P>(so_far->out, factor);
        pack_weights<P>(weights, s);
    }
    unsigned char *v = in->values(tiles - 1);
    const int there = end - (begin + (tiles - 1) * P::ENTRIES);
    if (!P::FP8 && there < P::ENTRIES) clear_values<P>(v, rows, there);
    wgmma_fence();
    multiply_values<P>(so_far->out, weights, values_at<P>(v), tiles > 1);
    wgmma_commit();
    wgmma_wait<0>(so_far->out);
    in->free(tiles - 1, true);
    for (int r = 0; r < 2; r++) { // adds the sums of the lanes with other columns
        so_far->sum[r] += __shfl_xor_sync(FULL_WARP, so_far->sum[r], 1);
        so_far->sum[r] += __shfl_xor_sync(FULL_WARP, so_far->sum[r], 2);
    }
}

// Skips the tiles of a span from number `from` on, which no row-head of the group attends to: takes and passes their
// turns, and frees them.
template <class P>
static __device__ __forceinline__ void skip_tiles(const stages<P> *in, const group_rows *rows, int from, int tiles)
{
    for (int tile = from; tile < tiles; tile++) {
        for (int v = 0; v < 2; v++) {
            in->wait(tile, v);
            in->free(tile, v);
        }
        if (tile == 0) continue; // the first tile has no turn
        turn_take(rows->number);
        turn_pass(rows->number);
    }
}

// ---- spans ----------------------------------------------------------------------------------------------------------

// Factors by which the total and a span's result are multiplied before they are added. The factors are powers of 2, so
// only the sum rounds.
struct fold {
    float exponent, of_total, of_span;
};

static __device__ __forceinline__ fold fold_of(float total_exponent, float span_exponent)
{
    fold f;
    f.exponent = fmaxf(total_exponent, span_exponent);
    f.of_total = exp2_approx(total_exponent - f.exponent);
    f.of_span = exp2_approx(span_exponent - f.exponent);
    return f;
}

static __device__ __forceinline__ float fold_add(const fold *f, float total, float span)
{
    return fmaf(span, f->of_span, total * f->of_total);
}

// Total of the earlier spans: sums of weighted V in shared memory.
struct span_total {
    float *out; // [D / 2] values of this thread, at a distance of GROUPS * GROUP floats
    float exponent[2], sum[2];
};

// Adds the total of earlier spans to the span's result. A row-head that has no entry in the span keeps its total.
template <class P>
static __device__ __forceinline__ void add_total(running_sums<P> *span, const span_total *total, const group_rows *rows,
                                                 int begin)
{
    fold f[2];
    bool has[2];
    for (int r = 0; r < 2; r++) {
        f[r] = fold_of(total->exponent[r], span->exponent[r]);
        has[r] = rows->last[r] >= begin;
        span->sum[r] = has[r] ? fold_add(&f[r], total->sum[r], span->sum[r]) : total->sum[r];
        span->exponent[r] = has[r] ? f[r].exponent : total->exponent[r];
    }
#pragma unroll
    for (int i = 0; i < P::D / 2; i++) {
        float before = total->out[i * GROUPS * GROUP];
        int r = i / 2 % 2;
        span->out[i] = has[r] ? fold_add(&f[r], before, span->out[i]) : before;
    }
}

template <class P> static __device__ __forceinline__ void keep_total(span_total *total, const running_sums<P> *span)
{
    for (int r = 0; r < 2; r++)
        total->exponent[r] = span->exponent[r], total->sum[r] = span->sum[r];
#pragma unroll
    for (int i = 0; i < P::D / 2; i++)
        total->out[i * GROUPS * GROUP] = span->out[i];
}

// Returns where `partials` holds a span's results for one KV head: exponent and sum of each row-head, then D sums of
// weighted V for each row-head.
template <int D> static __device__ __forceinline__ float *partial_of(float *partials, int64_t slot)
{
    return partials + slot * TILE_ROW_HEADS * (D + 2);
}

template <class P>
static __device__ __forceinline__ void write_partial(float *partial, const running_sums<P> *span, const work *w,
                                                     int number)
{
    const int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x % GROUP / WARP;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int row_head = number * GROUP_ROWS + warp * 16 + r * 8 + lane / 4;
        if (row_head >= w->tile.count) continue;
        if (lane % 4 == 0)
            *reinterpret_cast<float2 *>(partial + 2 * row_head) = make_float2(span->exponent[r], span->sum[r]);
        float *to = partial + 2 * TILE_ROW_HEADS + row_head * P::D + lane % 4 * 2;
#pragma unroll
        for (int n = 0; n < P::D / 8; n++)
            *reinterpret_cast<float2 *>(to + 8 * n) =
                make_float2(span->out[4 * n + 2 * r], span->out[4 * n + 2 * r + 1]);
    }
}

// Divides by the sums of weights and writes the results of the warp's row-heads. The results go through the shared
// memory of q, so that whole lines are written.
template <class P>
static __device__ __forceinline__ void write_out(running_sums<P> *all, unsigned char *shared, uint16_t *out,
                                                 int64_t out_stride, const work *w, int number, int group)
{
    const int lane = (int)threadIdx.x % WARP, first = number * GROUP_ROWS + (int)threadIdx.x % GROUP / WARP * 16;
    named_sync(OWN_BARRIER + number, GROUP); // all warps have multiplied with q
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float factor = 1 / all->sum[r];
#pragma unroll
        for (int n = 0; n < P::D / 8; n++)
            *reinterpret_cast<uint32_t *>(shared + q_chunk_at(first + r * 8 + lane / 4, n) + lane % 4 * 4) =
                pack_bf16(all->out[4 * n + 2 * r] * factor, all->out[4 * n + 2 * r + 1] * factor);
    }
    __syncwarp();
#pragma unroll 4
    for (int i = lane; i < 16 * P::CHUNKS; i += WARP) {
        int row_head = first + i / P::CHUNKS, chunk = i % P::CHUNKS, in_seq = w->tile.first + row_head;
        if (row_head >= w->tile.count) continue;
        int64_t at = (w->row + in_seq / group) * out_stride + (int64_t)(w->kv_head * group + in_seq % group) * P::D;
        *reinterpret_cast<uint4 *>(out + at + chunk * 8) =
            *reinterpret_cast<const uint4 *>(shared + q_chunk_at(row_head, chunk));
    }
    __syncwarp(); // wait before the next q is loaded
}

// ---- the kernel -----------------------------------------------------------------------------------------------------

template <class P>
static __device__ __forceinline__ void attend_works(unsigned char *shared, stage_barriers *barriers, const kv_cache *kv,
                                                    const device_batch *batch, uint16_t *out, int out_stride,
                                                    const float *qkv, int n_heads, float *partials, int number)
{
    const int group = n_heads / kv->n_kv_heads;
    const float scale = score_scale(P::D);
    const uint64_t q = matrix_at(shared + number * GROUP_ROWS * HALF_ROW, 0);
    stages<P> in = {shared, barriers, 0};
    span_total total;
    total.out = reinterpret_cast<float *>(shared + P::TOTAL_AT) + (int)threadIdx.x - GROUP;
    running_sums<P> sums;
    work w;
    if (number == 1) turn_pass(1); // group 0 has the first turn
    for (int i = 0; work_of(&w, batch, kv->n_kv_heads, group, i); i++) {
        const group_rows rows = group_rows_of(&w, number, group);
        load_q_rows<P>(shared, &w, number, qkv, (int64_t)(n_heads + 2 * kv->n_kv_heads) * P::D, group);
        writes_fence();
        named_sync(OWN_BARRIER + number, GROUP);
        for (int begin = w.begin; begin < w.end; begin += TILE_SPAN) {
            const int end = min(begin + TILE_SPAN, w.end), tiles = (end - begin + P::ENTRIES - 1) / P::ENTRIES;
            const int seen = min(tiles, max(0, (rows.seen_end - begin + P::ENTRIES - 1) / P::ENTRIES));
            if (seen > 0) {
                attend_span<P>(&sums, &in, q, &rows, begin, end, seen, scale);
                if (begin > w.begin) add_total<P>(&sums, &total, &rows, begin);
                if (begin + TILE_SPAN < rows.seen_end) keep_total<P>(&total, &sums);
            }
            skip_tiles<P>(&in, &rows, seen, tiles);
            in.done += tiles;
        }
        if (rows.seen_end <= w.begin) continue;
        if (w.tile.span < 0) {
            write_out<P>(&sums, shared, out, out_stride, &w, number, group);
        } else {
            write_partial<P>(
                partial_of<P::D>(partials, (int64_t)(w.tile.slot + w.tile.span) * kv->n_kv_heads + w.kv_head), &sums,
                &w, number);
            named_sync(OWN_BARRIER + number, GROUP); // every warp has multiplied with q, which the next q overwrites
        }
    }
    if (number == 0) turn_take(0); // takes the last turn that group 1 passed
}

// Grid: at most one thread block per multiprocessor. `map` is the cache as rows of D values, in boxes of a KV block and
// 64 of its dims, or for FP8 all of its dims.
template <class P>
static __global__ void __launch_bounds__(THREADS, 1)
    attend_wgmma_kernel(const __grid_constant__ CUtensorMap map, kv_cache kv, device_batch batch, int layer,
                        uint16_t *out, int out_stride, const float *qkv, int n_heads, float *partials)
{
    if (HOPPER) { // the host uses the kernel only on such GPUs
        DYNAMIC_SHARED(unsigned char, shared);
        stage_barriers *barriers = reinterpret_cast<stage_barriers *>(shared + P::BARRIERS_AT),
                       *raw = barriers + P::FP8;
        const int number = __shfl_sync(FULL_WARP, (int)threadIdx.x / GROUP, 0) - 1; // -1: the copying group
        if (threadIdx.x == 0) {
            box_prefetch_map(&map);
            for (int i = 0; i < 2 * STAGES; i++) {
                if (P::FP8) barrier_init(&raw->full[0][0] + i, 1), barrier_init(&raw->free[0][0] + i, GROUP);
                barrier_init(&barriers->full[0][0] + i, P::FP8 ? (int)GROUP : 1);
                barrier_init(&barriers->free[0][0] + i, GROUPS * GROUP / WARP);
            }
            if (P::FP8) *broken_of<P>(shared) = 0;
            barrier_init_fence();
        }
        __syncthreads();
        if (number < 0) {
            registers_lower<P::LOW_REGISTERS>();
            if (P::FP8)
                convert_works<P>(shared, raw, barriers, &map, &kv, &batch, layer, n_heads / kv.n_kv_heads);
            else if (threadIdx.x < 2 * WARP)
                copy_works<P>(shared, barriers, &map, &kv, &batch, layer, n_heads / kv.n_kv_heads);
        } else {
            registers_raise<P::HIGH_REGISTERS>();
            attend_works<P>(shared, barriers, &kv, &batch, out, out_stride, qkv, n_heads, partials, number);
        }
    }
}

// Adds the spans of tiles that several thread blocks have computed, with the bits of attend_works. Grid: KV heads x
// tiles x parts of a tile, with one warp for each row-head. Loads a few spans together, so that their waits for memory
// overlap.
enum { COMBINE_WARPS = 8, COMBINE_AHEAD = 8 };
template <int D>
static __global__ void __launch_bounds__(COMBINE_WARPS *WARP)
    combine_spans_kernel(kv_cache kv, device_batch batch, uint16_t *out, int out_stride, int n_heads, float *partials)
{
    const attend_tile tile = batch.tiles[blockIdx.y];
    if (tile.span != 0 || tile.count == 0) return; // the whole block
    const int group = n_heads / kv.n_kv_heads, kv_head = (int)blockIdx.x, lane = (int)threadIdx.x % WARP;
    const int dim = D / WARP * lane, kv_len = batch.kv_len[tile.seq], row = batch.row_start[tile.seq];
    const int row_head = (int)blockIdx.z * COMBINE_WARPS + (int)threadIdx.x / WARP;
    if (row_head >= tile.count) return; // the whole warp
    const int in_seq = tile.first + row_head, spans = (kv_len + in_seq / group) / TILE_SPAN + 1;
    float sums[D / WARP], sum = 0, exponent = EXPONENT_NONE;
    for (int first = 0; first < spans; first += COMBINE_AHEAD) {
        float2 head[COMBINE_AHEAD];
        float parts[COMBINE_AHEAD][D / WARP];
#pragma unroll
        for (int ahead = 0; ahead < COMBINE_AHEAD; ahead++) {
            const int span = min(first + ahead, spans - 1);
            const float *from = partial_of<D>(partials, (int64_t)(tile.slot + span) * kv.n_kv_heads + kv_head);
            head[ahead] = *reinterpret_cast<const float2 *>(from + 2 * row_head);
#pragma unroll
            for (int k = 0; k < D / WARP; k++)
                parts[ahead][k] = from[2 * TILE_ROW_HEADS + row_head * D + dim + k];
        }
#pragma unroll
        for (int ahead = 0; ahead < COMBINE_AHEAD; ahead++) {
            const int span = first + ahead;
            if (span >= spans) continue;
            const fold f = fold_of(exponent, head[ahead].x);
#pragma unroll
            for (int k = 0; k < D / WARP; k++)
                sums[k] = span ? fold_add(&f, sums[k], parts[ahead][k]) : parts[ahead][k];
            sum = span ? fold_add(&f, sum, head[ahead].y) : head[ahead].y;
            exponent = f.exponent;
        }
    }
    const float factor = 1 / sum;
    uint16_t *to =
        out + (int64_t)(row + in_seq / group) * out_stride + (int64_t)(kv_head * group + in_seq % group) * D + dim;
#pragma unroll
    for (int k = 0; k < D / WARP; k += 2)
        *reinterpret_cast<uint32_t *>(to + k) = pack_bf16(sums[k] * factor, sums[k + 1] * factor);
}

// ---- launching ------------------------------------------------------------------------------------------------------

// Returns the driver's function that makes maps, or NULL if the driver has none.
static PFN_cuTensorMapEncodeTiled_v12000 map_encoder(void)
{
    void *function = NULL;
    enum cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
    cudaError_t error =
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found);
#else
    cudaError_t error = cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &function, cudaEnableDefault, &found);
#endif
    if (error != cudaSuccess || found != cudaDriverEntryPointSuccess) function = NULL;
    return reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(function);
}

static cudaError_t map_encode(const kv_cache *kv, CUtensorMap *map)
{
    const PFN_cuTensorMapEncodeTiled_v12000 encode = map_encoder();
    const cuuint64_t d = (cuuint64_t)kv->head_size, rows = (cuuint64_t)geometry_kv_at(kv, kv->n_layers, 0, false, 0);
    const cuuint64_t sizes[] = {d, rows}, strides[] = {kv->fp8 ? d : d * 2};
    const cuuint32_t box[] = {kv->fp8 ? (cuuint32_t)d : (cuuint32_t)HALF, KV_BLOCK_TOKENS}, steps[] = {1, 1};
    if (!encode) return cudaErrorNotSupported;
    CUresult result = encode(map, kv->fp8 ? CU_TENSOR_MAP_DATA_TYPE_UINT8 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2,
                             kv->data, sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                             kv->fp8 ? CU_TENSOR_MAP_SWIZZLE_NONE : CU_TENSOR_MAP_SWIZZLE_128B,
                             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

cudaError_t attention_map_make(const struct kv_cache *kv, struct kv_map *map)
{
    static_assert(sizeof map->bytes == sizeof(CUtensorMap), "the map's memory");
    CUtensorMap encoded; // aligned as the driver requires
    int device, major;
    cudaError_t error = cudaGetDevice(&device);
    if (error == cudaSuccess) error = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    if (error == cudaSuccess)
        error = cudaDeviceGetAttribute(&map->multiprocessors, cudaDevAttrMultiProcessorCount, device);
    map->made = false;
    if (error != cudaSuccess || !geometry_wgmma(major, kv)) return error;
    error = map_encode(kv, &encoded);
    memcpy(map->bytes, &encoded, sizeof encoded);
    map->made = error == cudaSuccess;
    return error;
}

template <class P>
static cudaError_t launch_tiles(cudaStream_t stream, const kv_cache *kv, const device_batch *batch, int layer,
                                uint16_t *out, int out_stride, const float *qkv, int n_heads,
                                const attention_scratch *scratch)
{
    CUtensorMap map;
    memcpy(&map, scratch->map.bytes, sizeof map);
    const unsigned blocks = (unsigned)min(scratch->map.multiprocessors, batch->n_tiles * kv->n_kv_heads);
    cudaError_t error = CUDA_LAUNCH(attend_wgmma_kernel<P>, blocks, (unsigned)THREADS, P::BYTES, stream, map, *kv,
                                    *batch, layer, out, out_stride, qkv, n_heads, scratch->partials);
    if (error != cudaSuccess || !batch->n_spans) return error;
    dim3 grid((unsigned)kv->n_kv_heads, (unsigned)batch->n_tiles, TILE_ROW_HEADS / COMBINE_WARPS);
    return CUDA_LAUNCH(combine_spans_kernel<P::D>, grid, COMBINE_WARPS * WARP, 0, stream, *kv, *batch, out, out_stride,
                       n_heads, scratch->partials);
}

template <int D>
static cudaError_t launch_head_size(cudaStream_t stream, const kv_cache *kv, const device_batch *batch, int layer,
                                    uint16_t *out, int out_stride, const float *qkv, int n_heads,
                                    const attention_scratch *scratch)
{
    return kv->fp8
               ? launch_tiles<tile_plan<D, true>>(stream, kv, batch, layer, out, out_stride, qkv, n_heads, scratch)
               : launch_tiles<tile_plan<D, false>>(stream, kv, batch, layer, out, out_stride, qkv, n_heads, scratch);
}

cudaError_t launch_attention_wgmma(cudaStream_t stream, const struct kv_cache *kv, const struct device_batch *batch,
                                   int layer, void *out, int out_stride, const float *qkv, int n_heads,
                                   const attention_scratch *scratch)
{
    uint16_t *to = static_cast<uint16_t *>(out);
    return kv->head_size == 64 ? launch_head_size<64>(stream, kv, batch, layer, to, out_stride, qkv, n_heads, scratch)
                               : launch_head_size<128>(stream, kv, batch, layer, to, out_stride, qkv, n_heads, scratch);
}
