// SPDX-License-Identifier: Apache-2.0
// Shared by the kernel tests: repeatable random numbers, weights and tensors from arrays, reading them back.
#pragma once

#include <check.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/backend.h"
#include "lib/base/mem.h"

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

// Returns a number from a uniform distribution in [-scale, scale).
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

// Returns true if the bits are the same, or if both are NaN.
static inline bool float_is_same(float a, float b)
{
    return !memcmp(&a, &b, sizeof a) || (isnan(a) && isnan(b));
}

static inline struct matrix_view float_view(const float *data, int rows, int columns)
{
    return (struct matrix_view){.data = data,
                                .dtype = DTYPE_F32,
                                .rows = rows,
                                .columns = columns,
                                .row_stride_bytes = columns * (int64_t)sizeof *data};
}

// Fills in the numbers 0 .. n - 1 in random order.
static inline void random_order(int32_t *order, int n)
{
    for (int i = 0; i < n; i++) {
        const int other = random_below(i + 1);
        order[i] = order[other];
        order[other] = i;
    }
}

// Fills in the frequencies of RoPE with base 10000: [head_size / 2].
static inline void rope_frequencies(float *inv_freq, int head_size)
{
    for (int i = 0; i < head_size / 2; i++)
        inv_freq[i] = powf(10000, -2 * (float)i / (float)head_size);
}

enum { MAX_SINGLE_ROWS = 8 };

// Makes a batch of up to MAX_SINGLE_ROWS sequences of one row each, in blocks 0, 1, .., at position 0, with logits of
// every row.
static inline struct ragged_batch single_rows(const int32_t *token, int rows)
{
    static const int32_t zeros[MAX_SINGLE_ROWS] = {0}, numbers[MAX_SINGLE_ROWS + 1] = {0, 1, 2, 3, 4, 5, 6, 7, 8};
    return (struct ragged_batch){.n_rows = rows,
                                 .token = token,
                                 .position = zeros,
                                 .n_seqs = rows,
                                 .row_start = numbers,
                                 .kv_len = zeros,
                                 .block_table = numbers,
                                 .max_blocks = 1,
                                 .n_logit_rows = rows,
                                 .logit_row = numbers,
                                 .smoothing_window = 1};
}

// Does nothing, for passes with no logits.
static inline enum status no_logits(void *context, int logit_rows)
{
    return STATUS_OK;
}

// Waits until weights are on the device and quantised. A pass begins with a copy of its batch, which waits for them. A
// step outside a pass may start earlier, so tests that issue such steps have to wait.
static inline void weights_settle(struct backend *b)
{
    if (b->ops->wait) OK(b->ops->wait(b));
}

static inline struct weight *make_weight_from(struct backend *b, struct matrix_view view)
{
    struct weight *w;
    OK(b->ops->weight_create(b, &view, 1, &w));
    weights_settle(b);
    return w;
}

static inline struct weight *make_weight(struct backend *b, const float *data, int rows, int columns)
{
    return make_weight_from(b, float_view(data, rows, columns));
}

static inline struct weight *random_weight(struct backend *b, int rows, int columns, float scale)
{
    float *data = random_floats((size_t)rows * (size_t)columns, scale);
    struct weight *w = make_weight(b, data, rows, columns);
    free(data);
    return w;
}

// Makes an embedding table.
static inline struct weight *make_table(struct backend *b, const float *data, int rows, int columns)
{
    struct matrix_view view = float_view(data, rows, columns);
    struct weight *w;
    OK(b->ops->weight_embedding(b, &view, 0, NULL, &w));
    return w;
}

static inline struct weight *make_vector(struct backend *b, const float *data, int n)
{
    struct matrix_view view = float_view(data, 1, n);
    struct weight *w;
    OK(b->ops->weight_vector(b, &view, 1, &w));
    weights_settle(b);
    return w;
}

static inline struct weight *random_vector(struct backend *b, int n, float scale)
{
    float *data = random_floats((size_t)n, scale);
    struct weight *w = make_vector(b, data, n);
    free(data);
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
        // A copy from pageable memory may return before the bytes are on the device.
        ck_assert_int_eq(cudaDeviceSynchronize(), cudaSuccess);
        return;
    }
#endif
    memcpy(b->ops->tensor_data(b, t), values, n * sizeof *values);
}

static inline float *tensor_read(struct backend *b, struct tensor *t, int rows, int columns)
{
    float *values = mem_alloc_array((size_t)rows * (size_t)columns, sizeof *values);
    OK(b->ops->read(b, t, rows, values));
    return values;
}

// Makes a tensor of ones, so that tests see rows that a step must not write, and LINEAR_ADD.
static inline struct tensor *make_ones(struct backend *b, int rows, int columns)
{
    const size_t n = (size_t)rows * (size_t)columns;
    struct tensor *t = make_tensor(b, TENSOR_F32, rows, columns);
    float *ones = mem_alloc_array(n, sizeof *ones);
    for (size_t i = 0; i < n; i++)
        ones[i] = 1;
    tensor_write(b, t, ones, n);
    free(ones);
    return t;
}

// Makes an activation: the RMSNorm of rows x.
static inline struct tensor *make_normed(struct backend *b, const float *x, const float *gain, int rows, int columns)
{
    struct tensor *raw = make_tensor(b, TENSOR_F32, rows, columns);
    struct tensor *normed = make_tensor(b, TENSOR_ACTIVATION, rows, columns);
    tensor_write(b, raw, x, (size_t)rows * (size_t)columns);
    OK(b->ops->rmsnorm(b, normed, raw, make_vector(b, gain, columns), 1e-5f, NULL, rows));
    return normed;
}

// Reads n evenly spread columns of an activation exactly, through a gemm with rows of the identity. Returns [rows][n].
static inline float *read_columns(struct backend *b, struct tensor *x, int rows, int columns, int n)
{
    float *pick = mem_alloc_array((size_t)n * (size_t)columns, sizeof *pick);
    for (int i = 0; i < n; i++)
        pick[i * columns + (int)((int64_t)i * columns / n)] = 1;
    struct tensor *out = make_tensor(b, TENSOR_F32, rows, n);
    OK(b->ops->linear(b, out, x, make_weight(b, pick, n, columns), NULL, LINEAR_STORE, rows));
    free(pick);
    return tensor_read(b, out, rows, n);
}

enum { MAX_READ_COLUMNS = 80 };

// Reads all columns, or MAX_READ_COLUMNS of them. Returns [rows][*n_p].
static inline float *read_activation(struct backend *b, struct tensor *x, int rows, int columns, int *n_p)
{
    *n_p = columns < MAX_READ_COLUMNS ? columns : MAX_READ_COLUMNS;
    return read_columns(b, x, rows, columns, *n_p);
}
