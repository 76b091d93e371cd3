// SPDX-License-Identifier: Apache-2.0
// Matrix products by cuBLASLt. Its matrices are column-major: out[rows, N] = x[rows, K] W[N, K]^T is, read that way,
// out^T = W x^T with W transposed, which is the order its fastest algorithms want. Sums are f32.
//
// Where cuBLASLt can end a product as it is to end (add to what is there, bias, scales), it does; else the product goes
// to scratch memory in f32 and a kernel of ours ends it, in stretches of rows so that the scratch has a bound.
//
// Which algorithm is the fastest depends on the shape and the number of rows. Numbers of rows are put into buckets; of
// each bucket the library's best guesses are timed when the backend is warmed up (algorithms.h keeps the winners), and
// without that its first guess is taken. All rows of a pass, and all passes of a bucket, so go the same way; passes of
// another bucket may sum in another order.
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/no_alloc.h"
#include "kernels/cuda/algorithms.h"
#include "kernels/cuda/cuda.h"

enum { CANDIDATES = 8 };
static const size_t WORKSPACE_BYTES = (size_t)32 << 20; // what NVIDIA recommends for Hopper
static const size_t SCRATCH_BYTES = (size_t)256 << 20;

struct call {
    const struct weight *w;
    const void *x;
    const float *row_scale, *bias; // either may be NULL
    void *out;
    int out_stride;
    bool out_bf16, add;
    int max_rows; // that x and out have room for
};

enum known { UNKNOWN, GUESSED, TIMED };

// The products of one shape, whatever the weight and the rows.
struct problem {
    struct product_key key; // rows is 0
    bool refused;           // cuBLASLt has nothing for it
    int max_rows;           // more are never asked for
    struct call last;       // to be timed with
    struct {
        enum known known;
        cublasLtMatmulAlgo_t algo;
    } * bucket;
};

struct products {
    cublasLtHandle_t library;
    struct algorithms *kept;
    void *workspace;
    cudaEvent_t from, to;
    struct problem *problems;
    int n_problems, capacity;

    size_t most_rows, widest, deepest; // of tensors; N of weights; K of weights in FP8
    float *scratch;                    // of a stretch of rows
    void *quantised;                   // FP8: the rows of the product under way, and their scales
    float *row_scale;
    size_t scratch_bytes, quantised_bytes, row_scale_bytes;
};

// ---- buckets of rows ------------------------------------------------------------------------------------------------

// The most rows of a bucket: powers of two, and from 64 on also halfway to the next.
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

// What the choice for a bucket is made with.
static struct product_key bucket_key(const struct problem *problem, int bucket)
{
    struct product_key key = problem->key;
    key.rows = bucket_rows(bucket) < problem->max_rows ? bucket_rows(bucket) : problem->max_rows;
    return key;
}

// ---- descriptions for the library -----------------------------------------------------------------------------------

struct description {
    cublasLtMatmulDescOpaque_t product;
    cublasLtMatrixLayoutOpaque_t w, x, out;
};

static enum status library_status(cublasStatus_t status, const struct product_key *key, int rows)
{
    if (status == CUBLAS_STATUS_SUCCESS) return STATUS_OK;
    return status_fail(STATUS_UNAVAILABLE, "cuBLASLt: a product of %d rows with %d x %d: %s", rows, key->n, key->k,
                       cublasLtGetStatusString(status));
}

static struct product_key key_of(const struct call *call)
{
    const bool fp8 = call->w->dtype == DTYPE_FP8;
    return (struct product_key){.n = fp8 ? cuda_stride(call->w->rows) : (int32_t)call->w->rows,
                                .k = call->w->stride,
                                .out_stride = call->out_stride,
                                .fp8 = fp8,
                                .out_bf16 = call->out_bf16,
                                .add = call->add,
                                .bias = call->bias != NULL,
                                .scaled = call->row_scale != NULL};
}

static cublasStatus_t set(struct description *d, cublasLtMatmulDescAttributes_t which, const void *value, size_t bytes)
{
    return cublasLtMatmulDescSetAttribute(&d->product, which, value, bytes);
}

#define SET(which, value)                                                                                              \
    do {                                                                                                               \
        cublasStatus_t set_status = set(d, which, &(value), sizeof(value));                                            \
        if (set_status != CUBLAS_STATUS_SUCCESS) return set_status;                                                    \
    } while (0)

static cublasStatus_t describe_ends(const struct call *call, struct description *d)
{
    const int32_t transposed = CUBLAS_OP_T, as_it_is = CUBLAS_OP_N;
    SET(CUBLASLT_MATMUL_DESC_TRANSA, transposed);
    SET(CUBLASLT_MATMUL_DESC_TRANSB, as_it_is);
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

static cublasStatus_t describe(const struct call *call, const struct product_key *key, int rows, struct description *d)
{
    const cudaDataType from = key->fp8 ? CUDA_R_8F_E4M3 : CUDA_R_16BF, to = key->out_bf16 ? CUDA_R_16BF : CUDA_R_32F;
    const uint64_t n = (uint64_t)key->n, k = (uint64_t)key->k, count = (uint64_t)rows;
    cublasStatus_t status = cublasLtMatmulDescInit(&d->product, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    if (status == CUBLAS_STATUS_SUCCESS) status = cublasLtMatrixLayoutInit(&d->w, from, k, n, key->k);
    if (status == CUBLAS_STATUS_SUCCESS) status = cublasLtMatrixLayoutInit(&d->x, from, k, count, key->k);
    if (status == CUBLAS_STATUS_SUCCESS) status = cublasLtMatrixLayoutInit(&d->out, to, n, count, key->out_stride);
    return status == CUBLAS_STATUS_SUCCESS ? describe_ends(call, d) : status;
}

// Up to `most` algorithms, the library's favourites first; returns how many.
static int candidates(struct products *p, struct description *d, int most, cublasLtMatmulHeuristicResult_t *results)
{
    cublasLtMatmulPreferenceOpaque_t preference;
    int n = 0;
    if (cublasLtMatmulPreferenceInit(&preference) != CUBLAS_STATUS_SUCCESS ||
        cublasLtMatmulPreferenceSetAttribute(&preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &WORKSPACE_BYTES,
                                             sizeof WORKSPACE_BYTES) != CUBLAS_STATUS_SUCCESS ||
        cublasLtMatmulAlgoGetHeuristic(p->library, &d->product, &d->w, &d->x, &d->out, &d->out, &preference, most,
                                       results, &n) != CUBLAS_STATUS_SUCCESS)
        return 0;
    int usable = 0;
    for (int i = 0; i < n; i++)
        if (results[i].state == CUBLAS_STATUS_SUCCESS) results[usable++] = results[i];
    return usable;
}

// ---- problems -------------------------------------------------------------------------------------------------------

static void enlarge(struct problem *problem, int max_rows)
{
    const int before = problem->max_rows ? bucket_of(problem->max_rows) + 1 : 0, now = bucket_of(max_rows) + 1;
    problem->bucket = mem_resize(problem->bucket, (size_t)now, sizeof *problem->bucket);
    memset(problem->bucket + before, 0, (size_t)(now - before) * sizeof *problem->bucket);
    problem->max_rows = max_rows;
}

// Also asks whether the library can do it at all. Only here something is allocated: at start-up, whose first pass asks
// for all products of a model.
static struct problem *problem_of(struct products *p, const struct call *call)
{
    const struct product_key key = key_of(call);
    for (int i = 0; i < p->n_problems; i++)
        if (memcmp(&p->problems[i].key, &key, sizeof key) == 0) {
            if (call->max_rows > p->problems[i].max_rows) enlarge(&p->problems[i], call->max_rows);
            p->problems[i].last = *call;
            return &p->problems[i];
        }
    MEM_GROW(p->problems, p->n_problems, p->capacity);
    struct problem *problem = &p->problems[p->n_problems++];
    *problem = (struct problem){.key = key, .last = *call};
    enlarge(problem, call->max_rows);
    struct description d;
    cublasLtMatmulHeuristicResult_t first;
    problem->refused =
        describe(call, &key, call->max_rows, &d) != CUBLAS_STATUS_SUCCESS || !candidates(p, &d, 1, &first);
    return problem;
}

static bool can(struct products *p, const struct call *call)
{
    return !problem_of(p, call)->refused;
}

static cublasStatus_t multiply(struct cuda *cuda, struct products *p, const struct call *call, struct description *d,
                               const cublasLtMatmulAlgo_t *algo)
{
    const float one = 1, beta = call->add ? 1 : 0;
    return cublasLtMatmul(p->library, &d->product, &one, call->w->data, &d->w, call->x, &d->x, &beta, call->out,
                          &d->out, call->out, &d->out, algo, p->workspace, WORKSPACE_BYTES, cuda->stream);
}

// The algorithm that an earlier start found, if the library still takes it.
static bool kept(struct products *p, const struct problem *problem, int bucket, cublasLtMatmulAlgo_t *algo_p)
{
    const struct product_key key = bucket_key(problem, bucket);
    cublasLtMatmulAlgo_t algo;
    struct description d;
    cublasLtMatmulHeuristicResult_t result;
    if (!algorithms_find(p->kept, &key, &algo) ||
        describe(&problem->last, &key, key.rows, &d) != CUBLAS_STATUS_SUCCESS ||
        cublasLtMatmulAlgoCheck(p->library, &d.product, &d.w, &d.x, &d.out, &d.out, &algo, &result) !=
            CUBLAS_STATUS_SUCCESS ||
        result.workspaceSize > WORKSPACE_BYTES)
        return false;
    *algo_p = algo;
    return true;
}

static enum status guess(struct products *p, struct problem *problem, int bucket)
{
    struct description d;
    cublasLtMatmulHeuristicResult_t result;
    const struct product_key key = bucket_key(problem, bucket);
    cublasStatus_t status = describe(&problem->last, &key, key.rows, &d);
    if (status == CUBLAS_STATUS_SUCCESS && !candidates(p, &d, 1, &result)) status = CUBLAS_STATUS_NOT_SUPPORTED;
    if (status != CUBLAS_STATUS_SUCCESS) return library_status(status, &key, key.rows);
    problem->bucket[bucket].algo = result.algo;
    problem->bucket[bucket].known = GUESSED;
    return STATUS_OK;
}

// A product whose shape can() be done.
static enum status run(struct cuda *cuda, const struct call *call, int rows)
{
    struct products *p = cuda->products;
    struct problem *problem = problem_of(p, call);
    const int bucket = bucket_of(rows);
    struct description d;
    cublasLtMatmulHeuristicResult_t result;
    if (problem->bucket[bucket].known == UNKNOWN && kept(p, problem, bucket, &problem->bucket[bucket].algo))
        problem->bucket[bucket].known = TIMED;
    if (problem->bucket[bucket].known == UNKNOWN) {
        enum status guessed = guess(p, problem, bucket);
        if (guessed != STATUS_OK) return guessed;
    }
    cublasStatus_t status = describe(call, &problem->key, rows, &d);
    if (status == CUBLAS_STATUS_SUCCESS) status = multiply(cuda, p, call, &d, &problem->bucket[bucket].algo);
    // An algorithm chosen for the most rows of the bucket should do for fewer. If not, one is looked for each time.
    if ((status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE) &&
        candidates(p, &d, 1, &result))
        status = multiply(cuda, p, call, &d, &result.algo);
    return library_status(status, &problem->key, rows);
}

// ---- the step -------------------------------------------------------------------------------------------------------

// Rows of a product with n outputs that the scratch takes.
static int stretch_rows(const struct products *p, int n)
{
    size_t rows = p->scratch_bytes / sizeof(float) / (size_t)n;
    if (rows > p->most_rows) rows = p->most_rows;
    return (int)(rows > 256 ? rows / 256 * 256 : rows);
}

struct ending {
    struct tensor *out;
    const struct weight *w, *bias;
    enum linear_mode mode;
};

// Rows [first, first + rows) of the step from their product in the scratch. row_scale: of these rows, if it is to be
// done.
static enum status end(struct cuda *cuda, const struct ending *e, int first, int rows, const float *row_scale)
{
    float *product = cuda->products->scratch;
    const int n = (int)e->w->rows, stride = cuda_stride(n);
    const bool bf16 = e->out->kind == TENSOR_ACTIVATION, swiglu = e->mode == LINEAR_SWIGLU;
    void *out = cuda_rows(cuda, e->out, first);
    const float *bias = e->bias ? e->bias->data : NULL;
    cudaError_t error = cudaSuccess;
    if (swiglu && row_scale)
        error = launch_epilogue(cuda->stream, product, stride, false, false, product, stride, row_scale, e->w->scale,
                                NULL, rows, n);
    if (swiglu && error == cudaSuccess)
        error = launch_swiglu(cuda->stream, out, e->out->stride, product, stride, rows, n / 2);
    if (!swiglu)
        error = launch_epilogue(cuda->stream, out, e->out->stride, bf16, e->mode == LINEAR_ADD, product, stride,
                                row_scale, row_scale ? e->w->scale : NULL, bias, rows, n);
    return cuda_status(error, "the end of a product");
}

static enum status by_scratch(struct cuda *cuda, struct call call, const struct ending *e, int rows)
{
    struct products *p = cuda->products;
    const int stretch = stretch_rows(p, cuda_stride(e->w->rows));
    const float *row_scale = call.row_scale;
    call.out = p->scratch;
    call.out_stride = cuda_stride(e->w->rows);
    call.out_bf16 = call.add = false;
    call.bias = NULL;
    if (call.max_rows > stretch) call.max_rows = stretch;
    const bool scaled = row_scale && can(p, &call); // by the library
    const char *x = call.x;
    for (int first = 0; first < rows; first += stretch) {
        const int n = rows - first < stretch ? rows - first : stretch;
        call.x = x + (size_t)first * (size_t)e->w->stride * dtype_size_bytes(e->w->dtype);
        call.row_scale = scaled ? row_scale + first : NULL;
        enum status status = run(cuda, &call, n);
        if (status == STATUS_OK) status = end(cuda, e, first, n, row_scale && !scaled ? row_scale + first : NULL);
        if (status != STATUS_OK) return status;
    }
    return STATUS_OK;
}

// The rows of x as the weight's products read them.
static enum status prepare(struct cuda *cuda, const struct tensor *x, int rows, struct call *call)
{
    struct products *p = cuda->products;
    const void *from = call->x = cuda_rows(cuda, x, 0);
    if (call->w->dtype != DTYPE_FP8) return STATUS_OK;
    call->x = p->quantised;
    call->row_scale = p->row_scale;
    return cuda_status(launch_quantise_rows(cuda->stream, p->quantised, call->w->stride, p->row_scale, from, false,
                                            x->stride, rows, x->stride),
                       "rows to fp8");
}

static enum status linear(struct cuda *cuda, struct tensor *out, const struct tensor *x, const struct weight *w,
                          const struct weight *bias, enum linear_mode mode, int rows)
{
    const bool fp8 = w->dtype == DTYPE_FP8;
    struct call call = {.w = w,
                        .out = cuda_rows(cuda, out, 0),
                        .out_stride = out->stride,
                        .out_bf16 = out->kind == TENSOR_ACTIVATION,
                        .add = mode == LINEAR_ADD,
                        .bias = bias ? bias->data : NULL,
                        .max_rows = x->max_rows < out->max_rows ? x->max_rows : out->max_rows};
    enum status status = prepare(cuda, x, rows, &call);
    if (status != STATUS_OK) return status;
    // The library's biases are bf16 beside a bf16 result or FP8 operands; ours are f32. FP8 wants N a multiple of 16.
    const bool as_it_is = mode != LINEAR_SWIGLU && !(bias && (fp8 || call.out_bf16)) && !(fp8 && w->rows % 16);
    if (as_it_is && can(cuda->products, &call)) return run(cuda, &call, rows);
    return by_scratch(cuda, call, &(struct ending){out, w, bias, mode}, rows);
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
    int suspended = no_alloc_suspend(); // cuBLASLt allocates as it sees fit
    enum status status = linear(cuda_of(b), out, x, w, bias, mode, rows);
    no_alloc_resume(suspended);
    return status;
}

// ---- choosing by time -----------------------------------------------------------------------------------------------

// Another weight of the same shape: a product that finds its weight in the cache, since it was the last one's, says
// little of those that do not.
static const struct weight *next_alike(const struct cuda *cuda, const struct weight *w)
{
    const struct weight *next = w;
    do
        next = next->next ? next->next : cuda->weights;
    while (next != w &&
           (next->kind != w->kind || next->rows != w->rows || next->columns != w->columns || next->dtype != w->dtype));
    return next;
}

// Milliseconds of one product, infinity if it cannot be done so.
static enum status measure(struct cuda *cuda, struct call *call, const struct product_key *key,
                           const cublasLtMatmulAlgo_t *algo, float *ms_p)
{
    struct products *p = cuda->products;
    const int runs = key->rows <= 256 ? 8 : 2;
    struct description d;
    *ms_p = __builtin_inff();
    for (int run = -1; run < runs; run++) { // the first one loads the kernel
        if (run == 0 && cudaEventRecord(p->from, cuda->stream) != cudaSuccess) break;
        call->w = next_alike(cuda, call->w);
        if (describe(call, key, key->rows, &d) != CUBLAS_STATUS_SUCCESS) return cuda_wait(cuda);
        if (multiply(cuda, p, call, &d, algo) != CUBLAS_STATUS_SUCCESS) return cuda_wait(cuda);
    }
    cudaError_t error = cudaEventRecord(p->to, cuda->stream);
    if (error == cudaSuccess) error = cudaEventSynchronize(p->to);
    float ms;
    if (error == cudaSuccess) error = cudaEventElapsedTime(&ms, p->from, p->to);
    if (error == cudaSuccess) *ms_p = ms / (float)runs;
    return cuda_status(error, "timing a product");
}

static enum status choose(struct cuda *cuda, struct problem *problem, int bucket)
{
    struct products *p = cuda->products;
    const struct product_key key = bucket_key(problem, bucket);
    struct call call = problem->last;
    struct description d;
    cublasLtMatmulHeuristicResult_t results[CANDIDATES];
    float best = __builtin_inff();
    int n = describe(&call, &key, key.rows, &d) == CUBLAS_STATUS_SUCCESS ? candidates(p, &d, CANDIDATES, results) : 0;
    for (int i = 0; i < n; i++) {
        float ms;
        enum status status = measure(cuda, &call, &key, &results[i].algo, &ms);
        if (status != STATUS_OK) return status;
        if (ms >= best) continue;
        best = ms;
        problem->bucket[bucket].algo = results[i].algo;
        problem->bucket[bucket].known = TIMED;
    }
    if (problem->bucket[bucket].known == TIMED) algorithms_put(p->kept, &key, &problem->bucket[bucket].algo);
    return STATUS_OK;
}

enum status cuda_warm(struct backend *b)
{
    struct cuda *cuda = cuda_of(b);
    struct products *p = cuda->products;
    const int64_t from_us = clock_now_us();
    int timed = 0, known = 0;
    for (int i = 0; i < p->n_problems; i++) {
        struct problem *problem = &p->problems[i];
        const int buckets = problem->refused ? 0 : bucket_of(problem->max_rows) + 1;
        for (int bucket = 0; bucket < buckets; bucket++) {
            if (problem->bucket[bucket].known != TIMED && kept(p, problem, bucket, &problem->bucket[bucket].algo))
                problem->bucket[bucket].known = TIMED;
            if (problem->bucket[bucket].known == TIMED) {
                known++;
                continue;
            }
            enum status status = choose(cuda, problem, bucket);
            if (status != STATUS_OK) return status;
            timed++;
        }
    }
    algorithms_save(p->kept);
    log_info("products_warm timed=%d kept=%d ms=%.0f", timed, known, (double)(clock_now_us() - from_us) / 1000);
    return cuda_wait(cuda);
}

// ---- opening --------------------------------------------------------------------------------------------------------

enum status products_open(struct cuda *cuda, struct products **products_p)
{
    struct products *p = *products_p = mem_alloc(sizeof *p);
    p->kept = algorithms_open(cuda->properties.name, cublasLtGetVersion());
    cublasStatus_t created = cublasLtCreate(&p->library);
    if (created != CUBLAS_STATUS_SUCCESS) {
        p->library = NULL;
        return status_fail(STATUS_UNAVAILABLE, "cuBLASLt: %s", cublasLtGetStatusString(created));
    }
    cudaError_t error = cudaEventCreate(&p->from);
    if (error == cudaSuccess) error = cudaEventCreate(&p->to);
    if (error != cudaSuccess) return cuda_status(error, "CUDA events");
    return cuda_allocate(cuda, WORKSPACE_BYTES, "the workspace of products", &p->workspace);
}

void products_close(struct products *p)
{
    if (!p) return;
    for (int i = 0; i < p->n_problems; i++)
        free(p->problems[i].bucket);
    free(p->problems);
    cudaFree(p->workspace);
    cudaFree(p->scratch);
    cudaFree(p->quantised);
    cudaFree(p->row_scale);
    if (p->from) cudaEventDestroy(p->from);
    if (p->to) cudaEventDestroy(p->to);
    if (p->library) cublasLtDestroy(p->library);
    algorithms_close(p->kept);
    free(p);
}

// Memory of at least `bytes` in place of a smaller one. What is under way with the old one is waited for.
static enum status grow(struct cuda *cuda, size_t bytes, const char *what, void **memory_p, size_t *bytes_p)
{
    if (bytes <= *bytes_p) return STATUS_OK;
    cudaFree(*memory_p);
    *memory_p = NULL;
    *bytes_p = 0;
    enum status status = cuda_allocate(cuda, bytes, what, memory_p);
    if (status == STATUS_OK) *bytes_p = bytes;
    return status;
}

enum status products_reserve(struct cuda *cuda, int rows, const struct weight *w)
{
    struct products *p = cuda->products;
    const size_t n = w ? (size_t)cuda_stride(w->rows) : 0, k = w && w->dtype == DTYPE_FP8 ? (size_t)w->stride : 0;
    if ((size_t)rows > p->most_rows) p->most_rows = (size_t)rows;
    if (n > p->widest) p->widest = n;
    if (k > p->deepest) p->deepest = k;
    size_t scratch = p->most_rows * p->widest * sizeof(float), one_row = p->widest * sizeof(float);
    if (scratch > SCRATCH_BYTES) scratch = one_row > SCRATCH_BYTES ? one_row : SCRATCH_BYTES;
    enum status status = grow(cuda, scratch, "products", (void **)&p->scratch, &p->scratch_bytes);
    if (status != STATUS_OK || !p->deepest) return status;
    status = grow(cuda, p->most_rows * p->deepest, "rows in fp8", &p->quantised, &p->quantised_bytes);
    if (status != STATUS_OK) return status;
    return grow(cuda, p->most_rows * sizeof(float), "scales of rows", (void **)&p->row_scale, &p->row_scale_bytes);
}
