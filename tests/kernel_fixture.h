// SPDX-License-Identifier: Apache-2.0
// Shared by the kernel tests: repeatable random numbers, weights from arrays, reading activations.
#pragma once

#include <check.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "kernels/backend.h"

#ifdef FOREPACK_TEST_CUDA // linked with the CUDA runtime or its emulation
#include <cuda_runtime_api.h>
#endif

#define OK(call) ck_assert_msg((call) == STATUS_OK, "%s", status_message())

// ThreadSanitizer makes tests 20 times slower: such builds test the highest level only, with fewer rounds.
#ifdef __SANITIZE_THREAD__
enum { QUICK = 1 };
#else
enum { QUICK = 0 };
#endif

static uint64_t random_state = 0x9e3779b97f4a7c15u;

static inline uint32_t random_bits(void)
{
    random_state ^= random_state << 13, random_state ^= random_state >> 7, random_state ^= random_state << 17;
    return (uint32_t)(random_state >> 32);
}

static inline int random_below(int n)
{
    return (int)(random_bits() % (uint32_t)n);
}

// Uniform in [-scale, scale).
static inline float random_float(float scale)
{
    return scale * ((float)(random_bits() >> 8) / 8388608.f - 1);
}

static inline float *random_floats(size_t n, float scale)
{
    float *values = mem_alloc_array(n, sizeof *values);
    for (size_t i = 0; i < n; i++)
        values[i] = random_float(scale);
    return values;
}

static inline struct matrix_view float_view(const float *data, int rows, int columns)
{
    return (struct matrix_view){.data = data,
                                .dtype = DTYPE_F32,
                                .rows = rows,
                                .columns = columns,
                                .row_stride_bytes = columns * (int64_t)sizeof *data};
}

// Three sequences of one row each, in blocks 0, 1, 2, at position 0; logits of every row.
static inline struct ragged_batch three_single_rows(const int32_t token[3])
{
    static const int32_t zeros[3] = {0}, numbers[4] = {0, 1, 2, 3};
    return (struct ragged_batch){.n_rows = 3,
                                 .token = token,
                                 .position = zeros,
                                 .n_seqs = 3,
                                 .row_start = numbers,
                                 .kv_len = zeros,
                                 .block_table = numbers,
                                 .max_blocks = 1,
                                 .n_logit_rows = 3,
                                 .logit_row = numbers,
                                 .smoothing_window = 1};
}

static inline struct weight *make_weight(struct backend *b, const float *data, int rows, int columns)
{
    struct matrix_view view = float_view(data, rows, columns);
    struct weight *w;
    OK(b->ops->weight_create(b, &view, 1, &w));
    return w;
}

static inline struct weight *make_vector(struct backend *b, const float *data, int n)
{
    struct matrix_view view = float_view(data, 1, n);
    struct weight *w;
    OK(b->ops->weight_vector(b, &view, 1, &w));
    return w;
}

static inline struct tensor *make_tensor(struct backend *b, enum tensor_kind kind, int rows, int columns)
{
    struct tensor *t;
    OK(b->ops->tensor_create(b, kind, rows, columns, &t));
    return t;
}

// Copies values to the start of a tensor, in host or device memory.
static inline void tensor_write(struct backend *b, struct tensor *t, const float *values, size_t n)
{
#ifdef FOREPACK_TEST_CUDA
    if (!b->ops->capabilities.host_memory) {
        ck_assert_int_eq(cudaDeviceSynchronize(), cudaSuccess); // earlier steps run in the backend's stream
        ck_assert_int_eq(cudaMemcpy(b->ops->tensor_data(b, t), values, n * sizeof *values, cudaMemcpyHostToDevice),
                         cudaSuccess);
        return;
    }
#endif
    memcpy(b->ops->tensor_data(b, t), values, n * sizeof *values);
}

enum { MAX_READ_COLUMNS = 80 };

// Reads an activation exactly, through a gemm with rows of the identity: all columns, or MAX_READ_COLUMNS evenly spread
// ones. Returns [rows][*n_p].
static inline float *read_activation(struct backend *b, struct tensor *x, int rows, int columns, int *n_p)
{
    int n = columns < MAX_READ_COLUMNS ? columns : MAX_READ_COLUMNS;
    float *pick = mem_alloc_array((size_t)n * (size_t)columns, sizeof *pick);
    for (int i = 0; i < n; i++)
        pick[i * columns + (int)((int64_t)i * columns / n)] = 1;
    struct tensor *out = make_tensor(b, TENSOR_F32, rows, n);
    OK(b->ops->linear(b, out, x, make_weight(b, pick, n, columns), NULL, LINEAR_STORE, rows));
    float *host = mem_alloc_array((size_t)rows * (size_t)n, sizeof *host);
    OK(b->ops->read(b, out, rows, host));
    free(pick);
    *n_p = n;
    return host;
}
