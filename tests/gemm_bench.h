// SPDX-License-Identifier: Apache-2.0
// A gemm of BF16 weights on a CUDA backend, and checks of its results against sums in double precision.
#pragma once

#include <math.h>
#include <stdlib.h>

#include "kernels/convert.h"
#include "tests/cuda_fixture.h"

static struct gemm_bench {
    struct backend *b;
    int n, k, max_rows;
    float *x, *w, *bias; // x: values in bf16
    struct tensor *rows;
    struct weight *weight, *vector;
    double *products; // [max_rows][n]
} it;

static double product(int row, int output)
{
    double sum = 0;
    for (int i = 0; i < it.k; i++)
        sum += (double)it.x[row * it.k + i] *
               (double)bf16_to_f32(bf16_from_f32(it.w[(size_t)output * (size_t)it.k + (size_t)i]));
    return sum;
}

static void bench_open(int n, int k, int max_rows)
{
    struct backend_shape shape = small_shape;
    shape.max_rows = shape.max_seqs = max_rows;
    it.b = open_cuda(&shape, DTYPE_BF16);
    it.n = n, it.k = k, it.max_rows = max_rows;
    it.w = random_floats((size_t)(n * k), 1);
    it.bias = random_floats((size_t)n, 1);
    it.weight = make_weight(it.b, it.w, n, k);
    it.vector = make_vector(it.b, it.bias, n);
    float *raw = random_floats((size_t)(max_rows * k), 1), *gain = random_floats((size_t)k, 1);
    it.rows = make_normed(it.b, raw, gain, max_rows, k);
    it.x = read_columns(it.b, it.rows, max_rows, k, k);
    it.products = mem_alloc_array((size_t)(max_rows * n), sizeof *it.products);
    for (int r = 0; r < max_rows; r++)
        for (int i = 0; i < n; i++)
            it.products[r * n + i] = product(r, i);
    free(raw), free(gain);
}

static void bench_close(void)
{
    it.b->ops->close(it.b);
    free(it.x), free(it.w), free(it.bias), free(it.products);
}

static void check_value(double is, double should, double bound, int rows, int row, int output)
{
    ck_assert_msg(fabs(is - should) <= bound * (1 + fabs(should)), "%d x %d, %d rows: row %d, output %d: %g, not %g",
                  it.n, it.k, rows, row, output, is, should);
}

// Runs a step of `rows` rows into a tensor of ones. Returns its it.max_rows rows.
static inline float *run_linear(enum linear_mode mode, bool biased, int rows)
{
    struct tensor *out = make_ones(it.b, it.max_rows, it.n);
    OK(it.b->ops->linear(it.b, out, it.rows, it.weight, biased ? it.vector : NULL, mode, rows));
    return tensor_read(it.b, out, it.max_rows, it.n);
}

static void check_linear(enum linear_mode mode, bool biased, int rows)
{
    float *got = run_linear(mode, biased, rows);
    for (int r = 0; r < it.max_rows; r++)
        for (int i = 0; i < it.n; i++) {
            const double base = r >= rows || mode == LINEAR_ADD ? 1 : 0;
            const double sum = r < rows ? it.products[r * it.n + i] + (biased ? (double)it.bias[i] : 0) : 0;
            check_value((double)got[r * it.n + i], base + sum, 1e-4, rows, r, i);
        }
    free(got);
}

// read_activation reads all columns, or some of them.
static void check_activations(enum linear_mode mode, int columns, int rows)
{
    struct tensor *out = make_tensor(it.b, TENSOR_ACTIVATION, it.max_rows, columns);
    OK(it.b->ops->linear(it.b, out, it.rows, it.weight, NULL, mode, rows));
    int n;
    float *got = read_activation(it.b, out, rows, columns, &n);
    for (int r = 0; r < rows; r++)
        for (int i = 0; i < n; i++) {
            const int column = (int)((int64_t)i * columns / n);
            const double y = it.products[r * it.n + column];
            const double want =
                mode == LINEAR_SWIGLU ? y / (1 + exp(-y)) * it.products[r * it.n + columns + column] : y;
            check_value((double)got[r * n + i], want, 0x1p-8, rows, r, column);
        }
    free(got);
}
