// SPDX-License-Identifier: Apache-2.0
// Gemms of up to GEMV_ROWS rows by gemv.cu, larger ones by cuBLASLt. Its matrices are column-major: read that way,
// out[rows, N] = x[rows, K] W[N, K]^T is out^T = W x^T with W transposed, the operand order of its fastest algorithms.
// Sums are f32.
//
// Where cuBLASLt supports the epilogue (adding to out, bias, scales), it applies it. Else the gemm writes f32 to
// scratch memory and a kernel of this backend applies the epilogue, in chunks of rows that bound the scratch.
//
// FP8 weights have a scale for each output, and the rows that they multiply one for each row; or, block-scaled, a scale
// for each block of 128 x 128 elements, and each row one for 128 values of K. Where the library has no FP8 algorithm
// for a number of rows, the weight is converted to bf16 in parts, for that gemm alone.
//
// The fastest algorithm depends on the shape and on the number of rows. Numbers of rows are grouped into buckets.
// `tune` times the library's best candidates for each bucket (algorithms.h saves the winners); without tuning its first
// candidate is used. So all rows of a pass, and all passes of a bucket, use one algorithm and sum in one order; passes
// of another bucket may sum in another order.
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/no_alloc.h"
#include "kernels/cuda/algorithms.h"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/timer.h"

enum { CANDIDATES = 8 };

// One gemm to run.
struct gemm_call {
    const struct weight *w;
    const void *part; // instead of w: outputs of an FP8 weight in bf16, `part_rows` of them
    int part_rows;
    const void *x;
    const float *row_scale, *bias; // either may be NULL
    bool fast;                     // FP8: fast accumulation
    void *out;
    int out_stride;
    bool out_bf16, add;
    int max_rows; // of x and out
};

enum known { UNKNOWN, NONE, GUESSED, TIMED }; // how a bucket's algorithm was selected; NONE: there is none

// All gemms of one shape and epilogue: any weight, any number of rows.
struct problem {
    struct gemm_key key;   // rows is 0
    int max_rows;          // of any call
    struct gemm_call last; // the last call, used for timing
    struct {
        enum known known;
        cublasLtMatmulAlgo_t algo;
    } * bucket;
};

struct gemm {
    cublasLtHandle_t library;
    struct algorithms *saved;
    void *workspace;
    struct timer timer;
    struct problem *problems;
    int n_problems, capacity;
    bool tuned;

    struct memory_gemm_need need;
    struct memory_gemm memory; // of the pointers below
    float *results;            // f32 results of a chunk of rows
    void *quantised;           // FP8: the rows of the gemm under way, and their scales
    float *row_scales;
    void *dequantised; // FP8: part of a weight in bf16
    float *maxima;     // FP8: largest magnitudes of rows of the MLP under way, see struct gemv
};

// ---- buckets of rows ------------------------------------------------------------------------------------------------

// Largest number of rows of a bucket: powers of two, from 64 on also the midpoints between them.
static int bucket_rows(int bucket)
{
    if (bucket <= 6) return 1 << bucket;
    int power = 6 + (bucket - 6) / 2;
    return (bucket - 6) % 2 ? 3 << (power - 1) : 1 << power;
}

static int bucket_of(int rows)
{
    int bucket = 0;
    while (bucket_rows(bucket) < rows)
        bucket++;
    return bucket;
}

// The key of the algorithm of a bucket.
static struct gemm_key bucket_key(const struct problem *problem, int bucket)
{
    struct gemm_key key = problem->key;
    key.rows = bucket_rows(bucket) < problem->max_rows ? bucket_rows(bucket) : problem->max_rows;
    return key;
}

// ---- descriptions for the library -----------------------------------------------------------------------------------

struct description {
    cublasLtMatmulDescOpaque_t matmul;
    cublasLtMatrixLayoutOpaque_t w, x, out;
};

static enum status library_status(cublasStatus_t status, const struct gemm_key *key, int rows)
{
    if (status == CUBLAS_STATUS_SUCCESS) return STATUS_OK;
    return status_fail(STATUS_UNAVAILABLE, "cuBLASLt: gemm of %d rows with a weight of %d x %d: %s", rows, key->n,
                       key->k, cublasLtGetStatusString(status));
}

static struct gemm_key call_key(const struct gemm_call *call)
{
    const struct weight *w = call->w;
    const bool fp8 = w->dtype == DTYPE_FP8 && !call->part;
    return (struct gemm_key){.n = call->part ? call->part_rows
                                  : fp8      ? cuda_stride(w->rows)
                                             : (int32_t)w->rows,
                             .k = w->stride,
                             .out_stride = call->out_stride,
                             .fp8 = fp8,
                             .out_bf16 = call->out_bf16,
                             .add = call->add,
                             .bias = call->bias != NULL,
                             .scales = !call->row_scale  ? SCALES_NONE
                                       : w->block_scaled ? SCALES_BLOCKS
                                                         : SCALES_ROWS,
                             .fast = fp8 && call->fast};
}

static cublasStatus_t description_set(struct description *d, cublasLtMatmulDescAttributes_t which, const void *value,
                                      size_t bytes)
{
    return cublasLtMatmulDescSetAttribute(&d->matmul, which, value, bytes);
}

#define SET(which, value)                                                                                              \
    do {                                                                                                               \
        cublasStatus_t set_status = description_set(d, which, &(value), sizeof(value));                                \
        if (set_status != CUBLAS_STATUS_SUCCESS) return set_status;                                                    \
    } while (0)

static cublasStatus_t description_set_epilogue(const struct gemm_call *call, struct description *d)
{
    const int32_t transposed = CUBLAS_OP_T, plain = CUBLAS_OP_N;
    SET(CUBLASLT_MATMUL_DESC_TRANSA, transposed);
    SET(CUBLASLT_MATMUL_DESC_TRANSB, plain);
    if (call->bias) {
        const uint32_t epilogue = CUBLASLT_EPILOGUE_BIAS;
        const int32_t type = CUDA_R_32F;
        SET(CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue);
        SET(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, type);
        SET(CUBLASLT_MATMUL_DESC_BIAS_POINTER, call->bias);
    }
    if (call->fast) {
        const int8_t fast = 1;
        SET(CUBLASLT_MATMUL_DESC_FAST_ACCUM, fast);
    }
    if (call->row_scale) {
#if CUBLAS_VERSION >= 120900
        const bool blocks = call->w->block_scaled;
        const int32_t w_mode =
            blocks ? CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F : CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
        const int32_t x_mode =
            blocks ? CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F : CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
        SET(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, w_mode);
        SET(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, x_mode);
        SET(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, call->w->scale);
        SET(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, call->row_scale);
#else
        return CUBLAS_STATUS_NOT_SUPPORTED;
#endif
    }
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t description_make(const struct gemm_call *call, const struct gemm_key *key, int rows,
                                       struct description *d)
{
    const cudaDataType from = key->fp8 ? CUDA_R_8F_E4M3 : CUDA_R_16BF, to = key->out_bf16 ? CUDA_R_16BF : CUDA_R_32F;
    const uint64_t n = (uint64_t)key->n, k = (uint64_t)key->k, count = (uint64_t)rows;
    cublasStatus_t status = cublasLtMatmulDescInit(&d->matmul, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    if (status == CUBLAS_STATUS_SUCCESS) status = cublasLtMatrixLayoutInit(&d->w, from, k, n, key->k);
    if (status == CUBLAS_STATUS_SUCCESS) status = cublasLtMatrixLayoutInit(&d->x, from, k, count, key->k);
    if (status == CUBLAS_STATUS_SUCCESS) status = cublasLtMatrixLayoutInit(&d->out, to, n, count, key->out_stride);
    return status == CUBLAS_STATUS_SUCCESS ? description_set_epilogue(call, d) : status;
}

// Up to `max` algorithms, the best by the library's heuristic first; returns how many.
static int algorithm_candidates(struct gemm *g, struct description *d, int max,
                                cublasLtMatmulHeuristicResult_t *results)
{
    cublasLtMatmulPreferenceOpaque_t preference;
    int n = 0;
    if (cublasLtMatmulPreferenceInit(&preference) != CUBLAS_STATUS_SUCCESS ||
        cublasLtMatmulPreferenceSetAttribute(&preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                             &g->memory.workspace,
                                             sizeof g->memory.workspace) != CUBLAS_STATUS_SUCCESS ||
        cublasLtMatmulAlgoGetHeuristic(g->library, &d->matmul, &d->w, &d->x, &d->out, &d->out, &preference, max,
                                       results, &n) != CUBLAS_STATUS_SUCCESS)
        return 0;
    int usable = 0;
    for (int i = 0; i < n; i++)
        if (results[i].state == CUBLAS_STATUS_SUCCESS) results[usable++] = results[i];
    return usable;
}

// ---- problems -------------------------------------------------------------------------------------------------------

static void problem_grow(struct problem *problem, int max_rows)
{
    const int before = problem->max_rows ? bucket_of(problem->max_rows) + 1 : 0, now = bucket_of(max_rows) + 1;
    problem->bucket = mem_resize(problem->bucket, (size_t)now, sizeof *problem->bucket);
    memset(problem->bucket + before, 0, (size_t)(now - before) * sizeof *problem->bucket);
    problem->max_rows = max_rows;
}

// The problem of a call. It allocates only for new problems, that is at start-up: the first pass calls every gemm of a
// model.
static struct problem *problem_of(struct gemm *g, const struct gemm_call *call)
{
    const struct gemm_key key = call_key(call);
    for (int i = 0; i < g->n_problems; i++)
        if (memcmp(&g->problems[i].key, &key, sizeof key) == 0) {
            if (call->max_rows > g->problems[i].max_rows) problem_grow(&g->problems[i], call->max_rows);
            g->problems[i].last = *call;
            return &g->problems[i];
        }
    MEM_GROW(g->problems, g->n_problems, g->capacity);
    struct problem *problem = &g->problems[g->n_problems++];
    *problem = (struct problem){.key = key, .last = *call};
    problem_grow(problem, call->max_rows);
    return problem;
}

static cublasStatus_t gemm_multiply(struct cuda *cuda, struct gemm *g, const struct gemm_call *call,
                                    struct description *d, const cublasLtMatmulAlgo_t *algo)
{
    const float one = 1, beta = call->add ? 1 : 0;
    return cublasLtMatmul(g->library, &d->matmul, &one, call->part ? call->part : call->w->data, &d->w, call->x, &d->x,
                          &beta, call->out, &d->out, call->out, &d->out, algo, g->workspace, g->memory.workspace,
                          cuda->stream);
}

// Finds the algorithm that an earlier start saved, if the library still accepts it.
static bool algorithm_find_saved(struct gemm *g, const struct problem *problem, int bucket,
                                 cublasLtMatmulAlgo_t *algo_p)
{
    const struct gemm_key key = bucket_key(problem, bucket);
    cublasLtMatmulAlgo_t algo;
    struct description d;
    cublasLtMatmulHeuristicResult_t result;
    if (!algorithms_find(g->saved, &key, &algo) ||
        description_make(&problem->last, &key, key.rows, &d) != CUBLAS_STATUS_SUCCESS ||
        cublasLtMatmulAlgoCheck(g->library, &d.matmul, &d.w, &d.x, &d.out, &d.out, &algo, &result) !=
            CUBLAS_STATUS_SUCCESS ||
        result.workspaceSize > g->memory.workspace)
        return false;
    *algo_p = algo;
    return true;
}

// Selects an algorithm for a bucket that has none yet: the saved one, or the library's first candidate.
static enum known algorithm_select(struct gemm *g, struct problem *problem, int bucket)
{
    struct description d;
    cublasLtMatmulHeuristicResult_t result;
    const struct gemm_key key = bucket_key(problem, bucket);
    if (algorithm_find_saved(g, problem, bucket, &problem->bucket[bucket].algo)) return TIMED;
    if (description_make(&problem->last, &key, key.rows, &d) != CUBLAS_STATUS_SUCCESS ||
        !algorithm_candidates(g, &d, 1, &result))
        return NONE;
    problem->bucket[bucket].algo = result.algo;
    return GUESSED;
}

// Whether the library has an algorithm for a call of the largest number of rows in the bucket of `rows`.
static bool gemm_has_algorithm(struct cuda *cuda, const struct gemm_call *call, int rows)
{
    struct problem *problem = problem_of(cuda->gemm, call);
    const int bucket = bucket_of(rows);
    if (problem->bucket[bucket].known == UNKNOWN)
        problem->bucket[bucket].known = algorithm_select(cuda->gemm, problem, bucket);
    return problem->bucket[bucket].known != NONE;
}

// In a micro-batch the gemm leaves multiprocessors to the sums of the other one: the library's gemms run one block on
// each for their whole time, and blocks of NCCL do not fit beside them.
static cublasStatus_t description_leave(const struct cuda *cuda, struct description *d)
{
    const int32_t count = cuda->properties.multiProcessorCount - overlap_sum_blocks(cuda);
    if (cuda->micro_batch != ALL_ROWS) SET(CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, count);
    return CUBLAS_STATUS_SUCCESS;
}

// Runs a gemm. CUBLAS_STATUS_NOT_SUPPORTED: the library has no algorithm for it, and nothing was done.
static cublasStatus_t gemm_try(struct cuda *cuda, const struct gemm_call *call, int rows)
{
    struct gemm *g = cuda->gemm;
    struct problem *problem = problem_of(g, call);
    const int bucket = bucket_of(rows);
    struct description d;
    cublasLtMatmulHeuristicResult_t result;
    if (problem->bucket[bucket].known == UNKNOWN) problem->bucket[bucket].known = algorithm_select(g, problem, bucket);
    if (problem->bucket[bucket].known == NONE) return CUBLAS_STATUS_NOT_SUPPORTED;
    cublasStatus_t status = description_make(call, &problem->key, rows, &d);
    if (status == CUBLAS_STATUS_SUCCESS) status = description_leave(cuda, &d);
    if (status == CUBLAS_STATUS_SUCCESS) status = gemm_multiply(cuda, g, call, &d, &problem->bucket[bucket].algo);
    if (status != CUBLAS_STATUS_NOT_SUPPORTED && status != CUBLAS_STATUS_INVALID_VALUE) return status;
    // The algorithm was selected for the largest number of rows of the bucket and should support fewer. If it does not,
    // take the library's first candidate for this number of rows.
    if (!algorithm_candidates(g, &d, 1, &result)) return CUBLAS_STATUS_NOT_SUPPORTED;
    return gemm_multiply(cuda, g, call, &d, &result.algo);
}

// ---- the step -------------------------------------------------------------------------------------------------------

// One call of backend_ops.linear.
struct linear {
    struct tensor *out;
    const struct tensor *x;
    const struct weight *w, *bias;
    enum linear_mode mode;
    int rows;
    const struct norm_step *norm; // x is to be computed by this; NULL: it has been
    const int32_t *row_index;     // of `norm`, on the device
    bool stores_maxima;           // SWIGLU of few rows: g->maxima receives those of out
    int n_maxima;                 // those of x are in g->maxima, this many a row; 0: they are not
    bool stores_fp8;              // SWIGLU of one chunk of rows: g->quantised receives out, one scale per row
    bool x_is_fp8;                // x is in g->quantised, not in its own memory
};

// Rows [first, first + rows) of x before the norm, and which they are.
static const float *norm_rows(const struct cuda *cuda, const struct linear *l, int first)
{
    return cuda_rows(cuda, l->norm->x, l->row_index ? 0 : first);
}

static const int32_t *norm_index(const struct linear *l, int first)
{
    return l->row_index ? l->row_index + first : NULL;
}

static enum status linear_norm(struct cuda *cuda, const struct linear *l, int first, int rows)
{
    const struct norm_step *norm = l->norm;
    return cuda_status(launch_rmsnorm(cuda->stream, cuda_rows(cuda, norm->out, first), norm->out->stride,
                                      norm_rows(cuda, l, first), norm->gain->data, norm->epsilon, norm_index(l, first),
                                      rows, norm->x->columns),
                       "rmsnorm");
}

// Rows [first, first + n) of a step whose results go to scratch memory.
struct chunk {
    int first, n;
    const float *row_scale, *column_scale; // to be applied to the results
};

// Rows per chunk, as the memory for results allows.
static int chunk_rows(const struct gemm *g, int n)
{
    const size_t rows = g->memory.results / sizeof(float) / (size_t)n;
    return (int)(rows > 256 ? rows / 256 * 256 : rows > 4 ? rows / 4 * 4 : rows);
}

// The call for a chunk, without weight and rows.
static struct gemm_call chunk_call(const struct gemm *g, const struct linear *l)
{
    const int n = cuda_stride(l->w->rows), chunk = chunk_rows(g, n);
    return (struct gemm_call){
        .w = l->w, .out = g->results, .out_stride = n, .max_rows = l->x->max_rows < chunk ? l->x->max_rows : chunk};
}

// Applies the epilogue to a chunk.
static enum status chunk_finish(struct cuda *cuda, const struct linear *l, const struct chunk *c)
{
    float *results = cuda->gemm->results;
    const int n = (int)l->w->rows, stride = cuda_stride(n);
    const bool bf16 = l->out->kind == TENSOR_ACTIVATION, swiglu = l->mode == LINEAR_SWIGLU;
    void *out = cuda_rows(cuda, l->out, c->first);
    const float *bias = l->bias ? l->bias->data : NULL;
    cudaError_t error = cudaSuccess;
    if (swiglu && c->row_scale)
        error = launch_epilogue(cuda->stream, results, stride, false, false, results, stride, c->row_scale,
                                c->column_scale, NULL, c->n, n);
    if (l->stores_fp8 && error == cudaSuccess)
        error = launch_swiglu_fp8(cuda->stream, cuda->gemm->quantised, l->out->stride, cuda->gemm->row_scales, results,
                                  stride, c->n, n / 2);
    else if (swiglu && error == cudaSuccess)
        error = launch_swiglu(cuda->stream, out, l->out->stride, results, stride, c->n, n / 2);
    if (!swiglu)
        error = launch_epilogue(cuda->stream, out, l->out->stride, bf16, l->mode == LINEAR_ADD, results, stride,
                                c->row_scale, c->column_scale, bias, c->n, n);
    return cuda_status(error, "gemm epilogue");
}

static enum status chunk_bf16(struct cuda *cuda, const struct linear *l, struct chunk *c)
{
    struct gemm_call call = chunk_call(cuda->gemm, l);
    const struct gemm_key key = call_key(&call);
    call.x = cuda_rows(cuda, l->x, c->first);
    return library_status(gemm_try(cuda, &call, c->n), &key, c->n);
}

// x in bf16, for an FP8 gemm without an algorithm.
static enum status chunk_rows_to_bf16(struct cuda *cuda, const struct linear *l, const struct chunk *c)
{
    const struct gemm *g = cuda->gemm;
    if (l->norm) return linear_norm(cuda, l, c->first, c->n);
    if (!l->x_is_fp8) return STATUS_OK;
    return cuda_status(launch_dequantise(cuda->stream, cuda_rows(cuda, l->x, c->first), g->quantised, l->x->stride,
                                         g->row_scales, 0, c->first, c->n),
                       "rows to bf16");
}

// Multiplies by an FP8 weight that is converted to bf16, a few outputs at a time.
static enum status chunk_dequantised(struct cuda *cuda, const struct linear *l, struct chunk *c)
{
    struct gemm *g = cuda->gemm;
    const struct weight *w = l->w;
    const size_t row_bytes = (size_t)w->stride * sizeof(uint16_t);
    const int64_t all = cuda_stride(w->rows), most = (int64_t)(g->memory.dequantised / row_bytes) / 16 * 16;
    TRY(chunk_rows_to_bf16(cuda, l, c));
    for (int64_t first = 0, n; first < all; first += n) {
        struct gemm_call call = chunk_call(g, l);
        n = all - first < most ? all - first : most;
        call.part = g->dequantised;
        call.part_rows = (int)n;
        call.x = cuda_rows(cuda, l->x, c->first);
        call.out = g->results + first;
        const cudaError_t error = launch_dequantise(cuda->stream, g->dequantised, w->data, w->stride, w->scale,
                                                    w->block_scaled ? cuda_block_stride(w->columns) : 0, first, (int)n);
        if (error != cudaSuccess) return cuda_status(error, "a weight to bf16");
        const struct gemm_key key = call_key(&call);
        enum status status = library_status(gemm_try(cuda, &call, c->n), &key, c->n);
        if (status != STATUS_OK) return status;
    }
    return STATUS_OK;
}

// An FP8 gemm; where fast accumulation is not supported, without it.
static cublasStatus_t gemm_try_fp8(struct cuda *cuda, struct gemm_call call, int rows)
{
    call.fast = cuda->shape.fp8_fast_accum && !call.w->block_scaled;
    const cublasStatus_t status = gemm_try(cuda, &call, rows);
    if (status != CUBLAS_STATUS_NOT_SUPPORTED || !call.fast) return status;
    call.fast = false;
    return gemm_try(cuda, &call, rows);
}

// The FP8 gemm of a chunk in the library, which applies the scales or, second choice, leaves them to the epilogue.
static cublasStatus_t chunk_try_rows(struct cuda *cuda, const struct linear *l, struct chunk *c)
{
    struct gemm *g = cuda->gemm;
    struct gemm_call call = chunk_call(g, l);
    call.x = (const char *)g->quantised + (size_t)c->first * (size_t)l->w->stride;
    call.row_scale = g->row_scales + c->first;
    cublasStatus_t status = gemm_try_fp8(cuda, call, c->n);
    if (status != CUBLAS_STATUS_NOT_SUPPORTED) return status;
    call.row_scale = NULL;
    status = gemm_try_fp8(cuda, call, c->n);
    c->row_scale = g->row_scales + c->first;
    c->column_scale = l->w->scale;
    return status;
}

// Quantises rows [first, first + rows) of a step into g->quantised: after their norm if that is to be computed. With
// scale_stride there is a scale for each block, in columns of that many rows.
static enum status quantise(struct cuda *cuda, const struct linear *l, int first, int rows, int scale_stride)
{
    struct gemm *g = cuda->gemm;
    const struct norm_step *norm = l->norm;
    const int stride = l->x->stride;
    const void *x = cuda_rows(cuda, l->x, first);
    cudaError_t error;
    if (norm)
        error = launch_rmsnorm_fp8(cuda->stream, g->quantised, stride, g->row_scales, scale_stride,
                                   norm_rows(cuda, l, first), norm->gain->data, norm->epsilon, norm_index(l, first),
                                   rows, norm->x->columns);
    else if (scale_stride)
        error = launch_quantise_blocks(cuda->stream, g->quantised, stride, g->row_scales, scale_stride, x, stride, rows,
                                       stride);
    else
        error = launch_quantise_rows(cuda->stream, g->quantised, stride, g->row_scales, x, false, stride, rows, stride);
    return cuda_status(error, "rows to fp8");
}

// cuBLASLt wants a multiple of four rows: up to three rows more are computed and not used.
static cublasStatus_t chunk_try_blocks(struct cuda *cuda, const struct linear *l, struct chunk *c,
                                       enum status *status_p)
{
    struct gemm *g = cuda->gemm;
    const int padded = (c->n + 3) / 4 * 4;
    struct gemm_call call = chunk_call(g, l);
    call.max_rows = (call.max_rows + 3) / 4 * 4;
    call.x = g->quantised;
    call.row_scale = g->row_scales;
    *status_p = quantise(cuda, l, c->first, c->n, padded);
    return *status_p == STATUS_OK ? gemm_try_fp8(cuda, call, padded) : CUBLAS_STATUS_SUCCESS;
}

static enum status chunk_fp8(struct cuda *cuda, const struct linear *l, struct chunk *c)
{
    enum status status = STATUS_OK;
    const struct gemm_call call = chunk_call(cuda->gemm, l);
    const struct gemm_key key = call_key(&call);
    const cublasStatus_t tried =
        l->w->block_scaled ? chunk_try_blocks(cuda, l, c, &status) : chunk_try_rows(cuda, l, c);
    if (status != STATUS_OK) return status;
    if (tried != CUBLAS_STATUS_NOT_SUPPORTED) return library_status(tried, &key, c->n);
    c->row_scale = c->column_scale = NULL;
    return chunk_dequantised(cuda, l, c);
}

static enum status linear_by_chunks(struct cuda *cuda, const struct linear *l)
{
    const int most = chunk_rows(cuda->gemm, cuda_stride(l->w->rows));
    for (int first = 0; first < l->rows; first += most) {
        struct chunk c = {.first = first, .n = l->rows - first < most ? l->rows - first : most};
        enum status status = (l->w->dtype == DTYPE_FP8 ? chunk_fp8 : chunk_bf16)(cuda, l, &c);
        if (status == STATUS_OK) status = chunk_finish(cuda, l, &c);
        if (status != STATUS_OK) return status;
    }
    return STATUS_OK;
}

// Whether the library may do the whole step. It wants bf16 biases for bf16 results and FP8 operands, ours are f32. FP8
// needs N a multiple of 16, block-scaled FP8 a number of rows that is a multiple of 4.
static bool linear_is_direct(const struct linear *l)
{
    if (l->mode == LINEAR_SWIGLU) return false;
    if (l->w->dtype != DTYPE_FP8) return !(l->bias && l->out->kind == TENSOR_ACTIVATION);
    return !l->bias && l->w->rows % 16 == 0 && !(l->w->block_scaled && l->rows % 4);
}

static struct gemm_call direct_call(const struct cuda *cuda, const struct linear *l)
{
    const struct gemm *g = cuda->gemm;
    const bool fp8 = l->w->dtype == DTYPE_FP8;
    struct gemm_call call = {.w = l->w,
                             .x = fp8 ? g->quantised : cuda_rows(cuda, l->x, 0),
                             .row_scale = fp8 ? g->row_scales : NULL,
                             .out = cuda_rows(cuda, l->out, 0),
                             .out_stride = l->out->stride,
                             .out_bf16 = l->out->kind == TENSOR_ACTIVATION,
                             .add = l->mode == LINEAR_ADD,
                             .bias = l->bias ? l->bias->data : NULL};
    call.max_rows = l->x->max_rows < l->out->max_rows ? l->x->max_rows : l->out->max_rows;
    if (l->w->block_scaled) call.max_rows = call.max_rows / 4 * 4; // rows of `out` behind the step's must not change
    return call;
}

static cublasStatus_t linear_try_direct(struct cuda *cuda, const struct linear *l)
{
    const struct gemm_call call = direct_call(cuda, l);
    return l->w->dtype == DTYPE_FP8 ? gemm_try_fp8(cuda, call, l->rows) : gemm_try(cuda, &call, l->rows);
}

// Quantises all rows of a step with an FP8 weight. Those of block-scaled weights are quantised again for each chunk,
// since the place of their scales depends on the number of rows.
static enum status linear_quantise(struct cuda *cuda, const struct linear *l)
{
    if (l->x_is_fp8) return STATUS_OK;
    return quantise(cuda, l, 0, l->rows, l->w->block_scaled ? l->rows : 0);
}

// ---- few rows -------------------------------------------------------------------------------------------------------

static enum gemv_mode gemv_mode(const struct linear *l)
{
    if (l->mode == LINEAR_SWIGLU) return GEMV_SWIGLU;
    if (l->out->kind == TENSOR_ACTIVATION) return GEMV_BF16;
    return l->mode == LINEAR_ADD ? GEMV_ADD : GEMV_STORE;
}

// What the kernel gets of x. Where its blocks would read too much to prepare the rows themselves, a kernel does it
// first.
static enum status few_rows_prepare(struct cuda *cuda, const struct linear *l, struct gemv *gemv)
{
    const struct gemm *g = cuda->gemm;
    const bool fits = l->rows * ((l->x->stride + FP8_BLOCK - 1) / FP8_BLOCK) <= GEMV_VALUES_MAX / FP8_BLOCK;
    gemv->x = cuda_rows(cuda, l->x, 0);
    gemv->x_stride = l->x->stride;
    if (!gemv->fp8 && l->norm && fits && l->x->columns % 8 == 0) {
        gemv->x_is = GEMV_NORM;
        gemv->x = norm_rows(cuda, l, 0);
        gemv->x_stride = gemv->columns = l->norm->x->columns;
        gemv->gain = l->norm->gain->data;
        gemv->epsilon = l->norm->epsilon;
        gemv->row_index = l->row_index;
        return STATUS_OK;
    }
    if (!gemv->fp8) return l->norm ? linear_norm(cuda, l, 0, l->rows) : STATUS_OK;
    if (!l->norm && (fits || l->n_maxima)) {
        gemv->x_is = GEMV_QUANTISE;
        gemv->x_maxima = l->n_maxima ? g->maxima : NULL;
        gemv->n_maxima = l->n_maxima;
        return STATUS_OK;
    }
    gemv->x = g->quantised;
    gemv->row_scale = g->row_scales;
    return linear_quantise(cuda, l);
}

static enum status linear_few_rows(struct cuda *cuda, const struct linear *l)
{
    struct gemv gemv = {.w = l->w->data,
                        .column_scale = l->w->scale,
                        .bias = l->bias ? l->bias->data : NULL,
                        .out = cuda_rows(cuda, l->out, 0),
                        .n = (int)l->w->rows,
                        .k = l->w->stride,
                        .rows = l->rows,
                        .out_stride = l->out->stride,
                        .fp8 = l->w->dtype == DTYPE_FP8,
                        .block_stride = l->w->block_scaled ? cuda_block_stride(l->w->columns) : 0,
                        .row_scale_stride = l->rows,
                        .mode = gemv_mode(l),
                        .out_maxima = l->stores_maxima ? cuda->gemm->maxima : NULL};
    TRY(few_rows_prepare(cuda, l, &gemv));
    return cuda_status(launch_gemv(cuda->stream, &gemv, cuda->properties.multiProcessorCount), "gemv");
}

// Makes the gemm of a step of few rows known to `tune`, for passes of more rows: as the library would run it directly
// or, if it has no algorithm for that, in chunks.
static void linear_note(struct cuda *cuda, const struct linear *l)
{
    struct gemm *g = cuda->gemm;
    const bool fp8 = l->w->dtype == DTYPE_FP8, both = fp8 && !l->w->block_scaled;
    struct linear many = *l;
    many.rows = l->x->max_rows / 4 * 4;
    struct gemm_call calls[] = {direct_call(cuda, l), chunk_call(g, l), chunk_call(g, l)};
    if (fp8) calls[1].row_scale = g->row_scales;
    for (int i = linear_is_direct(&many) ? 0 : 1; i < (both ? 3 : 2); i++) {
        calls[i].x = fp8 ? g->quantised : cuda_rows(cuda, l->x, 0);
        calls[i].fast = both && cuda->shape.fp8_fast_accum;
        if (gemm_has_algorithm(cuda, &calls[i], problem_of(g, &calls[i])->max_rows)) return;
    }
}

// ---- any number of rows ---------------------------------------------------------------------------------------------

static enum status gemm_linear(struct cuda *cuda, const struct linear *l)
{
    if (l->rows <= GEMV_ROWS) {
        if (!cuda->gemm->tuned && l->x->max_rows > GEMV_ROWS) linear_note(cuda, l);
        return linear_few_rows(cuda, l);
    }
    const bool direct = linear_is_direct(l);
    if (l->norm && l->w->dtype != DTYPE_FP8) TRY(linear_norm(cuda, l, 0, l->rows));
    if (l->w->dtype == DTYPE_FP8 && (direct || !l->w->block_scaled)) {
        enum status status = linear_quantise(cuda, l);
        if (status != STATUS_OK) return status;
    }
    if (direct) {
        const cublasStatus_t tried = linear_try_direct(cuda, l);
        const struct gemm_call call = {.w = l->w};
        const struct gemm_key key = call_key(&call);
        if (tried != CUBLAS_STATUS_NOT_SUPPORTED) return library_status(tried, &key, l->rows);
    }
    return linear_by_chunks(cuda, l);
}

static enum status linear_run(struct cuda *cuda, const struct linear *l)
{
    assert(l->w->kind == WEIGHT_MATRIX && l->x->kind == TENSOR_ACTIVATION && l->x->columns == l->w->columns);
    assert(l->out->columns == (l->mode == LINEAR_SWIGLU ? l->w->rows / 2 : l->w->rows));
    assert(cuda->on_device.first_row + l->rows <= l->out->max_rows);
    assert(cuda->on_device.first_row + l->rows <= l->x->max_rows);
    assert(!l->bias || (l->bias->columns == l->w->rows && l->mode != LINEAR_SWIGLU));
    assert(l->mode != LINEAR_ADD || l->out->kind == TENSOR_F32);
    assert(l->mode != LINEAR_SWIGLU || l->out->kind == TENSOR_ACTIVATION);
    int suspended = no_alloc_suspend(); // cuBLASLt may allocate
    enum status status = gemm_linear(cuda, l);
    no_alloc_resume(suspended);
    return status;
}

enum status cuda_linear(struct backend *b, struct tensor *out, const struct tensor *x, const struct weight *w,
                        const struct weight *bias, enum linear_mode mode, int rows)
{
    return linear_run(cuda_of(b), &(struct linear){out, x, w, bias, mode, rows, .norm = NULL});
}

static enum status linear_after_norm(struct cuda *cuda, struct linear *l, const struct norm_step *norm)
{
    cuda_norm_check(cuda, norm->out, norm->x, norm->gain, norm->row_index, l->rows);
    l->x = norm->out;
    if (norm->addend) { // by a kernel of its own, since adding changes x
        TRY(cuda_add_rmsnorm(cuda, norm, l->rows));
        return linear_run(cuda, l);
    }
    l->norm = norm;
    TRY(cuda_row_index(cuda, norm->row_index, l->rows, &l->row_index));
    return linear_run(cuda, l);
}

enum status cuda_norm_linear(struct backend *b, struct tensor *out, const struct norm_step *norm,
                             const struct weight *w, const struct weight *bias, enum linear_mode mode, int rows)
{
    return linear_after_norm(cuda_of(b), &(struct linear){out, NULL, w, bias, mode, rows, .norm = NULL}, norm);
}

// Whether a step with scales for each output is multiplied in FP8.
static bool linear_is_fp8(struct cuda *cuda, const struct linear *l)
{
    struct gemm_call calls[] = {direct_call(cuda, l), chunk_call(cuda->gemm, l), chunk_call(cuda->gemm, l)};
    calls[1].row_scale = cuda->gemm->row_scales;
    for (int i = linear_is_direct(l) ? 0 : 1; i < 3; i++)
        for (int fast = cuda->shape.fp8_fast_accum; fast >= 0; fast--) {
            calls[i].fast = fast;
            if (gemm_has_algorithm(cuda, &calls[i], l->rows)) return true;
        }
    return false;
}

// SwiGLU of more rows than GEMV_ROWS writes FP8 where one kernel can do so, and where the rows are one chunk: then the
// gemm has read g->quantised before SwiGLU writes there.
static bool mlp_is_fp8(struct cuda *cuda, const struct linear *first, const struct linear *second)
{
    if (second->w->dtype != DTYPE_FP8 || second->w->block_scaled || second->x->columns > SWIGLU_FP8_MAX) return false;
    if (first->rows <= GEMV_ROWS || first->rows > chunk_rows(cuda->gemm, cuda_stride(first->w->rows))) return false;
    int suspended = no_alloc_suspend();
    const bool is = linear_is_fp8(cuda, second);
    no_alloc_resume(suspended);
    return is;
}

enum status cuda_mlp(struct backend *b, struct tensor *out, struct tensor *inner, const struct norm_step *norm,
                     const struct weight *gate_up, const struct weight *down, enum linear_mode mode, int rows)
{
    struct cuda *cuda = cuda_of(b);
    struct linear first = {inner, NULL, gate_up, NULL, LINEAR_SWIGLU, rows, .norm = NULL};
    struct linear second = {out, inner, down, NULL, mode, rows, .norm = NULL};
    first.stores_fp8 = second.x_is_fp8 = mlp_is_fp8(cuda, &first, &second);
    first.stores_maxima = rows <= GEMV_ROWS && down->dtype == DTYPE_FP8 && !down->block_scaled;
    if (first.stores_maxima) {
        const struct gemv of_first = {.n = (int)gate_up->rows, .mode = GEMV_SWIGLU};
        second.n_maxima = gemv_blocks(&of_first, cuda->properties.multiProcessorCount);
    }
    TRY(linear_after_norm(cuda, &first, norm));
    return linear_run(cuda, &second);
}

// ---- tuning ---------------------------------------------------------------------------------------------------------

// The next weight of the same shape. Timing with weights in turn keeps a weight from being in the cache, as it is not
// in a pass.
static const struct weight *next_alike(const struct cuda *cuda, const struct weight *w)
{
    const struct weight *next = w;
    do
        next = next->next ? next->next : cuda->weights;
    while (next != w && (next->kind != w->kind || next->rows != w->rows || next->columns != w->columns ||
                         next->dtype != w->dtype || next->block_scaled != w->block_scaled));
    return next;
}

// The candidates of one bucket.
struct tuning {
    struct cuda *cuda;
    struct gemm_key key;
    struct gemm_call call;
    cublasLtMatmulHeuristicResult_t results[CANDIDATES];
};

static bool tuning_run(void *context, int which)
{
    struct tuning *t = context;
    struct description d;
    t->call.w = next_alike(t->cuda, t->call.w);
    return description_make(&t->call, &t->key, t->key.rows, &d) == CUBLAS_STATUS_SUCCESS &&
           gemm_multiply(t->cuda, t->cuda->gemm, &t->call, &d, &t->results[which].algo) == CUBLAS_STATUS_SUCCESS;
}

static enum status algorithm_choose(struct cuda *cuda, struct problem *problem, int bucket)
{
    struct gemm *g = cuda->gemm;
    struct tuning t = {.cuda = cuda, .key = bucket_key(problem, bucket), .call = problem->last};
    struct candidates c = {.runs = t.key.rows <= 256 ? 4 : 1, .run = tuning_run, .context = &t, .stream = cuda->stream};
    struct description d;
    float ms[CANDIDATES], best = __builtin_inff();
    if (description_make(&t.call, &t.key, t.key.rows, &d) == CUBLAS_STATUS_SUCCESS)
        c.n = algorithm_candidates(g, &d, CANDIDATES, t.results);
    TRY(timer_compare(&g->timer, &c, ms));
    for (int i = 0; i < c.n; i++) {
        if (ms[i] >= best) continue;
        best = ms[i];
        problem->bucket[bucket].algo = t.results[i].algo;
        problem->bucket[bucket].known = TIMED;
    }
    if (problem->bucket[bucket].known == TIMED) algorithms_put(g->saved, &t.key, &problem->bucket[bucket].algo);
    return STATUS_OK;
}

enum status cuda_tune(struct backend *b)
{
    struct cuda *cuda = cuda_of(b);
    struct gemm *g = cuda->gemm;
    const int64_t from_us = clock_now_us();
    int timed = 0, saved = 0;
    for (int i = 0; i < g->n_problems; i++) {
        struct problem *problem = &g->problems[i];
        const int buckets = bucket_of(problem->max_rows) + 1;
        for (int bucket = buckets - 1; bucket >= 0; bucket--) { // the first one, which warms up, is the largest
            if (bucket_rows(bucket) <= GEMV_ROWS) break;
            if (problem->bucket[bucket].known != TIMED &&
                algorithm_find_saved(g, problem, bucket, &problem->bucket[bucket].algo))
                problem->bucket[bucket].known = TIMED;
            if (problem->bucket[bucket].known == TIMED) {
                saved++;
                continue;
            }
            enum status status = algorithm_choose(cuda, problem, bucket);
            if (status != STATUS_OK) return status;
            timed += problem->bucket[bucket].known == TIMED;
        }
    }
    g->tuned = true;
    algorithms_save(g->saved);
    log_event(LOG_INFO, "gemm_tuned", LOG_FIELD("timed", timed), LOG_FIELD("saved", saved),
              LOG_MS("ms", clock_now_us() - from_us));
    return cuda_wait(cuda);
}

// ---- opening --------------------------------------------------------------------------------------------------------

enum status gemm_open(struct cuda *cuda, struct gemm **gemm_p)
{
    struct gemm *g = *gemm_p = mem_alloc(sizeof *g);
    g->saved = algorithms_open(cuda->properties.name, cublasLtGetVersion());
    cublasStatus_t created = cublasLtCreate(&g->library);
    if (created != CUBLAS_STATUS_SUCCESS) {
        g->library = NULL;
        return status_fail(STATUS_UNAVAILABLE, "cuBLASLt: %s", cublasLtGetStatusString(created));
    }
    TRY(timer_open(&g->timer));
    g->memory.workspace = memory_gemm(&g->need).workspace;
    return cuda_allocate(cuda, MEMORY_GEMM, g->memory.workspace, "the workspace of gemms", &g->workspace);
}

void gemm_close(struct gemm *g)
{
    if (!g) return;
    for (int i = 0; i < g->n_problems; i++)
        free(g->problems[i].bucket);
    free(g->problems);
    cudaFree(g->workspace);
    cudaFree(g->results);
    cudaFree(g->quantised);
    cudaFree(g->row_scales);
    cudaFree(g->dequantised);
    cudaFree(g->maxima);
    timer_close(&g->timer);
    if (g->library) cublasLtDestroy(g->library);
    algorithms_close(g->saved);
    free(g);
}

// The first version of the library that multiplies block-scaled matrices, on devices of compute capability 9.0 alone.
enum { BLOCK_SCALES_VERSION = 120900, BLOCK_SCALES_CAPABILITY = 90 };

bool gemm_has_block_scales(struct cuda *cuda)
{
    const struct cudaDeviceProp *p = &cuda->properties;
    return CUBLAS_VERSION >= BLOCK_SCALES_VERSION && cublasLtGetVersion() >= BLOCK_SCALES_VERSION &&
           10 * p->major + p->minor == BLOCK_SCALES_CAPABILITY;
}

// Replaces memory by one of `bytes`; cudaFree waits for steps that use the old one.
static enum status scratch_resize(struct cuda *cuda, size_t bytes, const char *what, void **memory_p, size_t *bytes_p)
{
    if (bytes == *bytes_p) return STATUS_OK;
    cuda_release(cuda, MEMORY_GEMM, *bytes_p, *memory_p);
    *memory_p = NULL;
    *bytes_p = 0;
    enum status status = bytes ? cuda_allocate(cuda, MEMORY_GEMM, bytes, what, memory_p) : STATUS_OK;
    if (status == STATUS_OK) *bytes_p = bytes;
    return status;
}

static enum status scratch_reserve(struct cuda *cuda)
{
    struct gemm *g = cuda->gemm;
    const struct memory_gemm now = memory_gemm(&g->need);
    const struct {
        size_t bytes, *bytes_p;
        void **memory_p;
        const char *what;
    } parts[] = {{now.results, &g->memory.results, (void **)&g->results, "gemm results"},
                 {now.quantised, &g->memory.quantised, &g->quantised, "rows in fp8"},
                 {now.row_scales, &g->memory.row_scales, (void **)&g->row_scales, "scales of rows"},
                 {now.dequantised, &g->memory.dequantised, &g->dequantised, "a part of a weight in bf16"},
                 {now.maxima, &g->memory.maxima, (void **)&g->maxima, "largest magnitudes of rows"}};
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        enum status status = scratch_resize(cuda, parts[i].bytes, parts[i].what, parts[i].memory_p, parts[i].bytes_p);
        if (status != STATUS_OK) return status;
    }
    return STATUS_OK;
}

enum status gemm_reserve_rows(struct cuda *cuda, int rows)
{
    memory_gemm_add_rows(&cuda->gemm->need, rows);
    return scratch_reserve(cuda);
}

enum status gemm_reserve_weight(struct cuda *cuda, const struct memory_matrix *w)
{
    memory_gemm_add_weight(&cuda->gemm->need, w);
    return scratch_reserve(cuda);
}
