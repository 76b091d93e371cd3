// SPDX-License-Identifier: Apache-2.0
// Gemms in cuBLASLt ("the library"), whose matrices are column-major. In this order, out[rows, N] = x[rows, K] W[N,
// K]^T is out^T = W x^T with W transposed. Its fastest algorithms have this operand order. Sums are f32. linear.c
// decides which gemms run here.
//
// The fastest algorithm depends on the shape and on the number of rows. Numbers of rows are grouped into buckets.
// `tune` times the library's best candidates for each bucket (algorithms.h saves the winners). If there was no tuning,
// the library's first candidate is used. So all passes of a bucket use the same algorithm and sum in the same order.
// Passes of another bucket may sum in another order.
#include "kernels/cuda/gemm.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/switches.h"
#include "lib/base/clock.h"
#include "lib/base/invariant.h"
#include "lib/base/log.h"
#include "lib/base/mem.h"

enum { CANDIDATES = 8 };

// ---- buckets of rows ------------------------------------------------------------------------------------------------

// Returns the largest number of rows of a bucket: powers of two, and from 64 on also the midpoints between them.
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

// Returns the key of the algorithm of a bucket.
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

enum status gemm_status(cublasStatus_t status, const struct gemm_key *key, int rows)
{
    if (status == CUBLAS_STATUS_SUCCESS) return STATUS_OK;
    return status_fail(STATUS_UNAVAILABLE, "cuBLASLt: gemm of %d rows with a weight of %d x %d: %s", rows, key->n,
                       key->k, cublasLtGetStatusString(status));
}

struct gemm_key gemm_call_key(const struct gemm_call *call)
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

// Finds up to `max` algorithms, in the order of the library's heuristic, best first. Returns their number.
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

// Keeps the call with the most rows for timing. Timing runs max_rows rows, so x and out of the call must begin at row 0
// of their tensors.
static void problem_take_sample(struct problem *problem, const struct gemm_call *call)
{
    const struct gemm_call *sample = &problem->sample;
    if (call->x && (!sample->x || (call->first_row <= sample->first_row && call->max_rows >= sample->max_rows)))
        problem->sample = *call;
}

struct problem *gemm_problem_of(struct gemm *g, const struct gemm_call *call)
{
    const struct gemm_key key = gemm_call_key(call);
    for (int i = 0; i < g->n_problems; i++)
        if (memcmp(&g->problems[i].key, &key, sizeof key) == 0) {
            if (call->max_rows > g->problems[i].max_rows) problem_grow(&g->problems[i], call->max_rows);
            problem_take_sample(&g->problems[i], call);
            return &g->problems[i];
        }
    MEM_GROW(g->problems, g->n_problems, g->capacity);
    struct problem *problem = &g->problems[g->n_problems++];
    *problem = (struct problem){.key = key, .sample = *call};
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

// Finds the algorithm that an earlier start saved. Returns false if there is none, or the library no longer accepts it.
static bool algorithm_find_saved(struct gemm *g, const struct problem *problem, int bucket,
                                 cublasLtMatmulAlgo_t *algo_p)
{
    const struct gemm_key key = bucket_key(problem, bucket);
    cublasLtMatmulAlgo_t algo;
    struct description d;
    cublasLtMatmulHeuristicResult_t result;
    if (!algorithms_find(g->saved, &key, &algo) ||
        description_make(&problem->sample, &key, key.rows, &d) != CUBLAS_STATUS_SUCCESS ||
        cublasLtMatmulAlgoCheck(g->library, &d.matmul, &d.w, &d.x, &d.out, &d.out, &algo, &result) !=
            CUBLAS_STATUS_SUCCESS ||
        result.workspaceSize > g->memory.workspace)
        return false;
    *algo_p = algo;
    return true;
}

// Selects an algorithm for a bucket without one: the saved algorithm, or else the library's first candidate.
static enum known algorithm_select(struct gemm *g, struct problem *problem, int bucket)
{
    struct description d;
    cublasLtMatmulHeuristicResult_t result;
    const struct gemm_key key = bucket_key(problem, bucket);
    if (algorithm_find_saved(g, problem, bucket, &problem->bucket[bucket].algo)) return TIMED;
    if (description_make(&problem->sample, &key, key.rows, &d) != CUBLAS_STATUS_SUCCESS ||
        !algorithm_candidates(g, &d, 1, &result))
        return NONE;
    problem->bucket[bucket].algo = result.algo;
    return GUESSED;
}

bool gemm_has_algorithm(struct cuda *cuda, const struct gemm_call *call, int rows)
{
    struct problem *problem = gemm_problem_of(cuda->gemm, call);
    const int bucket = bucket_of(rows);
    INVARIANT(rows <= problem->max_rows, "an algorithm for %d rows of at most %d", rows, problem->max_rows);
    if (problem->bucket[bucket].known == UNKNOWN)
        problem->bucket[bucket].known = algorithm_select(cuda->gemm, problem, bucket);
    return problem->bucket[bucket].known != NONE;
}

// Limits the multiprocessors of the gemm, to leave some to the sums of the other micro-batch. A gemm of the library
// occupies each of its multiprocessors until its end, and blocks of NCCL do not fit next to it.
static cublasStatus_t description_leave(const struct cuda *cuda, struct description *d)
{
    const int32_t count = cuda->properties.multiProcessorCount - overlap_sum_blocks(cuda);
    if (cuda->micro_batch != ALL_ROWS) SET(CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, count);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t gemm_try(struct cuda *cuda, const struct gemm_call *call, int rows)
{
    struct gemm *g = cuda->gemm;
    struct problem *problem = gemm_problem_of(g, call);
    const int bucket = bucket_of(rows);
    struct description d;
    cublasLtMatmulHeuristicResult_t result;
    if (problem->bucket[bucket].known == UNKNOWN) problem->bucket[bucket].known = algorithm_select(g, problem, bucket);
    if (problem->bucket[bucket].known == NONE) return CUBLAS_STATUS_NOT_SUPPORTED;
    cublasStatus_t status = description_make(call, &problem->key, rows, &d);
    if (status == CUBLAS_STATUS_SUCCESS) status = description_leave(cuda, &d);
    if (status == CUBLAS_STATUS_SUCCESS) status = gemm_multiply(cuda, g, call, &d, &problem->bucket[bucket].algo);
    if (status != CUBLAS_STATUS_NOT_SUPPORTED && status != CUBLAS_STATUS_INVALID_VALUE) return status;
    // The algorithm was selected for the largest number of rows of the bucket and should support fewer rows. If it does
    // not support them, use the library's first candidate for this number of rows.
    if (!algorithm_candidates(g, &d, 1, &result)) return CUBLAS_STATUS_NOT_SUPPORTED;
    return gemm_multiply(cuda, g, call, &d, &result.algo);
}

// ---- tuning ---------------------------------------------------------------------------------------------------------

// Returns the next weight of the same shape. Timing uses such weights one after another. As in a pass, no weight is
// then in the cache when it is used.
static const struct weight *next_alike(const struct cuda *cuda, const struct weight *w)
{
    const struct weight *next = w;
    do
        next = next->next ? next->next : cuda->weights;
    while (next != w && (next->kind != w->kind || next->rows != w->rows || next->columns != w->columns ||
                         next->dtype != w->dtype || next->block_scaled != w->block_scaled));
    return next;
}

// Candidates of one bucket.
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
    struct tuning t = {.cuda = cuda, .key = bucket_key(problem, bucket), .call = problem->sample};
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
        if (!problem->sample.x || problem->sample.first_row || problem->sample.max_rows < problem->max_rows) continue;
        const int buckets = bucket_of(problem->max_rows) + 1;
        for (int bucket = buckets - 1; bucket >= 0; bucket--) { // largest first: it warms up the device
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
    g->streams = cuda_switched_on("FOREPACK_CUDA_STREAM_GEMM") &&
                 cuda->properties.sharedMemPerBlockOptin >= gemm_stream_shared_bytes();
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

// First version of the library that multiplies block-scaled matrices, and the only compute capability that supports
// them.
enum { BLOCK_SCALES_VERSION = 120900, BLOCK_SCALES_CAPABILITY = 90 };

bool gemm_has_block_scales(struct cuda *cuda)
{
    const struct cudaDeviceProp *p = &cuda->properties;
    return CUBLAS_VERSION >= BLOCK_SCALES_VERSION && cublasLtGetVersion() >= BLOCK_SCALES_VERSION &&
           10 * p->major + p->minor == BLOCK_SCALES_CAPABILITY;
}

// Replaces memory by memory of `bytes` bytes. cudaFree waits for steps that use the old memory.
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
