// SPDX-License-Identifier: Apache-2.0
// Implements backend_ops.linear, norm_linear and mlp. gemv.cu computes gemms of up to GEMV_ROWS rows, and cuBLASLt
// (gemm.c) gemms of more rows. If gemm_stream.cu is switched on, it computes gemms of up to STREAM_ROWS rows.
//
// cuBLASLt applies the epilogue (adding to out, bias, scales) if it supports it. Else the gemm writes f32 to scratch
// memory, and a kernel of this backend applies the epilogue. This is done in chunks of rows, which bound the scratch
// memory.
//
// int4.cu computes all gemms by weights of 4 bits.
//
// FP8 weights have one scale for each output, and their input has one scale for each row. Block-scaled FP8 weights have
// one scale for each block of 128 x 128 elements, and each input row has one scale for 128 values of K. If the library
// has no FP8 algorithm for a number of rows, the weight is converted to bf16 in parts, only for that gemm. Input rows
// are converted to FP8 by the kernel that computes them (RMSNorm, SwiGLU) if that kernel knows the weight, or by
// gemv.cu.
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
    const struct norm_step *norm; // norm that computes x; NULL if x has been computed already
    const int32_t *row_index;     // row indices of `norm` on the device
    bool stores_maxima;           // SWIGLU of up to GEMV_ROWS rows: g->maxima receives the largest magnitudes of out
    int n_maxima;                 // number of maxima of x per row in g->maxima; 0: there are none
    // SWIGLU of one chunk of rows: out is written as FP8 to g->quantised, with one scale per row
    bool stores_fp8;
    bool x_is_fp8; // x is in g->quantised, not in its own memory
};

// Returns the input of the norm from row `first` on.
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

// Returns the largest number of rows of a chunk with n outputs, as the memory for results allows.
static int chunk_rows(const struct gemm *g, int n)
{
    const size_t rows = g->memory.results / sizeof(float) / (size_t)n;
    return (int)(rows > 256 ? rows / 256 * 256 : rows > 4 ? rows / 4 * 4 : rows);
}

// Returns the call for a chunk, in which x and its scales are not set yet.
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

// Runs an FP8 gemm, without fast accumulation if the library does not support it.
static cublasStatus_t gemm_try_fp8(struct cuda *cuda, struct gemm_call call, int rows)
{
    call.fast = cuda->shape.fp8_fast_accum && !call.w->block_scaled;
    const cublasStatus_t status = gemm_try(cuda, &call, rows);
    if (status != CUBLAS_STATUS_NOT_SUPPORTED || !call.fast) return status;
    call.fast = false;
    return gemm_try(cuda, &call, rows);
}

// Runs the FP8 gemm of a chunk in the library. If the library cannot apply the scales, the epilogue applies them.
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

// Quantises rows [first, first + rows) of a step into g->quantised, after their norm if it has to be computed. If
// scale_stride is not 0, each block of a row has a scale, see launch_quantise_blocks.
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

// Runs the block-scaled FP8 gemm of a chunk. Pads the rows to a multiple of four, which cuBLASLt requires. The results
// of padding rows are not used.
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

// Returns true if the library can do the whole step with its epilogue. For bf16 results or FP8 operands it requires
// bf16 biases, and ours are f32. FP8 needs N to be a multiple of 16, and block-scaled FP8 a number of rows that is a
// multiple of 4.
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
    // a multiple of 4 within `out`: rows after the step's rows must not change
    if (l->w->block_scaled) call.max_rows = call.max_rows / 4 * 4;
    return call;
}

static cublasStatus_t linear_try_direct(struct cuda *cuda, const struct linear *l)
{
    const struct gemm_call call = direct_call(cuda, l);
    return l->w->dtype == DTYPE_FP8 ? gemm_try_fp8(cuda, call, l->rows) : gemm_try(cuda, &call, l->rows);
}

// Quantises all rows of a step with an FP8 weight. If the step then runs in chunks with a block-scaled weight, each
// chunk quantises its rows again: the place of their scales depends on the number of rows.
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

// Prepares x for gemv.cu. Every thread block prepares the rows itself if there are few values. Else a separate kernel
// prepares them first.
static enum status few_rows_prepare(struct cuda *cuda, const struct linear *l, struct gemv *gemv)
{
    const struct gemm *g = cuda->gemm;
    const bool fits = l->rows * ((l->x->stride + FP8_BLOCK - 1) / FP8_BLOCK) <= GEMV_VALUES_MAX / FP8_BLOCK;
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

// Returns the arguments of gemv.cu, for rows that are READY.
static struct gemv gemv_of(struct cuda *cuda, const struct linear *l)
{
    return (struct gemv){.w = l->w->data,
                         .x = cuda_rows(cuda, l->x, 0),
                         .column_scale = l->w->scale,
                         .bias = l->bias ? l->bias->data : NULL,
                         .out = cuda_rows(cuda, l->out, 0),
                         .n = (int)l->w->rows,
                         .k = l->w->stride,
                         .rows = l->rows,
                         .x_stride = l->x->stride,
                         .out_stride = l->out->stride,
                         .fp8 = l->w->dtype == DTYPE_FP8,
                         .block_stride = l->w->block_scaled ? cuda_block_stride(l->w->columns) : 0,
                         .row_scale_stride = l->rows,
                         .mode = gemv_mode(l),
                         .out_maxima = l->stores_maxima ? cuda->gemm->maxima : NULL};
}

static enum status linear_few_rows(struct cuda *cuda, const struct linear *l)
{
    struct gemv gemv = gemv_of(cuda, l);
    TRY(few_rows_prepare(cuda, l, &gemv));
    return cuda_status(launch_gemv(cuda->stream, &gemv, cuda->properties.multiProcessorCount), "gemv");
}

static bool linear_streams(const struct cuda *cuda, const struct linear *l)
{
    return cuda->gemm->streams && l->rows <= STREAM_ROWS && l->w->dtype == DTYPE_BF16;
}

static enum status linear_stream(struct cuda *cuda, const struct linear *l)
{
    const struct gemv gemv = gemv_of(cuda, l);
    if (l->norm) TRY(linear_norm(cuda, l, 0, l->rows));
    return cuda_status(launch_gemm_stream(cuda->stream, &gemv, cuda->properties.multiProcessorCount), "gemm");
}

// Makes the gemm of a step known to `tune`, although gemv.cu computes this pass: passes of more rows will run it in the
// library. Notes the direct call or, if the library has no algorithm for it, the call for chunks.
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

static enum status linear_int4(struct cuda *cuda, const struct linear *l)
{
    const struct gemv gemv = gemv_of(cuda, l);
    if (l->norm) TRY(linear_norm(cuda, l, 0, l->rows));
    return cuda_status(launch_int4_gemm(cuda->stream, &gemv), "int4 gemm");
}

static enum status gemm_linear(struct cuda *cuda, const struct linear *l)
{
    if (l->w->dtype == DTYPE_INT4_G128) return linear_int4(cuda, l);
    if (l->rows <= GEMV_ROWS) {
        if (!cuda->gemm->tuned && l->x->max_rows > GEMV_ROWS) linear_note(cuda, l);
        return linear_few_rows(cuda, l);
    }
    if (linear_streams(cuda, l)) return linear_stream(cuda, l);
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

// Returns true if the library has an FP8 algorithm for a step, directly or in chunks. The weight must have scales for
// each output.
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

// Adds the addend to the input of a norm and computes x. x is FP8 if it will be multiplied in FP8 with one scale per
// row. Uses a separate kernel, because the addend must be added only once, not by every thread block.
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

// Returns true if SwiGLU of more than GEMV_ROWS rows writes FP8. Its kernel must be able to hold a row, and the rows
// must be one chunk: then the gemm has read g->quantised before SwiGLU writes there.
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
