// SPDX-License-Identifier: Apache-2.0
// Copies weights from mapped files to the device, in pieces through two buffers of pinned memory. One buffer is filled
// (read from the file, converted) while the other is copied. Weights that become FP8 are quantised on the device.
// Nothing waits for the last copies, because they precede the first step in the stream.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/convert.h"
#include "kernels/cuda/cuda.h"
#include "kernels/int4.h"
#include "lib/base/mem.h"

static const size_t PIECE_BYTES = (size_t)16 << 20;

struct upload {
    unsigned char *pinned[2];
    cudaEvent_t sent[2]; // the copy from this buffer is done
    int turn;            // buffer to fill next
    void *rows;          // on the device: a piece of rows to quantise
};

// ---- pieces ---------------------------------------------------------------------------------------------------------

static enum status upload_open(struct cuda *cuda)
{
    if (cuda->upload) return STATUS_OK;
    struct upload *u = cuda->upload = mem_alloc(sizeof *u);
    for (int i = 0; i < 2; i++) {
        cudaError_t error = cudaHostAlloc((void **)&u->pinned[i], PIECE_BYTES, cudaHostAllocDefault);
        if (error == cudaSuccess) error = cudaEventCreateWithFlags(&u->sent[i], cudaEventDisableTiming);
        if (error != cudaSuccess) return cuda_status(error, "pinned memory that weights are loaded through");
    }
    return STATUS_OK;
}

void upload_close(struct cuda *cuda)
{
    struct upload *u = cuda->upload;
    if (!u) return;
    cudaStreamSynchronize(cuda->stream);
    for (int i = 0; i < 2; i++) {
        if (u->sent[i]) cudaEventDestroy(u->sent[i]);
        cudaFreeHost(u->pinned[i]);
    }
    cuda_release(cuda, MEMORY_WEIGHTS, PIECE_BYTES, u->rows);
    free(u);
    cuda->upload = NULL;
}

// Sets *host_p to PIECE_BYTES of host memory to fill. Waits first until the last copy from this memory is done.
static enum status piece_next(struct cuda *cuda, void **host_p)
{
    enum status status = upload_open(cuda);
    if (status != STATUS_OK) return status;
    struct upload *u = cuda->upload;
    *host_p = u->pinned[u->turn];
    return cuda_status(cudaEventSynchronize(u->sent[u->turn]), "loading weights");
}

static enum status piece_send(struct cuda *cuda, void *to, size_t bytes)
{
    struct upload *u = cuda->upload;
    cudaError_t error = cudaMemcpyAsync(to, u->pinned[u->turn], bytes, cudaMemcpyHostToDevice, cuda->stream);
    if (error == cudaSuccess) error = cudaEventRecord(u->sent[u->turn], cuda->stream);
    u->turn ^= 1;
    return cuda_status(error, "loading weights");
}

// ---- rows of a view -------------------------------------------------------------------------------------------------

static void read_bf16(const struct matrix_view *view, int64_t row, uint16_t *to)
{
    enum { CHUNK = 1024 };
    float values[CHUNK];
    for (int64_t c = 0; c < view->columns; c += CHUNK) {
        int64_t n = view->columns - c < CHUNK ? view->columns - c : CHUNK;
        matrix_view_read(view, row, c, n, values);
        for (int64_t i = 0; i < n; i++)
            to[c + i] = bf16_from_f32(values[i]);
    }
}

// Writes rows [first, first + n) of the view as rows of `stride` elements, padded with zeros. Elements are copied if
// `as` is the view's dtype (FP8 without its scales), and otherwise converted to bf16 or f32.
static void piece_fill(const struct matrix_view *view, int64_t first, int64_t n, enum dtype as, int stride, void *host)
{
    const size_t row_bytes = (size_t)view->columns * dtype_size_bytes(as);
    const size_t stride_bytes = (size_t)stride * dtype_size_bytes(as);
    unsigned char *to = host;
    if (as == view->dtype && row_bytes == stride_bytes && (int64_t)row_bytes == view->row_stride_bytes) {
        memcpy(to, (const char *)view->data + first * view->row_stride_bytes, (size_t)n * row_bytes);
        return;
    }
    for (int64_t r = first; r < first + n; r++, to += stride_bytes) {
        if (as == view->dtype)
            memcpy(to, (const char *)view->data + r * view->row_stride_bytes, row_bytes);
        else if (as == DTYPE_BF16)
            read_bf16(view, r, (uint16_t *)(void *)to);
        else
            matrix_view_read(view, r, 0, view->columns, (float *)(void *)to);
        memset(to + row_bytes, 0, stride_bytes - row_bytes);
    }
}

// Returns the dtype in which a part is copied to the device. For an FP8 weight, parts in FP8 or bf16 are copied as
// stored. Other parts are copied in f32, so that quantising does not round twice.
static enum dtype upload_dtype(const struct weight *w, const struct matrix_view *part)
{
    if (w->dtype == DTYPE_BF16) return DTYPE_BF16;
    if (part->dtype == DTYPE_FP8) return w->block_scaled || !part->scale_block ? DTYPE_FP8 : DTYPE_F32;
    return part->dtype == DTYPE_BF16 ? DTYPE_BF16 : DTYPE_F32;
}

static enum status send_scales(struct cuda *cuda, const struct matrix_view *part, float *to)
{
    const int64_t max_rows = (int64_t)(PIECE_BYTES / sizeof(float));
    for (int64_t first = 0, n; first < part->rows; first += n) {
        void *host;
        enum status status = piece_next(cuda, &host);
        if (status != STATUS_OK) return status;
        n = part->rows - first < max_rows ? part->rows - first : max_rows;
        for (int64_t i = 0; i < n; i++)
            ((float *)host)[i] = matrix_view_scale(part, first + i, 0);
        status = piece_send(cuda, to + first, (size_t)n * sizeof(float));
        if (status != STATUS_OK) return status;
    }
    return STATUS_OK;
}

// Sends the scales of a block-scaled part.
static enum status send_block_scales(struct cuda *cuda, const struct matrix_view *part, float *to)
{
    const int64_t stride = cuda_block_stride(part->columns), max_rows = (int64_t)(PIECE_BYTES / sizeof(float)) / stride;
    const int64_t rows = (part->rows + FP8_BLOCK - 1) / FP8_BLOCK;
    for (int64_t first = 0, n; first < rows; first += n) {
        void *host;
        enum status status = piece_next(cuda, &host);
        if (status != STATUS_OK) return status;
        n = rows - first < max_rows ? rows - first : max_rows;
        memset(host, 0, (size_t)(n * stride) * sizeof(float));
        for (int64_t i = 0; i < n; i++)
            for (int64_t k = 0; k * FP8_BLOCK < part->columns; k++)
                ((float *)host)[i * stride + k] = matrix_view_scale(part, (first + i) * FP8_BLOCK, k * FP8_BLOCK);
        status = piece_send(cuda, to + first * stride, (size_t)(n * stride) * sizeof(float));
        if (status != STATUS_OK) return status;
    }
    return STATUS_OK;
}

// Quantises n rows in upload.rows, of dtype `as`, to rows of the weight.
static enum status quantise(struct cuda *cuda, struct weight *w, int64_t row, int64_t n, enum dtype as)
{
    return cuda_status(launch_quantise_rows(cuda->stream, (char *)w->data + row * w->stride, w->stride, w->scale + row,
                                            cuda->upload->rows, as == DTYPE_F32, w->stride, (int)n, w->stride),
                       "quantising weights");
}

// Copies a part to the rows of the weight from `row` on. The memory is zero already.
static enum status send_part(struct cuda *cuda, struct weight *w, int64_t row, const struct matrix_view *part)
{
    if (!part->data) return STATUS_OK;
    const enum dtype as = upload_dtype(w, part);
    const size_t stride_bytes = (size_t)w->stride * dtype_size_bytes(as);
    const int64_t max_rows = (int64_t)(PIECE_BYTES / stride_bytes);
    if (max_rows < 1)
        return status_fail(STATUS_UNSUPPORTED, "a matrix of %lld columns: one row exceeds the upload buffer",
                           (long long)part->columns);
    for (int64_t first = 0, n; first < part->rows; first += n) {
        void *host;
        enum status status = piece_next(cuda, &host);
        if (status != STATUS_OK) return status;
        n = part->rows - first < max_rows ? part->rows - first : max_rows;
        piece_fill(part, first, n, as, w->stride, host);
        if (as != w->dtype && !cuda->upload->rows)
            status = cuda_allocate(cuda, MEMORY_WEIGHTS, PIECE_BYTES, "weights to be quantised", &cuda->upload->rows);
        if (status != STATUS_OK) return status;
        void *to = as == w->dtype ? (char *)w->data + (size_t)(row + first) * stride_bytes : cuda->upload->rows;
        status = piece_send(cuda, to, (size_t)n * stride_bytes);
        if (status == STATUS_OK && as != w->dtype) status = quantise(cuda, w, row + first, n, as);
        if (status != STATUS_OK) return status;
    }
    if (w->dtype != DTYPE_FP8 || as != DTYPE_FP8) return STATUS_OK;
    return w->block_scaled
               ? send_block_scales(cuda, part, w->scale + row / FP8_BLOCK * cuda_block_stride(part->columns))
               : send_scales(cuda, part, w->scale + row);
}

// ---- 4 bits ---------------------------------------------------------------------------------------------------------

// Writes the codes of one row to `words`, with its scales and zeros.
static void fill_int4_row(const struct matrix_view *view, int64_t row, uint32_t *words, float *scale, uint8_t *zero)
{
    for (int64_t at = 0, g = 0; at < view->columns; at += INT4_GROUP, g++) {
        struct int4_group group = {.code = {0}};
        const int n = view->columns - at < INT4_GROUP ? (int)(view->columns - at) : INT4_GROUP;
        int4_group_read(view, row, at, n, &group);
        scale[g] = group.scale;
        zero[g] = (uint8_t)group.zero;
        for (int i = 0; i < n; i += INT4_WORD) {
            uint32_t word = 0;
            for (int j = 0; j < INT4_WORD; j++)
                word |= (uint32_t)group.code[i + j] << 4 * j;
            words[(at + i) / INT4_WORD] = word;
        }
    }
}

// Quantises a part, or copies its codes, to the rows of the weight from `row` on. Codes, scales and zeros of some rows
// are one piece.
static enum status send_int4(struct cuda *cuda, struct weight *w, int64_t row, const struct matrix_view *part)
{
    const size_t words = (size_t)w->stride / INT4_WORD, groups = (size_t)(w->columns + INT4_GROUP - 1) / INT4_GROUP;
    const size_t row_bytes = words * 4 + groups * (sizeof(float) + 1);
    uint8_t *zeros = (uint8_t *)(w->scale + (size_t)w->rows * groups);
    if (row_bytes > PIECE_BYTES)
        return status_fail(STATUS_UNSUPPORTED, "a matrix of %lld columns: one row exceeds the upload buffer",
                           (long long)part->columns);
    const int64_t most = (int64_t)(PIECE_BYTES / row_bytes);
    for (int64_t first = 0, n; part->data && first < part->rows; first += n) {
        void *host;
        TRY(piece_next(cuda, &host));
        n = part->rows - first < most ? part->rows - first : most;
        uint32_t *codes = host;
        float *scale = (float *)(codes + (size_t)n * words);
        uint8_t *zero = (uint8_t *)(scale + (size_t)n * groups);
        for (int64_t i = 0; i < n; i++)
            fill_int4_row(part, first + i, codes + (size_t)i * words, scale + (size_t)i * groups,
                          zero + (size_t)i * groups);
        const size_t at = (size_t)(row + first);
        cudaError_t error = cudaMemcpyAsync(w->scale + at * groups, scale, (size_t)n * groups * sizeof *scale,
                                            cudaMemcpyHostToDevice, cuda->stream);
        if (error == cudaSuccess)
            error =
                cudaMemcpyAsync(zeros + at * groups, zero, (size_t)n * groups, cudaMemcpyHostToDevice, cuda->stream);
        TRY(cuda_status(error, "loading weights"));
        TRY(piece_send(cuda, (uint32_t *)w->data + at * words, (size_t)n * words * 4));
    }
    return STATUS_OK;
}

// ---- weights --------------------------------------------------------------------------------------------------------

static struct weight *weight_new(struct cuda *cuda, struct weight w)
{
    w.next = cuda->weights;
    return cuda->weights = mem_copy(&w, sizeof w);
}

static enum status matrix_create(struct cuda *cuda, enum weight_kind kind, const struct memory_matrix *m,
                                 const struct matrix_view *parts, int n_parts, struct weight **weight_p)
{
    struct weight *w = weight_new(cuda, (struct weight){.kind = kind,
                                                        .rows = m->rows,
                                                        .columns = parts[0].columns,
                                                        .stride = m->stride,
                                                        .dtype = m->dtype,
                                                        .block_scaled = m->block_scaled});
    char what[64];
    snprintf(what, sizeof what, "a matrix of %lld x %lld", (long long)w->rows, (long long)w->columns);
    enum status status = cuda_allocate(cuda, MEMORY_WEIGHTS, m->data_bytes, what, &w->data);
    if (status == STATUS_OK && m->scale_bytes)
        status = cuda_allocate(cuda, MEMORY_WEIGHTS, m->scale_bytes, what, (void **)&w->scale);
    int64_t row = 0;
    for (int p = 0; p < n_parts && status == STATUS_OK; row += parts[p++].rows)
        status = (w->dtype == DTYPE_INT4_G128 ? send_int4 : send_part)(cuda, w, row, &parts[p]);
    if (status == STATUS_OK) *weight_p = w;
    return status;
}

enum status cuda_weight_create(struct backend *b, const struct matrix_view *parts, int n_parts,
                               struct weight **weight_p)
{
    struct cuda *cuda = cuda_of(b);
    const struct memory_matrix m = memory_matrix(&cuda->shape, cuda->dtype, cuda->block_scales, parts, n_parts);
    enum status status = matrix_create(cuda, WEIGHT_MATRIX, &m, parts, n_parts, weight_p);
    return status == STATUS_OK ? gemm_reserve_weight(cuda, &m) : status;
}

enum status cuda_weight_gate_up(struct backend *b, const struct matrix_view *gate, const struct matrix_view *up,
                                struct weight **weight_p)
{
    return cuda_weight_create(b, (struct matrix_view[]){*gate, *up}, 2, weight_p);
}

enum status cuda_weight_embedding(struct backend *b, const struct matrix_view *table, int32_t first_row,
                                  struct weight *shared_head, struct weight **weight_p)
{
    struct cuda *cuda = cuda_of(b);
    struct weight *w;
    if (shared_head && shared_head->dtype == DTYPE_BF16) {
        w = weight_new(cuda, *shared_head);
        w->kind = WEIGHT_EMBEDDING;
        w->borrowed = true;
    } else {
        const struct memory_matrix m = memory_table(cuda->dtype, table);
        enum status status = matrix_create(cuda, WEIGHT_EMBEDDING, &m, table, 1, &w);
        if (status != STATUS_OK) return status;
    }
    w->first_row = first_row;
    *weight_p = w;
    return STATUS_OK;
}

enum status cuda_weight_vector(struct backend *b, const struct matrix_view *parts, int n_parts,
                               struct weight **weight_p)
{
    struct cuda *cuda = cuda_of(b);
    struct weight *w = weight_new(cuda, (struct weight){.kind = WEIGHT_VECTOR, .rows = 1, .dtype = DTYPE_F32});
    for (int p = 0; p < n_parts; p++)
        w->columns += parts[p].columns;
    enum status status =
        cuda_allocate(cuda, MEMORY_WEIGHTS, memory_vector_bytes(parts, n_parts), "a vector of weights", &w->data);
    const int64_t max_rows = (int64_t)(PIECE_BYTES / sizeof(float));
    float *to = w->data;
    for (int p = 0; p < n_parts; p++)
        for (int64_t first = 0, n; first < parts[p].columns && status == STATUS_OK; first += n, to += n) {
            void *host;
            n = parts[p].columns - first < max_rows ? parts[p].columns - first : max_rows;
            if (!parts[p].data) continue;
            status = piece_next(cuda, &host);
            if (status != STATUS_OK) break;
            matrix_view_read(&parts[p], 0, first, n, host);
            status = piece_send(cuda, to, (size_t)n * sizeof(float));
        }
    if (status == STATUS_OK) *weight_p = w;
    return status;
}
