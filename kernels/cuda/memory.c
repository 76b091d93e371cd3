// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/memory.h"

#include "kernels/int4.h"

// Working memory of gemms. The workspace has the size that NVIDIA recommends for Hopper. The other sizes are
// soft limits: with a little less memory, gemms are only a little slower.
static const size_t WORKSPACE_BYTES = (size_t)32 << 20;
static const size_t RESULTS_BYTES = (size_t)256 << 20;
static const size_t DEQUANTISED_BYTES = (size_t)64 << 20;
// Limit of the scores kept for importance rows, so that they stay in the L2 cache of a large GPU. For 32 heads, 16 MiB
// hold the scores of 3 importance rows with 32,768 keys each, or of 102 rows with 1,024 keys each.
static const size_t KEPT_BYTES = (size_t)16 << 20;

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

// Returns the bytes that the driver adds when it rounds an allocation up to whole pages. Allocations of less than half
// a page share pages, so nothing is added to them.
static size_t rounding(size_t bytes)
{
    const size_t page = (size_t)2 << 20;
    return bytes < page / 2 ? 0 : (page - bytes % page) % page;
}

void memory_count(struct device_memory *memory, enum memory_use use, size_t bytes)
{
    memory->bytes[use] += bytes;
    memory->rounding += rounding(bytes);
}

void memory_uncount(struct device_memory *memory, enum memory_use use, size_t bytes)
{
    memory->bytes[use] -= bytes;
    memory->rounding -= rounding(bytes);
}

size_t memory_tensor_bytes(enum tensor_kind kind, int max_rows, int columns)
{
    const size_t rows = (size_t)max_rows;
    return kind == TENSOR_F32 ? rows * (size_t)columns * sizeof(float)
                              : rows * (size_t)cuda_stride(columns) * sizeof(uint16_t);
}

// ---- weights --------------------------------------------------------------------------------------------------------

size_t memory_vector_bytes(const struct matrix_view *parts, int n_parts)
{
    size_t bytes = 0;
    for (int p = 0; p < n_parts; p++)
        bytes += (size_t)parts[p].columns * sizeof(float);
    return bytes;
}

// Returns true if a block-scaled part consists of whole blocks. The last part may end within a block.
static bool part_has_whole_blocks(const struct matrix_view *part, bool last)
{
    return part->dtype == DTYPE_FP8 && part->scale_block == FP8_BLOCK && part->scale_row == 0 &&
           part->scale_column == 0 && (last || part->rows % FP8_BLOCK == 0);
}

static bool parts_have_whole_blocks(const struct matrix_view *parts, int n_parts)
{
    for (int p = 0; p < n_parts; p++)
        if (!part_has_whole_blocks(&parts[p], p == n_parts - 1)) return false;
    return true;
}

// Returns the dtype of a matrix in an FP8 backend. Sets *block_scaled_p to true if the matrix is block-scaled.
static enum dtype fp8_dtype(const struct backend_shape *shape, bool block_scales, const struct matrix_view *parts,
                            int n_parts, bool *block_scaled_p)
{
    bool fp8 = false, blocks = false;
    for (int p = 0; p < n_parts; p++) {
        fp8 |= parts[p].dtype == DTYPE_FP8;
        blocks |= parts[p].dtype == DTYPE_FP8 && parts[p].scale_block;
    }
    *block_scaled_p = blocks && block_scales && parts_have_whole_blocks(parts, n_parts);
    if (blocks) return *block_scaled_p ? DTYPE_FP8 : DTYPE_BF16;
    return fp8 || !shape->as_stored ? DTYPE_FP8 : DTYPE_BF16;
}

// Returns the dtype of a matrix in an int4 backend.
static enum dtype int4_dtype(const struct backend_shape *shape, const struct matrix_view *parts, int n_parts)
{
    for (int p = 0; p < n_parts && shape->as_stored; p++)
        if (parts[p].dtype == DTYPE_INT4_G128) return DTYPE_INT4_G128;
    return shape->as_stored ? DTYPE_BF16 : DTYPE_INT4_G128;
}

static size_t scale_bytes(const struct memory_matrix *m, int64_t columns)
{
    const size_t rows = (size_t)m->rows, groups = (size_t)(columns + FP8_BLOCK - 1) / FP8_BLOCK;
    if (m->block_scaled) return (rows + FP8_BLOCK - 1) / FP8_BLOCK * (size_t)cuda_block_stride(columns) * sizeof(float);
    if (m->dtype == DTYPE_FP8) return (size_t)cuda_stride(m->rows) * sizeof(float);
    if (m->dtype == DTYPE_INT4_G128) return rows * groups * (sizeof(float) + 1); // with a zero of one byte
    if (m->dtype == DTYPE_INT8_G128) return rows * groups * sizeof(float);
    return m->dtype == DTYPE_INT8 ? rows * sizeof(float) : 0;
}

static struct memory_matrix matrix_of(enum dtype dtype, bool block_scaled, int64_t rows, int64_t columns)
{
    struct memory_matrix m = {
        .dtype = dtype, .block_scaled = block_scaled, .rows = rows, .stride = cuda_stride(columns)};
    if (dtype == DTYPE_INT4_G128) m.stride = (int)((columns + INT4_WORD - 1) / INT4_WORD * INT4_WORD);
    const size_t stored_rows = dtype == DTYPE_FP8 ? (size_t)cuda_stride(rows) : (size_t)rows;
    m.data_bytes = dtype_matrix_bytes(dtype, (int64_t)stored_rows, m.stride);
    m.scale_bytes = scale_bytes(&m, columns);
    return m;
}

struct memory_matrix memory_matrix(const struct backend_shape *shape, enum dtype dtype, bool block_scales,
                                   const struct matrix_view *parts, int n_parts)
{
    bool block_scaled = false;
    int64_t rows = 0;
    for (int p = 0; p < n_parts; p++)
        rows += parts[p].rows;
    if (dtype == DTYPE_FP8) dtype = fp8_dtype(shape, block_scales, parts, n_parts, &block_scaled);
    if (dtype == DTYPE_INT4_G128) dtype = int4_dtype(shape, parts, n_parts);
    return matrix_of(dtype, block_scaled, rows, parts[0].columns);
}

struct memory_matrix memory_table(enum dtype dtype, const struct matrix_view *table)
{
    return matrix_of(dtype_of_activations(dtype), false, table->rows, table->columns);
}

// ---- gemms ----------------------------------------------------------------------------------------------------------

void memory_gemm_add_rows(struct memory_gemm_need *need, int rows)
{
    need->rows = larger(need->rows, (size_t)rows);
}

void memory_gemm_add_weight(struct memory_gemm_need *need, const struct memory_matrix *w)
{
    need->n = larger(need->n, (size_t)cuda_stride(w->rows));
    if (w->dtype != DTYPE_FP8) return;
    need->fp8_bytes = larger(need->fp8_bytes, w->data_bytes);
    need->fp8_k = larger(need->fp8_k, (size_t)w->stride);
    need->row_scales = larger(need->row_scales, w->block_scaled ? (size_t)cuda_block_stride(w->stride) : 1);
}

struct memory_gemm memory_gemm(const struct memory_gemm_need *need)
{
    const size_t rows = (need->rows + 3) / 4 * 4; // block-scaled gemms have a multiple of four rows
    const size_t least = 4 * need->n * sizeof(float), all = rows * need->n * sizeof(float);
    const size_t sixteen = 16 * need->fp8_k * sizeof(uint16_t); // 16 dequantised rows
    return (struct memory_gemm){.workspace = WORKSPACE_BYTES,
                                .results = smaller(all, larger(RESULTS_BYTES, least)),
                                .quantised = rows * need->fp8_k,
                                .row_scales = rows * need->row_scales * sizeof(float),
                                .dequantised =
                                    smaller(need->fp8_bytes * sizeof(uint16_t), larger(DEQUANTISED_BYTES, sixteen)),
                                .maxima = need->fp8_k ? (size_t)GEMV_ROWS * GEMV_BLOCKS_MAX * sizeof(float) : 0};
}

// ---- the rest -------------------------------------------------------------------------------------------------------

int memory_max_splits(int entries)
{
    int splits = 1;
    while (splits < SPLITS_MAX && (int64_t)splits * SPLIT_ENTRIES < entries)
        splits *= 2;
    return splits;
}

int memory_kept_blocks(const struct backend_shape *shape)
{
    const size_t block = KV_BLOCK_TOKENS * (size_t)shape->n_heads * sizeof(float);
    const size_t row = (size_t)cuda_kept_blocks(shape->max_context);
    return (int)larger(row, smaller(row * (size_t)shape->max_seqs, KEPT_BYTES / block));
}

size_t memory_staging_bytes(const struct backend_shape *shape)
{
    size_t rows = (size_t)shape->max_rows, seqs = (size_t)shape->max_seqs + 1; // one more for padding rows
    size_t columns = ((size_t)shape->max_context + KV_BLOCK_TOKENS - 1) / KV_BLOCK_TOKENS;
    size_t group = (size_t)shape->n_heads / (size_t)shape->n_kv_heads;
    size_t tiles = rows * group / TILE_ROW_HEADS + seqs + 1 +
                   TILE_SPANS_MAX; // the last tile of a sequence or micro-batch may be partial
    size_t ints = 3 * rows + 3 * seqs + 1 + seqs * columns + rows + 5 * rows + 2 + 2 * seqs;
    return ints * sizeof(int32_t) + tiles * sizeof(struct attend_tile) + rows * sizeof(struct row_sampling) +
           17 * 16; // each of the 17 lists is rounded up
}

// Returns the bytes of partial results. The first array has two floats for each result: the largest exponent and the
// sum of weights. The second array, aligned to 16 bytes, has the D sums of weighted V for each. See geometry.h.
size_t memory_partials_bytes(int max_single, int max_splits, int n_heads, int head_size)
{
    const size_t n = (size_t)max_single * (size_t)n_heads * (size_t)max_splits;
    return ((2 * n + 3) / 4 * 4 + n * (size_t)head_size) * sizeof(float);
}

// Returns the bytes of the counters of arrived thread blocks: one for each single row and chunk of heads. There
// are at most n_heads chunks, so n_heads are counted.
size_t memory_arrivals_bytes(int max_single, int n_heads)
{
    return (size_t)max_single * (size_t)n_heads * sizeof(uint32_t);
}

static size_t span_bytes(const struct backend_shape *shape)
{
    return (size_t)shape->n_kv_heads * TILE_ROW_HEADS * (size_t)(shape->head_size + 2) * sizeof(float);
}

int memory_tile_spans(const struct backend_shape *shape)
{
    return (int)smaller(TILE_SPANS_MAX, memory_fixed(shape).partials / span_bytes(shape));
}

// Returns the bytes of partial results, enough for at least the spans of two tiles of a full context. A few new rows
// after a long cached prompt are one or two tiles. Only their division into spans spreads them over the device.
static size_t partials_bytes(const struct backend_shape *shape)
{
    const size_t spans = ((size_t)shape->max_context + TILE_SPAN - 1) / TILE_SPAN;
    const size_t least = spans < 2 ? 0 : smaller(2 * spans, TILE_SPANS_MAX) * span_bytes(shape);
    return larger(least, memory_partials_bytes(shape->max_seqs, memory_max_splits(shape->max_context), shape->n_heads,
                                               shape->head_size));
}

struct memory_fixed memory_fixed(const struct backend_shape *shape)
{
    const size_t rows = (size_t)shape->max_rows, seqs = (size_t)shape->max_seqs;
    return (struct memory_fixed){
        .staging = memory_staging_bytes(shape),
        .row_index = rows * sizeof(int32_t),
        .rope = 3 * (size_t)shape->head_size / 2 * sizeof(float),
        .angles = (rows + 1) * (size_t)shape->head_size * sizeof(float),
        .importance = seqs * (size_t)shape->max_context * sizeof(float),
        .kept_scores = (size_t)memory_kept_blocks(shape) * KV_BLOCK_TOKENS * (size_t)shape->n_heads * sizeof(float),
        .partials = partials_bytes(shape),
        .arrivals = memory_arrivals_bytes(shape->max_seqs, shape->n_heads),
    };
}

struct memory_kv memory_kv(const struct backend_shape *shape, int n_kv_blocks)
{
    const int blocks = n_kv_blocks + 1;
    const size_t heads = (size_t)shape->n_layers * (size_t)blocks * 2 * (size_t)shape->n_kv_heads * KV_BLOCK_TOKENS;
    const bool bytes = backend_kv_bytes(shape);
    return (struct memory_kv){.blocks = blocks,
                              .data_bytes = heads * (size_t)shape->head_size * (bytes ? 1 : sizeof(uint16_t)),
                              .scale_bytes = bytes ? heads * sizeof(float) : 0};
}
