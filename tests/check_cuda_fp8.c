// SPDX-License-Identifier: Apache-2.0
// FP8 gemms of the CUDA backend against products in double precision of the same bytes and scales: scales for each
// output and for each block, numbers of rows for which the library has no FP8 algorithm, devices and slices without
// block scales, and what fast accumulation loses. Runs on a GPU or an emulated one. Only the emulated one can refuse
// algorithms.
#include <math.h>
#include <stdio.h>

#include "kernels/convert.h"
#include "kernels/cuda/limits.h"
#include "kernels/emulator/fp8_accumulator.h"
#include "tests/cuda_fixture.h"
#include "tests/suite.h"

enum { ROWS_MAX = 72 };

// Bound of errors relative to the largest result: of sums in f32 on the emulated GPU, in tensor cores on a GPU
// (fp8_accumulator.h).
static const double BOUND = EMULATED ? 3e-5 : 2e-3;

// ---- products ------------------------------------------------------------------------------------------------------

static double matrix_scale(const struct fp8_matrix *m, int row, int column)
{
    return (double)m->scale[m->block ? row / FP8_BLOCK * fp8_blocks_across(m->k) + column / FP8_BLOCK : row];
}

// How a gemm treats its operands.
enum method {
    IN_FP8,  // rows are quantised, with one scale or one for each block, like the matrix
    IN_BF16, // rows are unchanged, the matrix is rounded to bf16
};

// Quantises row x [k] to FP8: values without scale, and the scale of every column.
static void quantise_row(const float *x, int k, int group, double *values, double *scale)
{
    for (int first = 0; first < k; first += group) {
        const int last = first + group < k ? first + group : k;
        float largest = 0;
        for (int i = first; i < last; i++)
            largest = fmaxf(largest, fabsf(x[i]));
        for (int i = first; i < last; i++) {
            values[i] = largest > 0 ? (double)e4m3_to_f32(e4m3_from_f32(x[i] * (448 / largest))) : 0;
            scale[i] = (double)(largest / 448);
        }
    }
}

// Computes one output.
static double product(const struct fp8_matrix *m, int n, const float *x, const double *values, const double *scale,
                      enum method method)
{
    double sum = 0;
    for (int i = 0; i < m->k; i++) {
        const double w = (double)e4m3_to_f32(m->bytes[(size_t)n * (size_t)m->k + (size_t)i]) * matrix_scale(m, n, i);
        sum +=
            method == IN_BF16 ? (double)x[i] * (double)bf16_to_f32(bf16_from_f32((float)w)) : values[i] * scale[i] * w;
    }
    return sum;
}

// Returns all outputs of `rows` rows.
static double *products(const struct fp8_matrix *m, const float *x, int rows, enum method method)
{
    double *out = mem_alloc_array((size_t)rows * (size_t)m->n, sizeof *out);
    double *values = mem_alloc_array((size_t)m->k, sizeof *values),
           *scale = mem_alloc_array((size_t)m->k, sizeof *scale);
    for (int r = 0; r < rows; r++) {
        const float *row = x + (size_t)r * (size_t)m->k;
        quantise_row(row, m->k, m->block ? m->block : m->k, values, scale);
        for (int n = 0; n < m->n; n++)
            out[r * m->n + n] = product(m, n, row, values, scale, method);
    }
    free(values), free(scale);
    return out;
}

// ---- the backend ---------------------------------------------------------------------------------------------------

struct bench {
    struct backend *b;
    struct tensor *x; // bf16 rows
    float *values;    // their values
    int k;
};

// Makes rows of an activation tensor, and their values.
static struct bench bench_open(int rows, int k, bool fast_accum)
{
    struct backend_shape shape = small_shape;
    shape.max_rows = ROWS_MAX;
    shape.as_stored = true;
    shape.fp8_fast_accum = fast_accum;
    struct bench t = {.b = open_cuda(&shape, DTYPE_FP8), .k = k};
    float *raw = random_floats((size_t)(rows * k), 2), *gain = random_floats((size_t)k, 1);
    t.x = make_normed(t.b, raw, gain, rows, k);
    t.values = read_columns(t.b, t.x, rows, k, k);
    free(raw), free(gain);
    return t;
}

static void bench_close(struct bench *t)
{
    t->b->ops->close(t->b);
    free(t->values);
}

static double largest_of(const double *x, int n)
{
    double largest = 0;
    for (int i = 0; i < n; i++)
        largest = fmax(largest, fabs(x[i]));
    return largest;
}

static void check_values(const float *got, const double *want, int n, double relative, const char *what, int rows)
{
    const double largest = largest_of(want, n);
    for (int i = 0; i < n; i++)
        ck_assert_msg(fabs((double)got[i] - want[i]) <= relative * largest, "%s, %d rows: number %d is %g, expected %g",
                      what, rows, i, (double)got[i], want[i]);
}

// Checks results in f32 that are stored, added to 1, or have a bias, and SwiGLU, all with the same weight. Rows after
// those of the step are unchanged.
static void check_modes(struct bench *t, const struct fp8_matrix *m, int rows, enum method method)
{
    struct backend *b = t->b;
    const struct weight *w = make_weight_from(b, fp8_matrix_view(m));
    double *want = products(m, t->values, rows, method);
    float *bias = random_floats((size_t)m->n, 1);
    for (int mode = 0; mode < 3; mode++) {
        struct tensor *out = make_ones(b, ROWS_MAX, m->n);
        struct weight *v = mode == 2 ? make_vector(b, bias, m->n) : NULL;
        OK(b->ops->linear(b, out, t->x, w, v, mode == 1 ? LINEAR_ADD : LINEAR_STORE, rows));
        float *got = tensor_read(b, out, ROWS_MAX, m->n);
        for (int i = 0; i < rows * m->n; i++)
            got[i] -= mode == 1 ? 1 : mode == 2 ? bias[i % m->n] : 0;
        static const char *const names[] = {"stored", "added", "with a bias"};
        check_values(got, want, rows * m->n, BOUND, names[mode], rows);
        for (int i = rows * m->n; i < ROWS_MAX * m->n; i++)
            ck_assert_msg(got[i] == 1, "%d rows: row %d has changed", rows, i / m->n);
        free(got);
    }
    free(want), free(bias);
}

static void check_swiglu(struct bench *t, const struct fp8_matrix *gate_up, int rows, enum method method)
{
    struct backend *b = t->b;
    const int n = gate_up->n / 2;
    const struct weight *w = make_weight_from(b, fp8_matrix_view(gate_up)); // gate, then up, as weight_gate_up has them
    struct tensor *mlp = make_tensor(b, TENSOR_ACTIVATION, ROWS_MAX, n);
    OK(b->ops->linear(b, mlp, t->x, w, NULL, LINEAR_SWIGLU, rows));
    float *got = read_columns(b, mlp, rows, n, n);
    double *both = products(gate_up, t->values, rows, method),
           *want = mem_alloc_array((size_t)(rows * n), sizeof *want);
    for (int r = 0; r < rows; r++)
        for (int i = 0; i < n; i++) {
            const double gate = both[r * 2 * n + i];
            want[r * n + i] = gate / (1 + exp(-gate)) * both[r * 2 * n + n + i];
        }
    check_values(got, want, rows * n, 0x1p-8, "SwiGLU", rows); // bf16
    free(got), free(both), free(want);
}

static void check_all(int n, int k, int block, bool fast_accum, enum method few, int most_few, enum method many)
{
    static const int rows[] = {1, 3, 8, 16, 18, 64};
    struct bench t = bench_open(ROWS_MAX, k, fast_accum);
    struct fp8_matrix m = fp8_matrix_make(n, k, block);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const enum method method = rows[i] > GEMV_ROWS && rows[i] <= most_few ? few : many;
        check_modes(&t, &m, rows[i], method);
        if (n % 2 == 0) check_swiglu(&t, &m, rows[i], method);
    }
    fp8_matrix_free(&m);
    bench_close(&t);
}

// ---- tests ---------------------------------------------------------------------------------------------------------

static const struct {
    int n, k;
} sizes[] = {{256, 256}, {272, 200}, {50, 136}};
enum { SIZES = sizeof sizes / sizeof sizes[0] };

START_TEST(gemms_equal_products_of_the_bytes_and_scales)
{
    if (!fp8_is_here()) return;
    const int i = _i / 2, block = _i % 2 ? FP8_BLOCK : 0;
    check_all(sizes[i].n, sizes[i].k, block, false, IN_FP8, 0, IN_FP8);
}
END_TEST

// The library has no FP8 algorithm for up to 16 rows. Gemms of so few rows that the library runs are computed in bf16.
START_TEST(numbers_of_rows_without_an_algorithm_are_multiplied_in_bf16)
{
    if (!EMULATED) return;
    const int i = _i / 2, block = _i % 2 ? FP8_BLOCK : 0;
    emulator_refuse_fp8(1, 16);
    check_all(sizes[i].n, sizes[i].k, block, false, IN_BF16, 16, IN_FP8);
}
END_TEST

// The library accepts the largest number of rows of a bucket and refuses a smaller number.
START_TEST(an_algorithm_that_refuses_fewer_rows_is_replaced)
{
    if (!EMULATED) return;
    emulator_refuse_fp8(17, 20);
    struct bench t = bench_open(ROWS_MAX, 256, false);
    struct fp8_matrix m = fp8_matrix_make(128, 256, 0);
    check_modes(&t, &m, 32, IN_FP8);
    check_modes(&t, &m, 18, IN_BF16);
    check_modes(&t, &m, 24, IN_FP8);
    fp8_matrix_free(&m);
    bench_close(&t);
}
END_TEST

START_TEST(block_scales_are_multiplied_in_bf16_on_other_devices)
{
    if (!EMULATED) return;
    emulator_set_capability(_i ? 10 : 8, _i ? 0 : 9);
    check_all(128, 128, FP8_BLOCK, false, IN_BF16, 0, IN_BF16);
}
END_TEST

// A slice that begins or ends within a block, as tensor parallelism makes where blocks do not divide evenly.
START_TEST(slices_of_blocks_are_multiplied_in_bf16)
{
    if (!fp8_is_here()) return;
    enum { N = 256, K = 384, FIRST_ROW = 64, FIRST_COLUMN = 192 };
    struct fp8_matrix m = fp8_matrix_make(N, K, FP8_BLOCK);
    struct bench t = bench_open(ROWS_MAX, K - FIRST_COLUMN, false);
    struct matrix_view view = fp8_matrix_view(&m);
    view.data = m.bytes + FIRST_ROW * K + FIRST_COLUMN;
    view.rows = N - FIRST_ROW;
    view.columns = K - FIRST_COLUMN;
    view.scale = m.scale + FIRST_ROW / FP8_BLOCK * (K / FP8_BLOCK) + FIRST_COLUMN / FP8_BLOCK;
    view.scale_row = FIRST_ROW % FP8_BLOCK;
    view.scale_column = FIRST_COLUMN % FP8_BLOCK;
    const struct weight *w = make_weight_from(t.b, view);
    const int n = N - FIRST_ROW, k = K - FIRST_COLUMN, rows = 5;
    struct tensor *out = make_tensor(t.b, TENSOR_F32, ROWS_MAX, n);
    double *want = mem_alloc_array((size_t)(rows * n), sizeof *want);
    OK(t.b->ops->linear(t.b, out, t.x, w, NULL, LINEAR_STORE, rows));
    float *got = tensor_read(t.b, out, rows, n);
    for (int r = 0; r < rows; r++)
        for (int i = 0; i < n; i++)
            for (int j = 0; j < k; j++) {
                const int row = FIRST_ROW + i, column = FIRST_COLUMN + j;
                const double value = (double)e4m3_to_f32(m.bytes[row * K + column]) * matrix_scale(&m, row, column);
                want[r * n + i] += (double)t.values[r * k + j] * (double)bf16_to_f32(bf16_from_f32((float)value));
            }
    check_values(got, want, rows * n, BOUND, "a slice", rows);
    free(got), free(want);
    fp8_matrix_free(&m);
    bench_close(&t);
}
END_TEST

// ---- accumulation --------------------------------------------------------------------------------------------------

// Returns the root mean square of the errors of a gemm, relative to that of the exact results, which are sums of the
// same bytes.
static double relative_error(const float *got, const double *want, int n)
{
    double error = 0, all = 0;
    for (int i = 0; i < n; i++) {
        error += ((double)got[i] - want[i]) * ((double)got[i] - want[i]);
        all += want[i] * want[i];
    }
    return sqrt(error / all);
}

// Returns the same error of the model in fp8_accumulator.h that promotes sums to f32 every `promoted` products.
static double modelled_error(const struct fp8_matrix *m, const float *x, int rows, int promoted, const double *want)
{
    float *u = mem_alloc_array((size_t)m->k, sizeof *u), *v = mem_alloc_array((size_t)m->k, sizeof *v);
    float *sums = mem_alloc_array((size_t)(rows * m->n), sizeof *sums);
    double *values = mem_alloc_array((size_t)m->k, sizeof *values),
           *scale = mem_alloc_array((size_t)m->k, sizeof *scale);
    for (int r = 0; r < rows; r++) {
        quantise_row(x + (size_t)r * (size_t)m->k, m->k, m->k, values, scale);
        for (int i = 0; i < m->k; i++)
            u[i] = (float)values[i];
        for (int n = 0; n < m->n; n++) {
            float sum = 0;
            for (int i = 0; i < m->k; i++)
                v[i] = e4m3_to_f32(m->bytes[(size_t)n * (size_t)m->k + (size_t)i]);
            for (int i = 0; i < m->k; i += promoted)
                sum += (float)fp8_accumulate(0, u + i, v + i, promoted < m->k - i ? promoted : m->k - i);
            sums[r * m->n + n] = (float)((double)sum * scale[0] * matrix_scale(m, n, 0));
        }
    }
    const double error = relative_error(sums, want, rows * m->n);
    free(u), free(v), free(sums), free(values), free(scale);
    return error;
}

// Prints what fast accumulation loses: a measurement on a GPU, the error of the model on the emulated GPU.
START_TEST(fast_accumulation_loses_the_last_bits_of_sums)
{
    if (!fp8_is_here()) return;
    enum { N = 32, ROWS = 16 };
    static const int ks[2][2] = {{1024, 4096}, {512, 1024}};
    const int k = ks[EMULATED][_i];
    struct fp8_matrix m = fp8_matrix_make(N, k, 0);
    double error[2];
    for (int fast = 0; fast < 2; fast++) {
        struct bench t = bench_open(ROWS, k, fast);
        const struct weight *w = make_weight_from(t.b, fp8_matrix_view(&m));
        struct tensor *out = make_tensor(t.b, TENSOR_F32, ROWS_MAX, N);
        OK(t.b->ops->linear(t.b, out, t.x, w, NULL, LINEAR_STORE, ROWS));
        float *got = tensor_read(t.b, out, ROWS, N);
        double *want = products(&m, t.values, ROWS, IN_FP8);
        error[fast] = relative_error(got, want, ROWS * N);
        if (fast)
            printf(
                "fp8 sums of %d products: relative error %.1e by default, %.1e with fast accumulation; the model has "
                "%.1e and %.1e\n",
                k, error[0], error[1], modelled_error(&m, t.values, ROWS, FP8_SUM_PROMOTED, want),
                modelled_error(&m, t.values, ROWS, k, want));
        free(got), free(want);
        bench_close(&t);
    }
    ck_assert_double_le(error[0], EMULATED ? 1e-6 : 1e-3);
    ck_assert_double_le(error[1], 0.02);
    if (EMULATED) ck_assert_double_gt(error[1], 1e-4);
    fp8_matrix_free(&m);
}
END_TEST

// Without fast accumulation, sums are the same as by default, and still in FP8.
START_TEST(fast_accumulation_that_is_not_supported_is_left_out)
{
    if (!EMULATED) return;
    emulator_refuse_fast_accum();
    check_all(128, 512, 0, true, IN_FP8, 0, IN_FP8);
}
END_TEST

SUITE("cuda_fp8")
{
    SKIP_UNLESS(cuda_is_here());
    setenv("XDG_CACHE_HOME", "/dev/null", 1); // no saved algorithms: every start selects them again
    TIMEOUT(60);
    LOOP(gemms_equal_products_of_the_bytes_and_scales, 0, 2 * SIZES);
    LOOP(numbers_of_rows_without_an_algorithm_are_multiplied_in_bf16, 0, 2 * SIZES);
    TEST(an_algorithm_that_refuses_fewer_rows_is_replaced);
    LOOP(block_scales_are_multiplied_in_bf16_on_other_devices, 0, 2);
    TEST(slices_of_blocks_are_multiplied_in_bf16);
    LOOP(fast_accumulation_loses_the_last_bits_of_sums, 0, 2);
    TEST(fast_accumulation_that_is_not_supported_is_left_out);
}
