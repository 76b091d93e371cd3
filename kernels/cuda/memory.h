// SPDX-License-Identifier: Apache-2.0
// Sizes of every allocation of the CUDA backend, as functions of shapes. The backend allocates these sizes, and
// counting.c adds them up without a GPU. So the memory plan and the backend cannot disagree. Plain C, linked into both
// the programs and the CUDA module.
#pragma once

#include "kernels/backend.h"
#include "kernels/cuda/limits.h"

// Returns the number of elements per row of a gemm operand. It is a multiple of 16, as the fast algorithms require.
static inline int cuda_stride(int64_t columns)
{
    return (int)((columns + 15) / 16 * 16);
}

// Returns the number of scales for a row of blocks in a block-scaled matrix with `columns` columns, padded as cuBLASLt
// requires.
static inline int cuda_block_stride(int64_t columns)
{
    return (int)((columns + FP8_BLOCK - 1) / FP8_BLOCK + 3) / 4 * 4;
}

// Returns the size of the kept scores of an importance row with `keys` keys. The unit is KV_BLOCK_TOKENS floats for
// each head.
static inline int cuda_kept_blocks(int keys)
{
    return (KEPT_SUMS + keys + KV_BLOCK_TOKENS - 1) / KV_BLOCK_TOKENS;
}

// Add or remove an allocation.
void memory_count(struct device_memory *memory, enum memory_use use, size_t bytes);
void memory_uncount(struct device_memory *memory, enum memory_use use, size_t bytes);

size_t memory_tensor_bytes(enum tensor_kind kind, int max_rows, int columns);
size_t memory_vector_bytes(const struct matrix_view *parts, int n_parts);

// A weight matrix made of parts: its dtype in computation and its storage.
struct memory_matrix {
    enum dtype dtype;
    bool block_scaled; // FP8 has a scale for each block, else one for each output
    int64_t rows;      // N
    int stride;        // cuda_stride(K)
    size_t data_bytes, scale_bytes;
};
// Lays out a matrix. `block_scales` is true if the device multiplies block-scaled matrices. If it is false, or if a
// part does not consist of whole blocks, block-scaled matrices are stored in bf16.
struct memory_matrix memory_matrix(const struct backend_shape *shape, enum dtype dtype, bool block_scales,
                                   const struct matrix_view *parts, int n_parts);
// Lays out an embedding table.
struct memory_matrix memory_table(enum dtype dtype, const struct matrix_view *table);

// Largest sizes over all tensors and weights of a backend, which decide the scratch memory of its gemms. Raised by
// memory_gemm_add_*.
struct memory_gemm_need {
    size_t rows;       // largest number of rows of activations
    size_t n;          // largest number of outputs of a weight
    size_t fp8_bytes;  // largest size of the data of an FP8 weight
    size_t fp8_k;      // largest K of an FP8 weight
    size_t row_scales; // largest number of scales of a row that an FP8 weight multiplies
};
struct memory_gemm {
    size_t workspace;   // workspace of cuBLASLt
    size_t results;     // f32 results of a chunk of rows
    size_t quantised;   // FP8: rows as bytes
    size_t row_scales;  // FP8: scales of these rows
    size_t dequantised; // FP8: a part of a weight in bf16, for numbers of rows that no FP8 algorithm supports
    size_t maxima;      // FP8: largest magnitudes of rows, see struct gemv
};
void memory_gemm_add_rows(struct memory_gemm_need *need, int rows);
void memory_gemm_add_weight(struct memory_gemm_need *need, const struct memory_matrix *w);
struct memory_gemm memory_gemm(const struct memory_gemm_need *need);

// Memory whose size depends only on the shape.
struct memory_fixed {
    size_t staging, row_index, rope, angles;            // MEMORY_BATCH
    size_t importance, kept_scores, partials, arrivals; // MEMORY_ATTENTION
};
struct memory_fixed memory_fixed(const struct backend_shape *shape);
// Returns the room for kept scores, in the unit of cuda_kept_blocks. It limits the importance rows that are computed at
// once, and is enough for the longest prompt.
int memory_kept_blocks(const struct backend_shape *shape);
// Returns an upper bound on the splits of a row with up to `entries` entries. The bound takes few different values, so
// that one captured graph serves many lengths.
int memory_max_splits(int entries);
size_t memory_staging_bytes(const struct backend_shape *shape);
// Returns the number of spans of tiles whose results fit into the partial results, see TILE_SPANS_MAX.
int memory_tile_spans(const struct backend_shape *shape);
size_t memory_partials_bytes(int max_single, int max_splits, int n_heads, int head_size);
size_t memory_arrivals_bytes(int max_single, int n_heads);

// The KV cache. It has one block more than the caller asked for, to which padding rows of captured passes write.
struct memory_kv {
    int blocks;
    size_t data_bytes, scale_bytes; // scales: FP8 only
};
struct memory_kv memory_kv(const struct backend_shape *shape, int n_kv_blocks);
