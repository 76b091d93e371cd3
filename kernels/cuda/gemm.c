// SPDX-License-Identifier: Apache-2.0
// Gemms by cuBLASLt. Its matrices are column-major: read that way, out[rows, N] = x[rows, K] W[N, K]^T is out^T = W x^T
// with W transposed, the operand order of its fastest algorithms. Sums are f32.
//
// Where cuBLASLt supports the epilogue (adding to out, bias, scales), it applies it. Else the gemm writes f32 to
// scratch memory and a kernel of this backend applies the epilogue, in chunks of rows that bound the scratch.
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
static const size_t WORKSPACE_BYTES = (size_t)32 << 20; // what NVIDIA recommends for Hopper
static const size_t SCRATCH_BYTES = (size_t)256 << 20;

// One gemm to run.
struct gemm_call {
    const struct weight *w;
    const void *x;
    const float *row_scale, *bias; // either may be NULL
    void *out;
    int out_stride;
    bool out_bf16, add;
    int max_rows; // of x and out
};

enum known { UNKNOWN, GUESSED, TIMED }; // how a bucket's algorithm was selected

// All gemms of one shape and epilogue: any weight, any number of rows.
struct problem {
    struct gemm_key key;   // rows is 0
    bool unsupported;      // cuBLASLt does not support it
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

    size_t max_rows, max_n, max_fp8_k; // rows of tensors; N of weights; K of FP8 weights
    float *scratch;                    // f32 results of a chunk of rows
    void *quantised;                   // FP8: the rows of the gemm under way, and their scales
    float *row_scale;
    size_t scratch_bytes, quantised_bytes, row_scale_bytes;
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
    const bool fp8 = call->w->dtype == DTYPE_FP8;
    return (struct gemm_key){.n = fp8 ? cuda_stride(call->w->rows) : (int32_t)call->w->rows,
                             .k = call->w->stride,
                             .out_stride = call->out_stride,
                             .fp8 = fp8,
                             .out_bf16 = call->out_bf16,
                             .add = call->add,
                             .bias = call->bias != NULL,
                             .scaled = call->row_scale != NULL};
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
    if (call->row_scale) {
#if CUBLAS_VERSION >= 120900
        const int32_t mode = CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
        SET(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, mode);
        SET(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, mode);
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
        cublasLtMatmulPreferenceSetAttribute(&preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &WORKSPACE_BYTES,
                                             sizeof WORKSPACE_BYTES) != CUBLAS_STATUS_SUCCESS ||
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

// The problem of a call; a new one is checked for support. It allocates only for new problems, that is at start-up: the
// first pass calls every gemm of a model.
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
    struct description d;
    cublasLtMatmulHeuristicResult_t first;
    problem->unsupported = description_make(call, &key, call->max_rows, &d) != CUBLAS_STATUS_SUCCESS ||
                           !algorithm_candidates(g, &d, 1, &first);
    return problem;
}

static bool gemm_supported(struct gemm *g, const struct gemm_call *call)
{
    return !problem_of(g, call)->unsupported;
}

static cublasStatus_t gemm_multiply(struct cuda *cuda, struct gemm *g, const struct gemm_call *call,
                                    struct description *d, const cublasLtMatmulAlgo_t *algo)
{
    const float one = 1, beta = call->add ? 1 : 0;
    return cublasLtMatmul(g->library, &d->matmul, &one, call->w->data, &d->w, call->x, &d->x, &beta, call->out, &d->out,
                          call->out, &d->out, algo, g->workspace, WORKSPACE_BYTES, cuda->stream);
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
        result.workspaceSize > WORKSPACE_BYTES)
        return false;
    *algo_p = algo;
    return true;
}

static enum status algorithm_guess(struct gemm *g, struct problem *problem, int bucket)
{
    struct description d;
    cublasLtMatmulHeuristicResult_t result;
    const struct gemm_key key = bucket_key(problem, bucket);
    cublasStatus_t status = description_make(&problem->last, &key, key.rows, &d);
    if (status == CUBLAS_STATUS_SUCCESS && !algorithm_candidates(g, &d, 1, &result))
        status = CUBLAS_STATUS_NOT_SUPPORTED;
    if (status != CUBLAS_STATUS_SUCCESS) return library_status(status, &key, key.rows);
    problem->bucket[bucket].algo = result.algo;
    problem->bucket[bucket].known = GUESSED;
    return STATUS_OK;
}

// Runs a gemm that is supported, see gemm_supported.
static enum status gemm_run(struct cuda *cuda, const struct gemm_call *call, int rows)
{
    struct gemm *g = cuda->gemm;
    struct problem *problem = problem_of(g, call);
    const int bucket = bucket_of(rows);
    struct description d;
    cublasLtMatmulHeuristicResult_t result;
    if (problem->bucket[bucket].known == UNKNOWN &&
        algorithm_find_saved(g, problem, bucket, &problem->bucket[bucket].algo))
        problem->bucket[bucket].known = TIMED;
    if (problem->bucket[bucket].known == UNKNOWN) {
        enum status guessed = algorithm_guess(g, problem, bucket);
        if (guessed != STATUS_OK) return guessed;
    }
    cublasStatus_t status = description_make(call, &problem->key, rows, &d);
    if (status == CUBLAS_STATUS_SUCCESS) status = gemm_multiply(cuda, g, call, &d, &problem->bucket[bucket].algo);
    // The algorithm was selected for the largest number of rows of the bucket and should support fewer. If it does not,
    // take the library's first candidate for this number of rows.
    if ((status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE) &&
        algorithm_candidates(g, &d, 1, &result))
        status = gemm_multiply(cuda, g, call, &d, &result.algo);
    return library_status(status, &problem->key, rows);
}

// ---- the step -------------------------------------------------------------------------------------------------------

// Rows per chunk of a gemm with n outputs, as the scratch memory allows.
static int scratch_rows(const struct gemm *g, int n)
{
    size_t rows = g->scratch_bytes / sizeof(float) / (size_t)n;
    if (rows > g->max_rows) rows = g->max_rows;
    return (int)(rows > 256 ? rows / 256 * 256 : rows);
}

struct epilogue {
    struct tensor *out;
    const struct weight *w, *bias;
    enum linear_mode mode;
};

// Applies the epilogue to rows [first, first + rows) of the step, whose gemm result is in the scratch. row_scale:
// scales of these rows to apply here; NULL if the library has applied them.
static enum status gemm_finish(struct cuda *cuda, const struct epilogue *e, int first, int rows, const float *row_scale)
{
    float *result = cuda->gemm->scratch;
    const int n = (int)e->w->rows, stride = cuda_stride(n);
    const bool bf16 = e->out->kind == TENSOR_ACTIVATION, swiglu = e->mode == LINEAR_SWIGLU;
    void *out = cuda_rows(cuda, e->out, first);
    const float *bias = e->bias ? e->bias->data : NULL;
    cudaError_t error = cudaSuccess;
    if (swiglu && row_scale)
        error = launch_epilogue(cuda->stream, result, stride, false, false, result, stride, row_scale, e->w->scale,
                                NULL, rows, n);
    if (swiglu && error == cudaSuccess)
        error = launch_swiglu(cuda->stream, out, e->out->stride, result, stride, rows, n / 2);
    if (!swiglu)
        error = launch_epilogue(cuda->stream, out, e->out->stride, bf16, e->mode == LINEAR_ADD, result, stride,
                                row_scale, row_scale ? e->w->scale : NULL, bias, rows, n);
    return cuda_status(error, "gemm epilogue");
}

static enum status gemm_by_scratch(struct cuda *cuda, struct gemm_call call, const struct epilogue *e, int rows)
{
    struct gemm *g = cuda->gemm;
    const int chunk = scratch_rows(g, cuda_stride(e->w->rows));
    const float *row_scale = call.row_scale;
    call.out = g->scratch;
    call.out_stride = cuda_stride(e->w->rows);
    call.out_bf16 = call.add = false;
    call.bias = NULL;
    if (call.max_rows > chunk) call.max_rows = chunk;
    const bool scaled = row_scale && gemm_supported(g, &call); // the library applies the scales
    const char *x = call.x;
    for (int first = 0; first < rows; first += chunk) {
        const int n = rows - first < chunk ? rows - first : chunk;
        call.x = x + (size_t)first * (size_t)e->w->stride * dtype_size_bytes(e->w->dtype);
        call.row_scale = scaled ? row_scale + first : NULL;
        enum status status = gemm_run(cuda, &call, n);
        if (status == STATUS_OK)
            status = gemm_finish(cuda, e, first, n, row_scale && !scaled ? row_scale + first : NULL);
        if (status != STATUS_OK) return status;
    }
    return STATUS_OK;
}

// Sets the input of a call: the rows of x, quantised if the weight is FP8.
static enum status gemm_set_input(struct cuda *cuda, const struct tensor *x, int rows, struct gemm_call *call)
{
    struct gemm *g = cuda->gemm;
    const void *from = call->x = cuda_rows(cuda, x, 0);
    if (call->w->dtype != DTYPE_FP8) return STATUS_OK;
    call->x = g->quantised;
    call->row_scale = g->row_scale;
    return cuda_status(launch_quantise_rows(cuda->stream, g->quantised, call->w->stride, g->row_scale, from, false,
                                            x->stride, rows, x->stride),
                       "rows to fp8");
}

static enum status gemm_linear(struct cuda *cuda, struct tensor *out, const struct tensor *x, const struct weight *w,
                               const struct weight *bias, enum linear_mode mode, int rows)
{
    const bool fp8 = w->dtype == DTYPE_FP8;
    struct gemm_call call = {.w = w,
                             .out = cuda_rows(cuda, out, 0),
                             .out_stride = out->stride,
                             .out_bf16 = out->kind == TENSOR_ACTIVATION,
                             .add = mode == LINEAR_ADD,
                             .bias = bias ? bias->data : NULL,
                             .max_rows = x->max_rows < out->max_rows ? x->max_rows : out->max_rows};
    enum status status = gemm_set_input(cuda, x, rows, &call);
    if (status != STATUS_OK) return status;
    // The library wants bf16 biases for bf16 results and FP8 operands, ours are f32. FP8 needs N a multiple of 16.
    const bool direct = mode != LINEAR_SWIGLU && !(bias && (fp8 || call.out_bf16)) && !(fp8 && w->rows % 16);
    if (direct && gemm_supported(cuda->gemm, &call)) return gemm_run(cuda, &call, rows);
    return gemm_by_scratch(cuda, call, &(struct epilogue){out, w, bias, mode}, rows);
}

enum status cuda_linear(struct backend *b, struct tensor *out, const struct tensor *x, const struct weight *w,
                        const struct weight *bias, enum linear_mode mode, int rows)
{
    assert(w->kind == WEIGHT_MATRIX && x->kind == TENSOR_ACTIVATION && x->columns == w->columns);
    assert(out->columns == (mode == LINEAR_SWIGLU ? w->rows / 2 : w->rows));
    assert(cuda_of(b)->on_device.first_row + rows <= out->max_rows);
    assert(cuda_of(b)->on_device.first_row + rows <= x->max_rows);
    assert(!bias || (bias->columns == w->rows && mode != LINEAR_SWIGLU));
    assert(mode != LINEAR_ADD || out->kind == TENSOR_F32);
    assert(mode != LINEAR_SWIGLU || out->kind == TENSOR_ACTIVATION);
    int suspended = no_alloc_suspend(); // cuBLASLt may allocate
    enum status status = gemm_linear(cuda_of(b), out, x, w, bias, mode, rows);
    no_alloc_resume(suspended);
    return status;
}

// ---- tuning ---------------------------------------------------------------------------------------------------------

// The next weight of the same shape. Timing with weights in turn keeps a weight from being in the cache, as it is not
// in a pass.
static const struct weight *next_alike(const struct cuda *cuda, const struct weight *w)
{
    const struct weight *next = w;
    do
        next = next->next ? next->next : cuda->weights;
    while (next != w &&
           (next->kind != w->kind || next->rows != w->rows || next->columns != w->columns || next->dtype != w->dtype));
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
        const int buckets = problem->unsupported ? 0 : bucket_of(problem->max_rows) + 1;
        for (int bucket = buckets - 1; bucket >= 0; bucket--) { // the first one, which warms up, is the largest
            if (problem->bucket[bucket].known != TIMED &&
                algorithm_find_saved(g, problem, bucket, &problem->bucket[bucket].algo))
                problem->bucket[bucket].known = TIMED;
            if (problem->bucket[bucket].known == TIMED) {
                saved++;
                continue;
            }
            enum status status = algorithm_choose(cuda, problem, bucket);
            if (status != STATUS_OK) return status;
            timed++;
        }
    }
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
    return cuda_allocate(cuda, WORKSPACE_BYTES, "the workspace of gemms", &g->workspace);
}

void gemm_close(struct gemm *g)
{
    if (!g) return;
    for (int i = 0; i < g->n_problems; i++)
        free(g->problems[i].bucket);
    free(g->problems);
    cudaFree(g->workspace);
    cudaFree(g->scratch);
    cudaFree(g->quantised);
    cudaFree(g->row_scale);
    timer_close(&g->timer);
    if (g->library) cublasLtDestroy(g->library);
    algorithms_close(g->saved);
    free(g);
}

// Replaces memory by one of at least `bytes`; cudaFree waits for steps that use the old one.
static enum status scratch_grow(struct cuda *cuda, size_t bytes, const char *what, void **memory_p, size_t *bytes_p)
{
    if (bytes <= *bytes_p) return STATUS_OK;
    cudaFree(*memory_p);
    *memory_p = NULL;
    *bytes_p = 0;
    enum status status = cuda_allocate(cuda, bytes, what, memory_p);
    if (status == STATUS_OK) *bytes_p = bytes;
    return status;
}

enum status gemm_reserve(struct cuda *cuda, int rows, const struct weight *w)
{
    struct gemm *g = cuda->gemm;
    const size_t n = w ? (size_t)cuda_stride(w->rows) : 0, k = w && w->dtype == DTYPE_FP8 ? (size_t)w->stride : 0;
    if ((size_t)rows > g->max_rows) g->max_rows = (size_t)rows;
    if (n > g->max_n) g->max_n = n;
    if (k > g->max_fp8_k) g->max_fp8_k = k;
    size_t scratch = g->max_rows * g->max_n * sizeof(float), one_row = g->max_n * sizeof(float);
    if (scratch > SCRATCH_BYTES) scratch = one_row > SCRATCH_BYTES ? one_row : SCRATCH_BYTES;
    enum status status = scratch_grow(cuda, scratch, "gemm results", (void **)&g->scratch, &g->scratch_bytes);
    if (status != STATUS_OK || !g->max_fp8_k) return status;
    status = scratch_grow(cuda, g->max_rows * g->max_fp8_k, "rows in fp8", &g->quantised, &g->quantised_bytes);
    if (status != STATUS_OK) return status;
    return scratch_grow(cuda, g->max_rows * sizeof(float), "scales of rows", (void **)&g->row_scale,
                        &g->row_scale_bytes);
}
