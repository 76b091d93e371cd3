// SPDX-License-Identifier: Apache-2.0
// Decode attention, for single rows: rows that are the only row of their sequence in the pass. Each entry is read once
// and used a few times, so the kernel is bound by reading K and V. Entries are divided into splits, each with its own
// thread block, so that a single sequence fills the device (flash decoding). The partial results of a row are then
// combined in order. The warps of a block process the KV blocks of a split alternately. V of a block and K of the next
// block are loaded while K is multiplied. Two thread blocks fit on a multiprocessor (three for FP8, whose entries are
// half as long). They have at most 64 KB in flight, and 36 KB would be enough for latency times bandwidth. The data in
// flight is in registers, so with more blocks registers would spill. A block first prefetches the first PREFETCHED
// turns of its warps into the L2 cache: half of a split of 256 entries of 128 dims. Meanwhile it reads q, or waits for
// the previous kernel, which may still write the newest entry.
//
// In passes that have only single rows, a thread block also rotates its heads of q, and the thread blocks of the last
// split write the newest entry. For each row and chunk of heads, the thread block that ends last combines the splits in
// order.
//
// How a row's entries are split depends only on their number, and all sums have a fixed order. Thread blocks of splits
// that a row does not have end immediately: a captured pass is launched with the largest number of splits it may need.
#include "kernels/cuda/dependent.h"
#include "kernels/cuda/prompt_scores.h"
#include "kernels/cuda/rope.h"

enum { WARPS = SCORE_WARPS, PREFETCHED = 2 };

// Divides the dims of V among warps. The largest heads have too many sums for one warp. So two warps process a KV
// block, each for half of the dims of V.
template <int DP> struct warp_dims {
    enum { DIMS = DP < 128 ? DP : 128, COUNT = DP / DIMS, TURNS = WARPS / COUNT };
};

// ---- one split ------------------------------------------------------------------------------------------------------

// A lane's part of 64 dims of a KV block's V. Lane 4 g + c has dims 8 g to 8 g + 7 of entries 2c, 2c+1, 2c+8 and 2c+9.
// So it has column g of fragment B (ptx.h) for eight mma. Columns 0 to 7 of mma i are dims i, 8 + i, 16 + i, ...
template <bool FP8> struct value_part {
    typename packed8<FP8>::type values[4];
};

static __device__ __forceinline__ int value_entry(int i)
{
    return 2 * ((int)threadIdx.x % 4) + i % 2 + i / 2 * 8;
}

// Loads 64 dims of a block from `dim` on. Entries from `end` on become zeros, since a NaN there times a weight of zero
// would be NaN.
template <bool FP8>
static __device__ __forceinline__ void load_values(value_part<FP8> *part, const char *block, int d, int dim, int entry,
                                                   int end)
{
    dim += 8 * ((int)threadIdx.x % WARP / 4);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        int e = entry + value_entry(i);
        part->values[i] = load8<FP8>(block, value_entry(i) * d + dim, e < end && dim < d);
    }
}

static __device__ __forceinline__ void load_value_scales(float scale[4], const float *block, int entry, int end)
{
#pragma unroll
    for (int i = 0; i < 4; i++) {
        int e = entry + value_entry(i);
        scale[i] = e < end ? block[value_entry(i)] : 0;
    }
}

static __device__ __forceinline__ uint32_t component(uint4 v, int i)
{
    return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

// State of the online softmax (arXiv 1805.02867) of heads g and g + 8. `sum` covers only the lane's own columns.
// out[p][i] is fragment C of mma i for the p-th 64 dims.
template <int DP> struct softmax {
    float exponent[2], sum[2], out[warp_dims<DP>::DIMS / 64][8][4];
};

// Turns the scores of 16 entries into weights, as operand A of the mma with V. Rescales the state to the new exponents.
// Weights are 2^(score - M), where M is an integer near the largest score (see backend.h).
template <int DP, bool FP8>
static __device__ __forceinline__ void weigh(uint32_t a[4], softmax<DP> *state, float s[2][4], const float scale[4])
{
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float largest = fmaxf(fmaxf(s[0][2 * r], s[0][2 * r + 1]), fmaxf(s[1][2 * r], s[1][2 * r + 1]));
        largest = fmaxf(largest, __shfl_xor_sync(FULL_WARP, largest, 1));
        largest = fmaxf(largest, __shfl_xor_sync(FULL_WARP, largest, 2));
        largest = fmaxf(state->exponent[r], rintf(largest));
        if (largest != state->exponent[r]) {
            float factor = exp2_approx(state->exponent[r] - largest);
            state->exponent[r] = largest;
            state->sum[r] *= factor;
#pragma unroll
            for (int p = 0; p < warp_dims<DP>::DIMS / 64; p++)
#pragma unroll
                for (int i = 0; i < 8; i++) {
                    state->out[p][i][2 * r] *= factor;
                    state->out[p][i][2 * r + 1] *= factor;
                }
        }
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float weight[2];
#pragma unroll
            for (int k = 0; k < 2; k++) {
                weight[k] = exp2_approx(s[half][2 * r + k] - largest);
                state->sum[r] += weight[k];
                if (FP8) weight[k] *= scale[2 * half + k];
            }
            a[2 * half + r] = pack_bf16(weight[0], weight[1]);
        }
    }
}

template <bool FP8>
static __device__ __forceinline__ void multiply_values(float out[8][4], const uint32_t a[4], const value_part<FP8> *v)
{
    uint4 e0 = as_bf16(v->values[0]), e1 = as_bf16(v->values[1]);
    uint4 e8 = as_bf16(v->values[2]), e9 = as_bf16(v->values[3]);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        uint32_t w0 = component(e0, i), w1 = component(e1, i), w8 = component(e8, i), w9 = component(e9, i);
        mma_bf16(out[2 * i], a, pack_lower(w0, w1), pack_lower(w8, w9));
        mma_bf16(out[2 * i + 1], a, pack_upper(w0, w1), pack_upper(w8, w9));
    }
}

// Results of the warps of a block, in shared memory.
template <int DP> struct warp_results {
    enum { STRIDE = warp_dims<DP>::DIMS + 4 };
    float exponent[WARPS][SCORE_HEADS], sum[WARPS][SCORE_HEADS];
    float out[WARPS][SCORE_HEADS][STRIDE];
};

// Stores the results of a warp. Lane 4 g + c has the 16 dims from 64 p + 16 c on, within the warp's dims, for heads g
// and g + 8. Column 2c of mma i is dim 16 c + i of the 64.
template <int DP> static __device__ __forceinline__ void store_results(warp_results<DP> *all, const softmax<DP> *state)
{
    int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP, g = lane / 4, c = lane % 4;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float sum = state->sum[r];
        sum += __shfl_xor_sync(FULL_WARP, sum, 1);
        sum += __shfl_xor_sync(FULL_WARP, sum, 2);
        int head = g + 8 * r;
        if (c == 0) all->exponent[warp][head] = state->exponent[r], all->sum[warp][head] = sum;
#pragma unroll
        for (int p = 0; p < warp_dims<DP>::DIMS / 64; p++)
#pragma unroll
            for (int k = 0; k < 2; k++) // columns 2c and 2c + 1
#pragma unroll
                for (int i = 0; i < 8; i += 4) {
                    float *to = &all->out[warp][head][64 * p + 16 * c + 8 * k + i];
                    const float(*from)[4] = &state->out[p][i];
                    *reinterpret_cast<float4 *>(to) =
                        make_float4(from[0][2 * r + k], from[1][2 * r + k], from[2][2 * r + k], from[3][2 * r + k]);
                }
    }
}

// Brings K or V of a block and head into the L2 cache.
template <bool FP8> static __device__ __forceinline__ void prefetch_block(const kv_cache *kv, int64_t at)
{
    const int bytes = KV_BLOCK_TOKENS * kv->head_size * (FP8 ? 1 : 2);
    for (int i = (int)threadIdx.x % WARP * 128; i < bytes; i += WARP * 128)
        prefetch_line(block_data<FP8>(kv, at) + i);
}

// ---- the row itself -------------------------------------------------------------------------------------------------

// Rotates the heads of q and stores them in shared memory, in the layout of load_q.
template <int DP>
static __device__ __forceinline__ void rotate_q(uint16_t *q, const struct rope *rope, const float *data, int row,
                                                const score_heads *heads, int n_heads, const kv_cache *kv)
{
    const int d = kv->head_size;
    for (int i = (int)threadIdx.x; i < SCORE_HEADS * (DP / 8); i += WARPS * WARP) {
        const int head = i / (DP / 8), dim = i % (DP / 8) * 8;
        if (head >= heads->count || dim >= d)
            *reinterpret_cast<uint4 *>(q + head * score_q<DP>::STRIDE + dim) = make_uint4(0, 0, 0, 0);
    }
    for (int i = (int)threadIdx.x / WARP; i < heads->count; i += WARPS) {
        const int head = heads->first + i;
        lane_dims x;
        load_head(&x, rope, rope->angles + (int64_t)row * rope->angle_stride, data + head * d, head, n_heads,
                  kv->n_kv_heads, d);
        store_bf16(&x, q + i * score_q<DP>::STRIDE, d / 2);
    }
}

// Writes K and V of the row. Thread blocks for other query heads of the same KV head write the same bytes. So each
// block reads what it has written itself.
static __device__ __forceinline__ void append_entry(const struct rope *rope, const float *data, int row, int kv_head,
                                                    int n_heads, const kv_cache *kv, const device_batch *batch,
                                                    int layer)
{
    // Use the last warps: the first warps may have more heads of q.
    const int d = kv->head_size, warp = (int)threadIdx.x / WARP, from = WARPS - 2;
    if (warp < from) return;
    const bool is_v = warp > from;
    const int head = n_heads + (is_v ? kv->n_kv_heads : 0) + kv_head;
    lane_dims x;
    load_head(&x, rope, rope->angles + (int64_t)row * rope->angle_stride, data + head * d, head, n_heads,
              kv->n_kv_heads, d);
    store_entry(&x, kv, batch, layer, row, is_v, kv_head);
}

// ---- all splits of a row --------------------------------------------------------------------------------------------

// Shared memory for combining splits.
struct combined {
    float weight[SPLITS_MAX], warp_largest[WARPS], warp_total[WARPS];
    float sums[WARPS][ROPE_HEAD_MAX];
};

// Adds the splits of a query head. With n warps, each warp sums every n-th split. Then the sums of the warps are added
// in order. `at` is geometry_partial_at() of the first split.
static __device__ __forceinline__ void combine_splits(combined *c, uint16_t *to, const float *partials,
                                                      const float *outs, int64_t at, int splits, int d)
{
    const int thread = (int)threadIdx.x, warp = thread / WARP, lane = thread % WARP;
    float exponent = EXPONENT_NONE, sum = 0; // for split number `thread`; there are at most as many splits as threads
    if (thread < splits) exponent = partials[2 * (at + thread)], sum = partials[2 * (at + thread) + 1];
    float largest = warp_max(exponent);
    if (lane == 0) c->warp_largest[warp] = largest;
    __syncthreads();
    largest = fmaxf(fmaxf(c->warp_largest[0], c->warp_largest[1]), fmaxf(c->warp_largest[2], c->warp_largest[3]));
    float factor = exp2_approx(exponent - largest), total = warp_sum(sum * factor);
    c->weight[thread] = factor;
    if (lane == 0) c->warp_total[warp] = total;
    __syncthreads();
    total = c->warp_total[0] + c->warp_total[1] + c->warp_total[2] + c->warp_total[3];

    outs += at * d;
    for (int dim = 4 * lane; dim < d; dim += 4 * WARP) {
        float4 acc = make_float4(0, 0, 0, 0);
#pragma unroll 4
        for (int i = warp; i < splits; i += WARPS) {
            float4 x = *reinterpret_cast<const float4 *>(outs + (int64_t)i * d + dim);
            acc.x += c->weight[i] * x.x, acc.y += c->weight[i] * x.y;
            acc.z += c->weight[i] * x.z, acc.w += c->weight[i] * x.w;
        }
        *reinterpret_cast<float4 *>(&c->sums[warp][dim]) = acc;
    }
    __syncthreads();
    for (int dim = 2 * thread; dim < d; dim += 2 * WARPS * WARP) {
        float low = c->sums[0][dim] + c->sums[1][dim] + c->sums[2][dim] + c->sums[3][dim];
        float high = c->sums[0][dim + 1] + c->sums[1][dim + 1] + c->sums[2][dim + 1] + c->sums[3][dim + 1];
        *reinterpret_cast<uint32_t *>(to + dim) = pack_bf16(low / total, high / total);
    }
    __syncthreads(); // wait before the next head
}

// Returns true in the last thread block of this row and its heads. The caller may then read the partial results of the
// other blocks. Leaves the counter at zero for the next kernel. Every thread must call it.
static __device__ __forceinline__ bool arrive_last(uint32_t *arrivals, int splits)
{
    __shared__ int last;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        last = atomicAdd(arrivals, 1u) + 1 == (uint32_t)splits;
        if (last) *arrivals = 0;
        __threadfence();
    }
    __syncthreads();
    return last;
}

// ---- one split ------------------------------------------------------------------------------------------------------

// Destinations of the results.
struct split_results {
    float *partials;
    uint32_t *arrivals;
    float *kept;
    uint16_t *out;
    int out_stride, unused; // instead of padding
};

// Computes one split. Grid: splits x chunks of heads x single rows. Shared memory: q and warp_results. ROPE: the heads
// are not rotated yet, and the row's entry is not in the cache. KEEPS: keeps the scores of importance rows.
template <int DP, bool FP8, bool ROPE, bool KEEPS>
static __global__ void __launch_bounds__(WARPS *WARP, FP8 &&DP <= 128 ? 3 : 2)
    attend_split_kernel(kv_cache kv, device_batch batch, int layer, const float *qkv, int n_heads, struct rope rope,
                        split_results to)
{
    dependents_start();
    int d = kv.head_size, row = batch.single_row[blockIdx.z], s = row < 0 ? -1 : batch.row_seq[row];
    int n = s < 0 ? 0 : batch.kv_len[s] + 1; // 0: padding of a captured pass
    int split_entries = geometry_split_entries(n);
    int64_t begin = (int64_t)blockIdx.x * split_entries;
    if (begin >= n) { // ends the whole block
        dependency_wait();
        return;
    }
    int end = (int)min(begin + split_entries, (int64_t)n);
    score_heads heads = score_heads_of((int)blockIdx.y, n_heads, kv.n_kv_heads);
    const int32_t *table = batch.block_table + (int64_t)s * batch.max_blocks;
    const int warp = (int)threadIdx.x / WARP, turns = warp_dims<DP>::TURNS, last = (end - 1) / KV_BLOCK_TOKENS;
    const int64_t zero = geometry_kv_at(&kv, layer, 0, false, heads.kv_head); // index of block 0
    const int block_size = 2 * kv.n_kv_heads * KV_BLOCK_TOKENS, values_at = block_size / 2;
    int i = (int)begin / KV_BLOCK_TOKENS + warp / warp_dims<DP>::COUNT;
    for (int ahead = i; ahead <= min(i + (PREFETCHED - 1) * turns, last); ahead += turns) {
        const int64_t at = zero + (int64_t)__ldg(table + ahead) * block_size;
        prefetch_block<FP8>(&kv, at);
        prefetch_block<FP8>(&kv, at + values_at);
    }
    dependency_wait();

    DYNAMIC_SHARED(unsigned char, shared);
    uint16_t *q = reinterpret_cast<uint16_t *>(shared);
    warp_results<DP> *results = reinterpret_cast<warp_results<DP> *>(shared + score_q<DP>::BYTES);
    const float *data = qkv + (int64_t)row * (n_heads + 2 * kv.n_kv_heads) * d;
    if (ROPE) {
        rotate_q<DP>(q, &rope, data, row, &heads, n_heads, &kv);
        if (end == n) append_entry(&rope, data, row, heads.kv_head, n_heads, &kv, &batch, layer);
    } else {
        load_q<DP>(q, data, &heads, d);
    }
    __syncthreads();

    softmax<DP> state;
#pragma unroll
    for (int r = 0; r < 2; r++)
        state.exponent[r] = EXPONENT_NONE, state.sum[r] = 0;
#pragma unroll
    for (int p = 0; p < warp_dims<DP>::DIMS / 64; p++)
#pragma unroll
        for (int i = 0; i < 8; i++)
#pragma unroll
            for (int k = 0; k < 4; k++)
                state.out[p][i][k] = 0;

    kept_scores keep;
    if (KEEPS) keep = kept_scores_of(&batch, batch.single_importance[blockIdx.z], &heads, n_heads, to.kept);
    const int first_dim = warp % warp_dims<DP>::COUNT * warp_dims<DP>::DIMS;
    const float scale = score_scale(d);
    // K of the next block is loaded before V of this block is used. The largest heads have no registers for this, and
    // they load K in parts.
    typedef score_keys<DP, FP8> keys_part;
    const bool ahead = keys_part::PARTS == 1;
    int64_t at = zero, next = zero;
    keys_part keys;
    if (i <= last) {
        at += (int64_t)__ldg(table + i) * block_size;
        next += (int64_t)__ldg(table + min(i + turns, last)) * block_size;
        if (ahead) load_keys(&keys, block_data<FP8>(&kv, at), d, 0);
    }
    for (; i <= last; i += turns) {
        int entry = i * KV_BLOCK_TOKENS;
        const char *block = block_data<FP8>(&kv, at + values_at);
        value_part<FP8> values[warp_dims<DP>::DIMS / 64];
        float scores[2][4] = {}, value_scale[4];
        if (FP8) load_value_scales(value_scale, kv.scale + at + values_at, entry, end);
#pragma unroll
        for (int p = 0; ahead && p < warp_dims<DP>::DIMS / 64; p++)
            load_values(&values[p], block, d, first_dim + 64 * p, entry, end);
#pragma unroll
        for (int part = 0; part < keys_part::PARTS; part++) {
            if (!ahead) load_keys(&keys, block_data<FP8>(&kv, at), d, part);
            add_scores(scores, &keys, q, part);
        }
        scale_scores<FP8>(scores, kv.scale + at, scale);
        at = next;
        if (ahead && i + turns <= last) load_keys(&keys, block_data<FP8>(&kv, at), d, 0);
        next = zero + (int64_t)__ldg(table + min(i + 2 * turns, last)) * block_size;
        mask_scores(scores, entry, end);
        if (KEEPS && first_dim == 0) keep_scores(&keep, scores, entry); // warps for other dims compute the same scores
        uint32_t a[4];
        weigh<DP, FP8>(a, &state, scores, value_scale);
#pragma unroll
        for (int p = 0; p < warp_dims<DP>::DIMS / 64; p++) {
            if (!ahead) load_values(&values[p], block, d, first_dim + 64 * p, entry, end);
            multiply_values(state.out[p], a, &values[p]);
        }
    }
    if (KEEPS && begin < keep.keys) keep_sums(&keep, (int)blockIdx.x);
    store_results(results, &state);
    __syncthreads();

    float *partials = to.partials, *outs = partials + geometry_partial_sums(batch.n_single, n_heads, batch.max_splits);
    for (int k = (int)threadIdx.x; k < heads.count * DP; k += WARPS * WARP) {
        int head = k / DP, dim = k % DP;
        if (dim >= d) continue;
        float largest = EXPONENT_NONE, out = 0, sum = 0;
        const int from = dim / warp_dims<DP>::DIMS; // the first warp that has this dim
        for (int w = from; w < WARPS; w += warp_dims<DP>::COUNT)
            largest = fmaxf(largest, results->exponent[w][head]);
        for (int w = from; w < WARPS; w += warp_dims<DP>::COUNT) {
            float factor = exp2_approx(results->exponent[w][head] - largest);
            out += results->out[w][head][dim % warp_dims<DP>::DIMS] * factor;
            sum += results->sum[w][head] * factor;
        }
        int64_t at =
            geometry_partial_at((int)blockIdx.z, heads.first + head, (int)blockIdx.x, n_heads, batch.max_splits);
        outs[at * d + dim] = out;
        if (dim == 0) partials[2 * at] = largest, partials[2 * at + 1] = sum;
    }

    const int splits = geometry_splits(n);
    if (!arrive_last(to.arrivals + (int64_t)blockIdx.z * gridDim.y + blockIdx.y, splits)) return;
    for (int head = heads.first; head < heads.first + heads.count; head++)
        combine_splits(reinterpret_cast<combined *>(shared), to.out + (int64_t)row * to.out_stride + (int64_t)head * d,
                       partials, outs, geometry_partial_at((int)blockIdx.z, head, 0, n_heads, batch.max_splits), splits,
                       d);
}

// ---- launching ------------------------------------------------------------------------------------------------------

template <int DP, bool FP8>
static cudaError_t launch_splits(cudaStream_t stream, const kv_cache *kv, const device_batch *batch, int layer,
                                 const float *qkv, int n_heads, const struct rope *rope, const split_results *to)
{
    dim3 grid((unsigned)batch->max_splits, (unsigned)score_chunks(n_heads, kv->n_kv_heads), (unsigned)batch->n_single);
    size_t shared = score_q<DP>::BYTES + sizeof(warp_results<DP>);
    static_assert(sizeof(combined) <= score_q<DP>::BYTES + sizeof(warp_results<DP>), "in the same memory");
    if (rope)
        return CUDA_LAUNCH_EARLY((attend_split_kernel<DP, FP8, true, false>), grid, WARPS * WARP, shared, stream, *kv,
                                 *batch, layer, qkv, n_heads, *rope, *to);
    if (batch->n_importance_rows > batch->n_tiled_importance)
        return CUDA_LAUNCH_EARLY((attend_split_kernel<DP, FP8, false, true>), grid, WARPS * WARP, shared, stream, *kv,
                                 *batch, layer, qkv, n_heads, {}, *to);
    return CUDA_LAUNCH_EARLY((attend_split_kernel<DP, FP8, false, false>), grid, WARPS * WARP, shared, stream, *kv,
                             *batch, layer, qkv, n_heads, {}, *to);
}

template <int DP>
static cudaError_t launch_head_size(cudaStream_t stream, const kv_cache *kv, const device_batch *batch, int layer,
                                    const float *qkv, int n_heads, const struct rope *rope, const split_results *to)
{
    return kv->fp8 ? launch_splits<DP, true>(stream, kv, batch, layer, qkv, n_heads, rope, to)
                   : launch_splits<DP, false>(stream, kv, batch, layer, qkv, n_heads, rope, to);
}

cudaError_t launch_attention_single(cudaStream_t stream, const struct kv_cache *kv, const struct device_batch *batch,
                                    int layer, void *out, int out_stride, const float *qkv, int n_heads,
                                    const struct attention_scratch *scratch, const struct rope *rope)
{
    const int d = kv->head_size;
    const split_results to = {
        scratch->partials, scratch->arrivals, scratch->kept, static_cast<uint16_t *>(out), out_stride, 0};
    return d <= 64    ? launch_head_size<64>(stream, kv, batch, layer, qkv, n_heads, rope, &to)
           : d <= 128 ? launch_head_size<128>(stream, kv, batch, layer, qkv, n_heads, rope, &to)
                      : launch_head_size<256>(stream, kv, batch, layer, qkv, n_heads, rope, &to);
}
