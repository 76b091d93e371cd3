// SPDX-License-Identifier: Apache-2.0
// Samples tokens on the device, with the parameters and in the order that worker/sampler.h defines: min-p, top-k,
// top-p, then one random number that selects a token by walking the tokens by id. One thread block per row; nothing is
// sorted.
//
// Weights have the bits of the CPU sampler (the same arithmetic, without fused multiply-adds) and are summed as
// integers in units of 2^-45. So sums do not depend on how threads divide them, and a row's token is the same in every
// launch. A vocabulary of 2^18 fits into 64 bits. The sampler sums in double; the difference is less than V * 2^-45 of
// the best token's weight, so only a random number or a top-p within this distance of a boundary selects the
// neighbouring token.
//
// Top-k and top-p keep a run of tokens, best first, lower ids first among equal logits. The end of the run is found by
// bisecting the range of logits, mapped to integers in the same order, with one read of the row per step: 20 to 30
// reads, from the L2 cache. A row with neither takes four reads.
#include <float.h>
#include <math.h>

#include "kernels/cuda/device.h"
#include "kernels/cuda/launch.h"

enum { THREADS = 1024, WARPS = THREADS / WARP };

typedef unsigned long long mass; // sum of weights, in units of 2^-45
static const float MASS_OF_ONE = 35184372088832.0f;

// ---- numbers, as in worker/sampler.c --------------------------------------------------------------------------------

static __device__ __forceinline__ float clamp_logit(float x)
{
    if (!(x >= -FLT_MAX)) return -INFINITY;        // NaN too
    return x > FLT_MAX ? FLT_MAX : x == 0 ? 0 : x; // one zero, so that equal logits are equal bits
}

// An integer in the same order as the logits.
static __device__ __forceinline__ uint32_t key_of(float x)
{
    uint32_t bits = __float_as_uint(x);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

static __device__ __forceinline__ float logit_of_key(uint32_t key)
{
    return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}

static __device__ __forceinline__ float exp_negative(float x)
{
    float y = x > -87.0f ? x : -87.0f;
    float n = __fadd_rn(__fadd_rn(__fmul_rn(y, 1.44269504f), 12582912.0f), -12582912.0f);
    float r = __fadd_rn(__fadd_rn(y, -__fmul_rn(n, 0.693359375f)), __fmul_rn(n, 2.12194440e-4f));
    float p = 1.9875691500e-4f;
    p = __fadd_rn(__fmul_rn(p, r), 1.3981999507e-3f);
    p = __fadd_rn(__fmul_rn(p, r), 8.3334519073e-3f);
    p = __fadd_rn(__fmul_rn(p, r), 4.1665795894e-2f);
    p = __fadd_rn(__fmul_rn(p, r), 1.6666665459e-1f);
    p = __fadd_rn(__fmul_rn(p, r), 5.0000001201e-1f);
    p = __fadd_rn(__fadd_rn(__fmul_rn(__fmul_rn(p, r), r), r), 1.0f);
    return x > -87.0f ? __fmul_rn(p, __int_as_float(((int)n + 127) * (1 << 23))) : 0.0f;
}

// ---- one row --------------------------------------------------------------------------------------------------------

// Shared memory of a thread block.
struct scratch {
    mass of_warp[WARPS], of_thread[THREADS];
    struct sampled_id warp_best[WARPS];
};

// A row and the tokens still eligible: keys above `edge`, and key `edge` for indices up to edge_index.
struct row {
    struct scratch *scratch;
    const float *data;
    int64_t part;
    int columns, n;
    float max, inverse_temperature;
    uint32_t edge;
    int edge_index;
};

static __device__ __forceinline__ float logit_at(const struct row *row, int i)
{
    int64_t at = i < row->columns ? i : i / row->columns * row->part + i % row->columns;
    return clamp_logit(__ldg(row->data + at));
}

static __device__ __forceinline__ float weight_of(const struct row *row, float logit)
{
    return exp_negative(__fmul_rn(__fadd_rn(logit, -row->max), row->inverse_temperature));
}

// The value of a token in a sum. Tokens that are not eligible count as zero.
enum measure {
    COUNT, // 1 from key `from` up
    TIES,  // 1 at key `from`
    MASS,  // its weight from key `from` up
};

static __device__ __forceinline__ mass measure_at(const struct row *row, int i, enum measure measure, uint32_t from)
{
    float logit = logit_at(row, i);
    uint32_t key = key_of(logit);
    if (key < from || key < row->edge || (key == row->edge && i > row->edge_index)) return 0;
    if (measure == TIES) return key == from;
    return measure == COUNT ? 1 : (mass)__fmul_rn(weight_of(row, logit), MASS_OF_ONE);
}

static __device__ __forceinline__ mass warp_sum_mass(mass x)
{
#pragma unroll
    for (int lanes = WARP / 2; lanes > 0; lanes /= 2)
        x += __shfl_xor_sync(FULL_WARP, x, lanes);
    return x;
}

// Writes each warp's sum of x to of_warp, for all threads.
static __device__ __forceinline__ void scratch_sum(struct scratch *scratch, mass x)
{
    x = warp_sum_mass(x);
    __syncthreads(); // the previous sums have been read
    if (threadIdx.x % WARP == 0) scratch->of_warp[threadIdx.x / WARP] = x;
    __syncthreads();
}

static __device__ mass row_sum(const struct row *row, enum measure measure, uint32_t from)
{
    mass x = 0;
    for (int i = (int)threadIdx.x; i < row->n; i += THREADS)
        x += measure_at(row, i, measure, from);
    scratch_sum(row->scratch, x);
    mass sum = 0;
    for (int w = 0; w < WARPS; w++)
        sum += row->scratch->of_warp[w];
    return sum;
}

// Returns the index of the sum at which the running total exceeds *left_p, and subtracts the sums before it from
// *left_p.
static __device__ __forceinline__ int sum_find(const mass *sums, int n, mass *left_p)
{
    int at = 0;
    for (; at < n - 1 && sums[at] <= *left_p; at++)
        *left_p -= sums[at];
    return at;
}

// Returns the index at which the sum by id exceeds `target`, which must be less than the total: finds first the part of
// the row that one warp has summed, then the thread within it, then the element.
static __device__ int row_find(const struct row *row, enum measure measure, uint32_t from, mass target)
{
    int part_size = (row->n + WARPS - 1) / WARPS, warp = (int)threadIdx.x / WARP;
    int begin = warp * part_size, end = min(begin + part_size, row->n);
    mass x = 0;
    for (int i = begin + (int)threadIdx.x % WARP; i < end; i += WARP)
        x += measure_at(row, i, measure, from);
    scratch_sum(row->scratch, x);
    begin = sum_find(row->scratch->of_warp, WARPS, &target) * part_size;
    end = min(begin + part_size, row->n);

    int per_thread = (part_size + THREADS - 1) / THREADS;
    x = 0;
    for (int i = begin + (int)threadIdx.x * per_thread; i < min(begin + ((int)threadIdx.x + 1) * per_thread, end); i++)
        x += measure_at(row, i, measure, from);
    row->scratch->of_thread[threadIdx.x] = x;
    scratch_sum(row->scratch, x);
    int thread = sum_find(row->scratch->of_warp, WARPS, &target) * WARP;
    thread += sum_find(row->scratch->of_thread + thread, WARP, &target);

    int i = begin + thread * per_thread;
    for (mass here; i < end - 1 && (here = measure_at(row, i, measure, from)) <= target; i++)
        target -= here;
    return i;
}

// Keeps the shortest run of tokens, best first, whose sum reaches `need`; keeps all if the total is less.
static __device__ void row_keep_best(struct row *row, enum measure measure, mass need)
{
    // The sum from key `low` up reaches `need`, the sum from `high` up does not.
    uint32_t low = row->edge, high = key_of(row->max) + 1;
    if (row_sum(row, measure, low) < need) return;
    while (high - low > 1) {
        uint32_t middle = low + (high - low) / 2;
        if (row_sum(row, measure, middle) >= need)
            low = middle;
        else
            high = middle;
    }
    mass above = row_sum(row, measure, low + 1), ties = row_sum(row, TIES, low);
    mass each = measure == COUNT ? 1 : (mass)__fmul_rn(weight_of(row, logit_of_key(low)), MASS_OF_ONE);
    mass needed = (need - above + each - 1) / each;
    int last = needed < ties ? row_find(row, TIES, low, needed - 1) : row->edge == low ? row->edge_index : row->n - 1;
    row->edge = low;
    row->edge_index = last;
}

// The smallest key whose weight is positive and at least `least`: tokens below it are not eligible.
static __device__ uint32_t row_min_key(const struct row *row, float least)
{
    uint32_t low = key_of(-INFINITY), high = key_of(row->max); // their weights are 0 and 1
    while (high - low > 1) {
        uint32_t middle = low + (high - low) / 2;
        float weight = weight_of(row, logit_of_key(middle));
        if (weight > 0 && weight >= least)
            high = middle;
        else
            low = middle;
    }
    return high;
}

static __device__ bool better(struct sampled_id a, struct sampled_id b)
{
    return a.logit > b.logit || (a.logit == b.logit && (uint32_t)a.id < (uint32_t)b.id); // -1 sorts last
}

// Index and logit of the likeliest token, -1 if all logits are -inf; the same in all threads.
static __device__ struct sampled_id row_likeliest(const struct row *row)
{
    struct sampled_id *warp_best = row->scratch->warp_best, best = {-INFINITY, -1};
    for (int i = (int)threadIdx.x; i < row->n; i += THREADS) {
        struct sampled_id here = {logit_at(row, i), i};
        if (here.logit > best.logit) best = here;
    }
#pragma unroll
    for (int lanes = WARP / 2; lanes > 0; lanes /= 2) {
        struct sampled_id other = {__shfl_xor_sync(FULL_WARP, best.logit, lanes),
                                   __shfl_xor_sync(FULL_WARP, best.id, lanes)};
        if (better(other, best)) best = other;
    }
    if (threadIdx.x % WARP == 0) warp_best[threadIdx.x / WARP] = best;
    __syncthreads();
    for (int w = 0; w < WARPS; w++)
        if (better(warp_best[w], best)) best = warp_best[w];
    return best;
}

static __device__ int row_sample(struct row *row, const struct row_sampling *sampling)
{
    row->inverse_temperature = sampling->inverse_temperature;
    row->edge = row_min_key(row, sampling->min_p);
    row->edge_index = row->n - 1;
    if (sampling->top_k > 0 && sampling->top_k < row->n) row_keep_best(row, COUNT, (mass)sampling->top_k);
    mass all = row_sum(row, MASS, 0);
    if (sampling->top_p < 1) {
        row_keep_best(row, MASS, (mass)ceil(sampling->top_p * (double)all));
        all = row_sum(row, MASS, 0);
    }
    mass target = (mass)(sampling->uniform * (double)all);
    return row_find(row, MASS, 0, target < all ? target : all - 1);
}

// Grid: one block of THREADS per row. Static shared memory only.
template <bool SAMPLES>
static __global__ void __launch_bounds__(THREADS)
    sample_kernel(struct logit_rows logits, const struct row_sampling *sampling, struct sampled_id *out)
{
    __shared__ struct scratch scratch;
    struct row row = {&scratch,
                      logits.data + (int64_t)blockIdx.x * logits.row_stride,
                      logits.part,
                      logits.columns,
                      logits.n_ids,
                      0,
                      0,
                      0,
                      0};
    struct sampled_id token = row_likeliest(&row);
    row.max = token.logit;
    // Uniform in the block.
    if (SAMPLES && token.id >= 0 && sampling[blockIdx.x].inverse_temperature > 0) {
        token.id = row_sample(&row, sampling + blockIdx.x);
        token.logit = logit_at(&row, token.id);
    }
    if (token.id >= 0) token.id += logits.first_id;
    if (threadIdx.x == 0) out[blockIdx.x] = token;
}

extern "C" cudaError_t launch_argmax(cudaStream_t stream, const struct logit_rows *logits, int rows,
                                     struct sampled_id *out)
{
    return CUDA_LAUNCH(sample_kernel<false>, dim3((unsigned)rows), dim3(THREADS), 0, stream, *logits,
                       (const struct row_sampling *)NULL, out);
}

extern "C" cudaError_t launch_sample(cudaStream_t stream, const struct logit_rows *logits, int rows,
                                     const struct row_sampling *sampling, struct sampled_id *out)
{
    return CUDA_LAUNCH(sample_kernel<true>, dim3((unsigned)rows), dim3(THREADS), 0, stream, *logits, sampling, out);
}
