// SPDX-License-Identifier: Apache-2.0
// Samples tokens on the device, with the parameters and in the order that worker/sampler.h defines: min-p, top-k,
// top-p, then one random number that selects a token by walking the tokens by id. There is one thread block per row,
// and nothing is sorted.
//
// Weights have the bits of the CPU sampler (the same arithmetic, without fused multiply-adds) and are summed as
// integers in units of 2^-45. So sums do not depend on their division among threads, and a row's token is the same in
// every launch. A vocabulary of 2^18 fits into 64 bits. The CPU sampler sums in double. The two sums differ by less
// than V * 2^-45 of the best token's weight. So the token differs only if a random number or a top-p is within this
// distance of a boundary between two tokens.
//
// Top-k and top-p keep a run: the best tokens, lower ids first among equal logits. One read of the row counts and
// weighs the tokens in a histogram, whose bins are ranges of logits. The sums over the bins give the bin in which the
// run ends. One more read collects the tokens of that bin, and each thread compares one of them with all others. So
// top-k and top-p together typically take five reads of the row (counted in the code, not measured), from the L2 cache,
// and a row with neither takes four. Only a bin with more tokens than threads (a thousand logits within 1/32 of the
// temperature) is searched by bisection, with 20 to 30 reads.
#include <float.h>
#include <math.h>

#include "kernels/cuda/dependent.h"
#include "kernels/cuda/launch.h"

enum { THREADS = 1024, WARPS = THREADS / WARP };
enum { BINS = 2 * THREADS, BINS_PER_UNIT = 32 }; // histogram bins of -log(weight); the last bin has all tokens beyond

typedef unsigned long long mass; // sum of weights, in units of 2^-45
static const float MASS_OF_ONE = 35184372088832.0f;

// ---- numbers, as in worker/sampler.c --------------------------------------------------------------------------------

static __device__ __forceinline__ float clamp_logit(float x)
{
    if (!(x >= -FLT_MAX)) return -INFINITY;        // NaN too
    return x > FLT_MAX ? FLT_MAX : x == 0 ? 0 : x; // makes one zero, so that equal logits have equal bits
}

// Returns an integer in the same order as the logits.
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

// Place of a token in the order from best to worst: larger keys first, and lower indices first among equal keys.
struct place {
    uint32_t key;
    int index;
};

// Shared memory of a thread block.
struct scratch {
    mass of_warp[WARPS], of_thread[THREADS];
    struct sampled_id warp_best[WARPS];
    mass bin_mass[BINS]; // mass of eligible tokens, best bin first
    uint32_t bin_count[BINS];
    struct place found[THREADS], last; // tokens of one bin; last token of the run
    int n_found;
};

// A row. A token is eligible if its key is above `edge`, or if its key is `edge` and its index is at most edge_index.
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
    return clamp_logit(row->data[at]);
}

// Calls f(i, logit) for i = from, from + step, .. below `end`. Loads AHEAD logits together. If it loaded one after
// another, a block would read its row at a tenth of the speed.
template <class F>
static __device__ __forceinline__ void logits_each(const struct row *row, int from, int end, int step, const F &f)
{
    const int AHEAD = 8;
    for (; from < end; from += AHEAD * step) {
        float logit[AHEAD];
#pragma unroll
        for (int k = 0; k < AHEAD; k++)
            logit[k] = logit_at(row, min(from + k * step, end - 1));
#pragma unroll
        for (int k = 0; k < AHEAD; k++)
            if (from + k * step < end) f(from + k * step, logit[k]);
    }
}

static __device__ __forceinline__ float weight_of(const struct row *row, float logit)
{
    return exp_negative(__fmul_rn(__fadd_rn(logit, -row->max), row->inverse_temperature));
}

// Amount that a token adds to a sum. A token that is not eligible adds zero.
enum measure {
    COUNT, // 1 if its key is `from` or above
    TIES,  // 1 if its key is `from`
    MASS,  // its weight if its key is `from` or above
};

static __device__ __forceinline__ mass measure_of(const struct row *row, int i, float logit, enum measure measure,
                                                  uint32_t from)
{
    uint32_t key = key_of(logit);
    if (key < from || key < row->edge || (key == row->edge && i > row->edge_index)) return 0;
    if (measure == TIES) return key == from;
    return measure == COUNT ? 1 : (mass)__fmul_rn(weight_of(row, logit), MASS_OF_ONE);
}

static __device__ __forceinline__ mass measure_at(const struct row *row, int i, enum measure measure, uint32_t from)
{
    return measure_of(row, i, logit_at(row, i), measure, from);
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
    logits_each(row, (int)threadIdx.x, row->n, THREADS,
                [&](int i, float logit) { x += measure_of(row, i, logit, measure, from); });
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
#pragma unroll 1
    for (; at < n - 1 && sums[at] <= *left_p; at++)
        *left_p -= sums[at];
    return at;
}

// Returns the index at which the running sum in order of id exceeds `target`. `target` must be less than the total.
// Finds the part of the row that one warp has summed, then the part of one thread, then the token.
static __device__ int row_find(const struct row *row, enum measure measure, uint32_t from, mass target)
{
    int part_size = (row->n + WARPS - 1) / WARPS, warp = (int)threadIdx.x / WARP;
    int begin = warp * part_size, end = min(begin + part_size, row->n);
    mass x = 0;
    logits_each(row, begin + (int)threadIdx.x % WARP, end, WARP,
                [&](int i, float logit) { x += measure_of(row, i, logit, measure, from); });
    scratch_sum(row->scratch, x);
    begin = sum_find(row->scratch->of_warp, WARPS, &target) * part_size;
    end = min(begin + part_size, row->n);

    int per_thread = (part_size + THREADS - 1) / THREADS;
    x = 0;
#pragma unroll 1
    for (int i = begin + (int)threadIdx.x * per_thread; i < min(begin + ((int)threadIdx.x + 1) * per_thread, end); i++)
        x += measure_at(row, i, measure, from);
    row->scratch->of_thread[threadIdx.x] = x;
    scratch_sum(row->scratch, x);
    int thread = sum_find(row->scratch->of_warp, WARPS, &target) * WARP;
    thread += sum_find(row->scratch->of_thread + thread, WARP, &target);

    int i = begin + thread * per_thread;
#pragma unroll 1
    for (mass here; i < end - 1 && (here = measure_at(row, i, measure, from)) <= target; i++)
        target -= here;
    return i;
}

// ---- top-k and top-p ------------------------------------------------------------------------------------------------

static __device__ __forceinline__ bool row_has(const struct row *row, uint32_t key, int i)
{
    return key > row->edge || (key == row->edge && i <= row->edge_index);
}

// Returns the bin of a logit. Bins are ranges of logits, and bin 0 has the best.
static __device__ __forceinline__ int bin_of(const struct row *row, float logit)
{
    const float x = __fmul_rn(__fadd_rn(row->max, -logit), row->inverse_temperature);
    return (int)fminf(x * BINS_PER_UNIT, BINS - 1);
}

static __device__ __forceinline__ mass mass_of(const struct row *row, float logit)
{
    return (mass)__fmul_rn(weight_of(row, logit), MASS_OF_ONE);
}

// Counts and weighs the eligible tokens of each bin.
static __device__ void bins_fill(const struct row *row)
{
    struct scratch *scratch = row->scratch;
    for (int bin = (int)threadIdx.x; bin < BINS; bin += THREADS)
        scratch->bin_mass[bin] = 0, scratch->bin_count[bin] = 0;
    __syncthreads();
    logits_each(row, (int)threadIdx.x, row->n, THREADS, [&](int i, float logit) {
        if (!row_has(row, key_of(logit), i)) return;
        const int bin = bin_of(row, logit);
        atomicAdd(&scratch->bin_count[bin], 1u);
        atomicAdd(&scratch->bin_mass[bin], mass_of(row, logit));
    });
    __syncthreads();
}

static __device__ __forceinline__ mass bin_value(const struct scratch *scratch, enum measure measure, int bin)
{
    return measure == COUNT ? scratch->bin_count[bin] : scratch->bin_mass[bin];
}

// Returns the sum over all bins. Leaves the sums of each thread's and each warp's bins in of_thread and of_warp.
static __device__ mass bins_sum(struct scratch *scratch, enum measure measure)
{
    const int thread = (int)threadIdx.x, each = BINS / THREADS;
    mass x = 0, sum = 0;
    for (int i = 0; i < each; i++)
        x += bin_value(scratch, measure, thread * each + i);
    scratch->of_thread[thread] = x;
    scratch_sum(scratch, x);
    for (int w = 0; w < WARPS; w++)
        sum += scratch->of_warp[w];
    return sum;
}

// Returns the bin at which the running sum, best bins first, exceeds *left_p. *left_p must be less than the total.
// Subtracts the sums of better bins from *left_p. Call bins_sum first.
static __device__ int bins_find(const struct scratch *scratch, enum measure measure, mass *left_p)
{
    const int each = BINS / THREADS;
    int thread = sum_find(scratch->of_warp, WARPS, left_p) * WARP;
    thread += sum_find(scratch->of_thread + thread, WARP, left_p);
    int bin = thread * each;
    for (mass here; bin < thread * each + each - 1 && (here = bin_value(scratch, measure, bin)) <= *left_p; bin++)
        *left_p -= here;
    return bin;
}

// Collects the eligible tokens of a bin in `found`, in any order. There must be at most THREADS of them.
static __device__ void bin_collect(const struct row *row, int bin)
{
    struct scratch *scratch = row->scratch;
    if (threadIdx.x == 0) scratch->n_found = 0;
    __syncthreads();
    logits_each(row, (int)threadIdx.x, row->n, THREADS, [&](int i, float logit) {
        const uint32_t key = key_of(logit);
        if (!row_has(row, key, i) || bin_of(row, logit) != bin) return;
        struct place *to = &scratch->found[atomicAdd(&scratch->n_found, 1)];
        to->key = key, to->index = i;
    });
    __syncthreads();
}

static __device__ __forceinline__ bool is_before(struct place a, struct place b)
{
    return a.key > b.key || (a.key == b.key && a.index < b.index);
}

static __device__ __forceinline__ mass place_value(const struct row *row, enum measure measure, struct place place)
{
    return measure == COUNT ? 1 : mass_of(row, logit_of_key(place.key));
}

// Ends the run at the token of `found` at which the running sum, best token first, exceeds `left`.
static __device__ void found_end(struct row *row, enum measure measure, mass left)
{
    struct scratch *scratch = row->scratch;
    if ((int)threadIdx.x < scratch->n_found) {
        const struct place own = scratch->found[threadIdx.x];
        mass before = 0;
#pragma unroll 1
        for (int i = 0; i < scratch->n_found; i++)
            if (is_before(scratch->found[i], own)) before += place_value(row, measure, scratch->found[i]);
        if (before <= left && left < before + place_value(row, measure, own)) scratch->last = own;
    }
    __syncthreads();
    row->edge = scratch->last.key;
    row->edge_index = scratch->last.index;
}

// Removes the tokens after the end of the run, which is in `bin`, from the masses of the bins.
static __device__ void bins_cut(const struct row *row, int bin)
{
    struct scratch *scratch = row->scratch;
    mass x = 0, sum = 0;
    if ((int)threadIdx.x < scratch->n_found) {
        const struct place own = scratch->found[threadIdx.x];
        if (row_has(row, own.key, own.index)) x = place_value(row, MASS, own);
    }
    scratch_sum(scratch, x);
    for (int w = 0; w < WARPS; w++)
        sum += scratch->of_warp[w];
    for (int i = (int)threadIdx.x; i < BINS; i += THREADS)
        if (i >= bin) scratch->bin_mass[i] = i == bin ? sum : 0;
    __syncthreads();
}

// Does the work of row_keep_best for any distribution of logits, without bins. `total` is the sum over all eligible
// tokens.
static __device__ void row_bisect(struct row *row, enum measure measure, mass need, mass total)
{
    // Invariant: the sum over keys from `low` up reaches `need`, and the sum over keys from `high` up does not.
    uint32_t low = row->edge, high = key_of(row->max) + 1;
    mass low_sum = total, high_sum = 0;
#pragma unroll 1
    while (high - low > 1) {
        const uint32_t middle = low + (high - low) / 2;
        const mass sum = row_sum(row, measure, middle);
        if (sum >= need)
            low = middle, low_sum = sum;
        else
            high = middle, high_sum = sum;
    }
    const mass each = measure == COUNT ? 1 : mass_of(row, logit_of_key(low));
    const mass ties = (low_sum - high_sum) / each, needed = (need - high_sum + each - 1) / each;
    const int all = row->edge == low ? row->edge_index : row->n - 1;
    row->edge_index = needed < ties ? row_find(row, TIES, low, needed - 1) : all;
    row->edge = low;
}

// Keeps the shortest run of tokens, best first, whose sum reaches `need`. Keeps all tokens if the total is less. The
// masses of the bins must be correct, and are correct afterwards. The counts of the bins are not updated.
static __device__ void row_keep_best(struct row *row, enum measure measure, mass need)
{
    const mass total = bins_sum(row->scratch, measure);
    if (total < need) return;
    mass left = need - 1;
    const int bin = bins_find(row->scratch, measure, &left);
    if (row->scratch->bin_count[bin] > THREADS) { // uniform in the block
        row_bisect(row, measure, need, total);
        bins_fill(row);
        return;
    }
    bin_collect(row, bin);
    found_end(row, measure, left);
    bins_cut(row, bin);
}

// Keeps the tokens that remain after top-k and top-p. Returns their mass.
static __device__ mass row_keep(struct row *row, const struct row_sampling *sampling)
{
    const bool top_k = sampling->top_k > 0 && sampling->top_k < row->n, top_p = sampling->top_p < 1;
    if (!top_k && !top_p) return row_sum(row, MASS, 0);
    bins_fill(row);
#pragma unroll 1
    for (int step = 0; step < 2; step++) { // top-k, then top-p, in one copy of the code
        if (!(step ? top_p : top_k)) continue;
        const mass need =
            step ? (mass)ceil(sampling->top_p * (double)bins_sum(row->scratch, MASS)) : (mass)sampling->top_k;
        row_keep_best(row, step ? MASS : COUNT, need);
    }
    return bins_sum(row->scratch, MASS);
}

// ---- a token --------------------------------------------------------------------------------------------------------

// Returns the smallest key whose weight is positive and at least `least`. Tokens with smaller keys are not eligible.
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

// Returns index and logit of the most likely token, in all threads. The index is -1 if all logits are -inf.
static __device__ struct sampled_id row_likeliest(const struct row *row)
{
    struct sampled_id *warp_best = row->scratch->warp_best, best = {-INFINITY, -1};
    logits_each(row, (int)threadIdx.x, row->n, THREADS, [&](int i, float logit) {
        if (logit > best.logit) best = {logit, i};
    });
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
    const mass all = row_keep(row, sampling);
    mass target = (mass)(sampling->uniform * (double)all);
    return row_find(row, MASS, 0, target < all ? target : all - 1);
}

// Grid: one block of THREADS per row. Static shared memory only.
template <bool SAMPLES>
static __global__ void __launch_bounds__(THREADS)
    sample_kernel(struct logit_rows logits, const struct row_sampling *sampling, struct sampled_id *out)
{
    __shared__ struct scratch scratch;
    dependents_start();
    dependency_wait();
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
    return CUDA_LAUNCH_EARLY(sample_kernel<false>, dim3((unsigned)rows), dim3(THREADS), 0, stream, *logits,
                             (const struct row_sampling *)NULL, out);
}

extern "C" cudaError_t launch_sample(cudaStream_t stream, const struct logit_rows *logits, int rows,
                                     const struct row_sampling *sampling, struct sampled_id *out)
{
    return CUDA_LAUNCH_EARLY(sample_kernel<true>, dim3((unsigned)rows), dim3(THREADS), 0, stream, *logits, sampling,
                             out);
}
