// SPDX-License-Identifier: Apache-2.0
// backend_ops.linear, and the steps that are computed with it: gemms of up to GEMV_ROWS rows by gemv.cu, larger ones by
// cuBLASLt (gemm.c).
//
// Where cuBLASLt supports the epilogue (adding to out, bias, scales), it applies it. Else the gemm writes f32 to
// scratch memory and a kernel of this backend applies the epilogue, in chunks of rows that bound the scratch.
//
// FP8 weights have a scale for each output, and the rows that they multiply one for each row; or, block-scaled, a scale
// for each block of 128 x 128 elements, and each row one for 128 values of K. Where the library has no FP8 algorithm
// for a number of rows, the weight is converted to bf16 in parts, for that gemm alone. Rows become FP8 in the kernel
// that computes them if that knows the weight: in RMSNorm and SwiGLU, or in gemv.cu, which multiplies them.
#include <assert.h>

#include "kernels/cuda/gemm.h"
#include "lib/base/no_alloc.h"

// ---- the step -------------------------------------------------------------------------------------------------------

// One call of backend_ops.linear.
struct linear {
    struct tensor *out;
    const struct tensor *x;
    const struct weight *w, *bias;
    enum linear_mode mode;
    int rows;
    const struct norm_step *norm; // computes x; NULL if x has been computed
    const int32_t *row_index;     // row indices of `norm` on the device
    bool stores_maxima;           // SWIGLU of few rows: g->maxima receives the maxima of out
    int n_maxima;                 // number of maxima of x per row in g->maxima; 0: there are none
    bool stores_fp8;              // SWIGLU of one chunk of rows: g->quantised receives out, one scale per row
    bool x_is_fp8;                // x is in g->quantised, not in its own memory
};

// Returns rows [first, first + rows) of x before the norm.
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
    const float *row_scale, *column_scale; // scales to apply to the results
};

// Returns the rows of a chunk that the memory for results allows.
static int chunk_rows(const struct gemm *g, int n)
{
    const size_t rows = g->memory.results / sizeof(float) / (size_t)n;
    return (int)(rows > 256 ? rows / 256 * 256 : rows > 4 ? rows / 4 * 4 : rows);
}

// Returns the call for a chunk, without weight and rows.
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
    const struct gemm_key key = gemm_call_key(&call);
    call.x = cuda_rows(cuda, l->x, c->first);
    call.first_row = cuda->on_device.first_row + c->first;
    return gemm_status(gemm_try(cuda, &call, c->n), &key, c->n);
}

// Computes x in bf16, for an FP8 gemm without an algorithm.
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
        call.first_row = cuda->on_device.first_row + c->first;
        call.out = g->results + first;
        const cudaError_t error = launch_dequantise(cuda->stream, g->dequantised, w->data, w->stride, w->scale,
                                                    w->block_scaled ? cuda_block_stride(w->columns) : 0, first, (int)n);
        if (error != cudaSuccess) return cuda_status(error, "a weight to bf16");
        const struct gemm_key key = gemm_call_key(&call);
        enum status status = gemm_status(gemm_try(cuda, &call, c->n), &key, c->n);
        if (status != STATUS_OK) return status;
    }
    return STATUS_OK;
}

// Runs an FP8 gemm. Does without fast accumulation if it is not supported.
static cublasStatus_t gemm_try_fp8(struct cuda *cuda, struct gemm_call call, int rows)
{
    call.fast = cuda->shape.fp8_fast_accum && !call.w->block_scaled;
    const cublasStatus_t status = gemm_try(cuda, &call, rows);
    if (status != CUBLAS_STATUS_NOT_SUPPORTED || !call.fast) return status;
    call.fast = false;
    return gemm_try(cuda, &call, rows);
}

// Runs the FP8 gemm of a chunk in the library. The library applies the scales or, as a second choice, leaves them to
// the epilogue.
static cublasStatus_t chunk_try_rows(struct cuda *cuda, const struct linear *l, struct chunk *c)
{
    struct gemm *g = cuda->gemm;
    struct gemm_call call = chunk_call(g, l);
    call.x = (const char *)g->quantised + (size_t)c->first * (size_t)l->w->stride;
    call.row_scale = g->row_scales + c->first;
    call.first_row = c->first;
    cublasStatus_t status = gemm_try_fp8(cuda, call, c->n);
    if (status != CUBLAS_STATUS_NOT_SUPPORTED) return status;
    call.row_scale = NULL;
    status = gemm_try_fp8(cuda, call, c->n);
    c->row_scale = g->row_scales + c->first;
    c->column_scale = l->w->scale;
    return status;
}

// Quantises rows [first, first + rows) of a step into g->quantised, after their norm if it has to be computed. With
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

// Pads the rows to a multiple of four, which cuBLASLt requires. The results of padding rows are not used.
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
    const struct gemm_key key = gemm_call_key(&call);
    const cublasStatus_t tried =
        l->w->block_scaled ? chunk_try_blocks(cuda, l, c, &status) : chunk_try_rows(cuda, l, c);
    if (status != STATUS_OK) return status;
    if (tried != CUBLAS_STATUS_NOT_SUPPORTED) return gemm_status(tried, &key, c->n);
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

// Returns true if the library can do the whole step. For bf16 results and FP8 operands it requires bf16 biases, and
// ours are f32. FP8 needs N to be a multiple of 16, and block-scaled FP8 a number of rows that is a multiple of 4.
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
                             .first_row = cuda->on_device.first_row,
                             .row_scale = fp8 ? g->row_scales : NULL,
                             .out = cuda_rows(cuda, l->out, 0),
                             .out_stride = l->out->stride,
                             .out_bf16 = l->out->kind == TENSOR_ACTIVATION,
                             .add = l->mode == LINEAR_ADD,
                             .bias = l->bias ? l->bias->data : NULL};
    call.max_rows = l->x->max_rows < l->out->max_rows ? l->x->max_rows : l->out->max_rows;
    // rows of `out` after the step's rows must not change
    if (l->w->block_scaled) call.max_rows = call.max_rows / 4 * 4;
    return call;
}

static cublasStatus_t linear_try_direct(struct cuda *cuda, const struct linear *l)
{
    const struct gemm_call call = direct_call(cuda, l);
    return l->w->dtype == DTYPE_FP8 ? gemm_try_fp8(cuda, call, l->rows) : gemm_try(cuda, &call, l->rows);
}

// Quantises all rows of a step with an FP8 weight. For block-scaled weights each chunk quantises its rows again, since
// the place of their scales depends on the number of rows.
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

// Prepares x for the kernel. If its blocks would read too much to prepare the rows themselves, a separate kernel
// prepares them first.
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
    if (!l->norm && !l->x_is_fp8 && (fits || l->n_maxima)) {
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
        if (gemm_has_algorithm(cuda, &calls[i], gemm_problem_of(g, &calls[i])->max_rows)) return;
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
        const struct gemm_key key = gemm_call_key(&call);
        if (tried != CUBLAS_STATUS_NOT_SUPPORTED) return gemm_status(tried, &key, l->rows);
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

// Returns true if a step with scales for each output is multiplied in FP8, directly or in chunks.
static bool linear_is_fp8(struct cuda *cuda, const struct linear *l)
{
    struct gemm_call calls[] = {direct_call(cuda, l), chunk_call(cuda->gemm, l), chunk_call(cuda->gemm, l)};
    calls[1].row_scale = cuda->gemm->row_scales;
    for (int i = linear_is_direct(l) ? 0 : 1; i < 3; i++) {
        const int rows = l->rows < calls[i].max_rows ? l->rows : calls[i].max_rows;
        calls[i].x = cuda->gemm->quantised; // `tune` may run it
        for (int fast = cuda->shape.fp8_fast_accum; fast >= 0; fast--) {
            calls[i].fast = fast;
            if (gemm_has_algorithm(cuda, &calls[i], rows)) return true;
        }
    }
    return false;
}

// Adds the addend of a norm and computes x, in FP8 if it is multiplied in FP8 with scales for each row. Uses a separate
// kernel: adding changes the input of the norm, so it may be done only once.
static enum status linear_add_norm(struct cuda *cuda, struct linear *l, const struct norm_step *norm)
{
    struct gemm *g = cuda->gemm;
    float *x = cuda_rows(cuda, norm->x, 0);
    const void *addend = cuda_rows(cuda, norm->addend, 0);
    const int stride = norm->addend->stride, n = norm->x->columns;
    const int32_t *index;
    cudaError_t error;
    assert(norm->addend->sums && norm->addend->columns == n);
    TRY(cuda_row_index(cuda, norm->row_index, l->rows, &index));
    l->x_is_fp8 = l->w->dtype == DTYPE_FP8 && !l->w->block_scaled && (l->rows <= GEMV_ROWS || linear_is_fp8(cuda, l));
    if (l->x_is_fp8)
        error = launch_add_rmsnorm_fp8(cuda->stream, g->quantised, l->x->stride, g->row_scales, x, addend, stride,
                                       norm->gain->data, norm->epsilon, index, l->rows, n);
    else
        error = launch_add_rmsnorm(cuda->stream, cuda_rows(cuda, norm->out, 0), norm->out->stride, x, addend, stride,
                                   norm->gain->data, norm->epsilon, index, l->rows, n);
    return cuda_status(error, "rmsnorm");
}

static enum status linear_after_norm(struct cuda *cuda, struct linear *l, const struct norm_step *norm)
{
    cuda_norm_check(cuda, norm->out, norm->x, norm->gain, norm->row_index, l->rows);
    l->x = norm->out;
    if (norm->addend) {
        int suspended = no_alloc_suspend(); // asks cuBLASLt for algorithms
        enum status status = linear_add_norm(cuda, l, norm);
        no_alloc_resume(suspended);
        return status == STATUS_OK ? linear_run(cuda, l) : status;
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

// Returns true if SwiGLU of more rows than GEMV_ROWS writes FP8. One kernel must be able to do so, and the rows must be
// one chunk: then the gemm has read g->quantised before SwiGLU writes there.
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
