// SPDX-License-Identifier: Apache-2.0
// Gemms of up to 64 rows (kernels/cuda/gemm_stream.cu), on an emulated GPU or a GPU: results against sums in double
// precision, at odd shapes, in every mode; a row has the same bits with any number of other rows, from 1 (gemv.cu) to
// 64; nothing after the rows is written.
#include <math.h>
#include <stdlib.h>

#include "kernels/convert.h"
#include "kernels/cuda/limits.h"
#include "tests/cuda_fixture.h"
#include "tests/suite.h"

// Outputs: less than a tile, tiles of 16, 32 and 64 outputs, no multiples of them, and several tiles for each of the 4
// thread blocks of an emulated GPU. Columns: none for most warps, one step, several steps, and more than the ring
// holds.
static const struct {
    int n, k;
} sizes[] = {{2, 1}, {16, 64}, {34, 40}, {130, 257}, {66, 1304}, {1030, 136}, {602, 2056}};
static const int counts[] = {9, 16, 17, 31, 32, 33, 64};
enum { SIZES = sizeof sizes / sizeof sizes[0], COUNTS = sizeof counts / sizeof counts[0], MAX_ROWS = 70 };

static struct stream_bench {
    struct backend *b;
    int n, k;
    float *x, *w, *bias; // x: values in bf16
    struct tensor *rows;
    struct weight *weight, *vector;
    double *products; // [MAX_ROWS][n]
} it;

static double product(int row, int output)
{
    double sum = 0;
    for (int i = 0; i < it.k; i++)
        sum += (double)it.x[row * it.k + i] *
               (double)bf16_to_f32(bf16_from_f32(it.w[(size_t)output * (size_t)it.k + (size_t)i]));
    return sum;
}

static void bench_open(int n, int k)
{
    struct backend_shape shape = small_shape;
    shape.max_rows = shape.max_seqs = MAX_ROWS;
    setenv("FOREPACK_CUDA_STREAM_GEMM", "on", 1);
    it.b = open_cuda(&shape, DTYPE_BF16);
    it.n = n, it.k = k;
    it.w = random_floats((size_t)(n * k), 1);
    it.bias = random_floats((size_t)n, 1);
    it.weight = make_weight(it.b, it.w, n, k);
    it.vector = make_vector(it.b, it.bias, n);
    float *raw = random_floats((size_t)(MAX_ROWS * k), 1), *gain = random_floats((size_t)k, 1);
    it.rows = make_normed(it.b, raw, gain, MAX_ROWS, k);
    it.x = read_columns(it.b, it.rows, MAX_ROWS, k, k);
    it.products = mem_alloc_array((size_t)(MAX_ROWS * n), sizeof *it.products);
    for (int r = 0; r < MAX_ROWS; r++)
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
            const double sum = r < rows ? it.products[r * it.n + i] + (biased ? (double)it.bias[i] : 0) : 0;
            check_value((double)got[r * it.n + i], base + sum, 1e-4, rows, r, i);
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
            const double y = it.products[r * it.n + column];
            const double want =
                mode == LINEAR_SWIGLU ? y / (1 + exp(-y)) * it.products[r * it.n + columns + column] : y;
            check_value((double)got[r * n + i], want, 0x1p-8, rows, r, column);
        }
    free(got);
}

START_TEST(results_are_those_of_sums_in_double_precision)
{
    bench_open(sizes[_i].n, sizes[_i].k);
    for (int i = 0; i < COUNTS; i++) {
        check_linear(LINEAR_STORE, false, counts[i]);
        check_linear(LINEAR_ADD, true, counts[i]);
        check_activations(LINEAR_STORE, it.n, counts[i]);
        check_activations(LINEAR_SWIGLU, it.n / 2, counts[i]);
    }
    bench_close();
}
END_TEST

// On a GPU the sizes lead to blocks of 64, 32 and 16 outputs. The emulated GPU also runs 34 outputs.
START_TEST(a_row_has_the_same_bits_with_any_others)
{
    bench_open(sizes[_i].n, sizes[_i].k);
    float *all = run_linear(LINEAR_STORE, true, STREAM_ROWS);
    for (int rows = 1; rows < STREAM_ROWS; rows += rows < GEMV_ROWS ? 1 : 5) {
        float *some = run_linear(LINEAR_STORE, true, rows);
        ck_assert_msg(!memcmp(some, all, (size_t)(rows * it.n) * sizeof *all), "%d x %d, %d rows: other bits", it.n,
                      it.k, rows);
        free(some);
    }
    free(all);
    bench_close();
}
END_TEST

SUITE("cuda_stream")
{
    SKIP_UNLESS(cuda_is_here());
    TIMEOUT(120);
    LOOP(results_are_those_of_sums_in_double_precision, 0, SIZES);
    LOOP(a_row_has_the_same_bits_with_any_others, 2, SIZES);
}
