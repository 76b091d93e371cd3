// SPDX-License-Identifier: Apache-2.0
// Gemms of few rows (kernels/cuda/gemv.cu), on an emulated GPU or a GPU: results against sums in double precision, at
// odd shapes, in every mode; a row has the same bits with any other rows; nothing after the outputs is written.
// check_cuda_fp8 covers FP8 weights.
#include <math.h>

#include "kernels/convert.h"
#include "kernels/cuda/limits.h"
#include "tests/cuda_fixture.h"
#include "tests/suite.h"

// Outputs and columns: a tile, less, and no multiple of a tile; one stage and several stages for each warp.
static const struct {
    int n, k;
} sizes[] = {{2, 1}, {16, 16}, {34, 40}, {130, 257}, {26, 1304}};
enum { SIZES = sizeof sizes / sizeof sizes[0], MAX_ROWS = 20 };

static struct gemv_bench {
    struct backend *b;
    int n, k;
    float *x, *w, *bias; // x: values in bf16
    struct tensor *rows;
    struct weight *weight, *vector;
} it;

static void bench_open(int n, int k)
{
    struct backend_shape shape = small_shape;
    shape.max_rows = shape.max_seqs = MAX_ROWS;
    it.b = open_cuda(&shape, DTYPE_BF16);
    it.n = n, it.k = k;
    it.w = random_floats((size_t)(n * k), 1);
    it.bias = random_floats((size_t)n, 1);
    it.weight = make_weight(it.b, it.w, n, k);
    it.vector = make_vector(it.b, it.bias, n);
    float *raw = random_floats((size_t)(MAX_ROWS * k), 1), *gain = random_floats((size_t)k, 1);
    it.rows = make_normed(it.b, raw, gain, MAX_ROWS, k);
    it.x = read_columns(it.b, it.rows, MAX_ROWS, k, k);
    free(raw), free(gain);
}

static void bench_close(void)
{
    it.b->ops->close(it.b);
    free(it.x), free(it.w), free(it.bias);
}

static double product(int row, int output)
{
    double sum = 0;
    for (int i = 0; i < it.k; i++)
        sum += (double)it.x[row * it.k + i] *
               (double)bf16_to_f32(bf16_from_f32(it.w[(size_t)output * (size_t)it.k + (size_t)i]));
    return sum;
}

static void check_value(double is, double should, double bound, int row, int output)
{
    ck_assert_msg(fabs(is - should) <= bound * (1 + fabs(should)), "%d x %d: row %d, output %d: %g, not %g", it.n, it.k,
                  row, output, is, should);
}

// Runs a step of `rows` rows into a tensor of ones. Returns its MAX_ROWS rows.
static float *run_linear(enum linear_mode mode, bool biased, int rows)
{
    struct tensor *out = make_ones(it.b, MAX_ROWS, it.n);
    OK(it.b->ops->linear(it.b, out, it.rows, it.weight, biased ? it.vector : NULL, mode, rows));
    return tensor_read(it.b, out, MAX_ROWS, it.n);
}

static void check_linear(enum linear_mode mode, bool biased, int rows)
{
    float *got = run_linear(mode, biased, rows);
    for (int r = 0; r < MAX_ROWS; r++)
        for (int i = 0; i < it.n; i++) {
            const double base = r >= rows || mode == LINEAR_ADD ? 1 : 0;
            const double sum = r < rows ? product(r, i) + (biased ? (double)it.bias[i] : 0) : 0;
            check_value((double)got[r * it.n + i], base + sum, 1e-4, r, i);
        }
    free(got);
}

// `columns` is the width of the tensor: read_activation reads all columns or some of them.
static void check_activations(enum linear_mode mode, int columns, int rows)
{
    struct tensor *out = make_tensor(it.b, TENSOR_ACTIVATION, MAX_ROWS, columns);
    OK(it.b->ops->linear(it.b, out, it.rows, it.weight, NULL, mode, rows));
    int n;
    float *got = read_activation(it.b, out, rows, columns, &n);
    for (int r = 0; r < rows; r++)
        for (int i = 0; i < n; i++) {
            const int column = (int)((int64_t)i * columns / n);
            const double y = product(r, column);
            const double want = mode == LINEAR_SWIGLU ? y / (1 + exp(-y)) * product(r, columns + column) : y;
            check_value((double)got[r * n + i], want, 0x1p-8, r, column);
        }
    free(got);
}

START_TEST(results_are_those_of_sums_in_double_precision)
{
    bench_open(sizes[_i].n, sizes[_i].k);
    static const int rows[] = {1, 3, GEMV_ROWS};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        check_linear(LINEAR_STORE, false, rows[i]);
        check_linear(LINEAR_STORE, true, rows[i]);
        check_linear(LINEAR_ADD, true, rows[i]);
        check_activations(LINEAR_STORE, it.n, rows[i]);
        check_activations(LINEAR_SWIGLU, it.n / 2, rows[i]);
    }
    bench_close();
}
END_TEST

START_TEST(a_row_has_the_same_bits_with_any_others)
{
    bench_open(34, 1032);
    float *all = run_linear(LINEAR_STORE, false, GEMV_ROWS);
    for (int rows = 1; rows < GEMV_ROWS; rows++) {
        float *some = run_linear(LINEAR_STORE, false, rows);
        ck_assert_msg(!memcmp(some, all, (size_t)(rows * it.n) * sizeof *all), "%d rows: other bits", rows);
        free(some);
    }
    free(all);
    bench_close();
}
END_TEST

SUITE("cuda_gemv")
{
    SKIP_UNLESS(cuda_is_here());
    TIMEOUT(60);
    LOOP(results_are_those_of_sums_in_double_precision, 0, SIZES);
    TEST(a_row_has_the_same_bits_with_any_others);
}
