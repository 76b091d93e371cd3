// SPDX-License-Identifier: Apache-2.0
// Gemms of few rows (kernels/cuda/gemv.cu), on an emulated GPU or a GPU: results against sums in double precision, at
// odd shapes, in every mode; a row has the same bits with any other rows; nothing after the outputs is written.
// check_cuda_fp8 covers FP8 weights.
#include "kernels/cuda/limits.h"
#include "tests/gemm_bench.h"
#include "tests/suite.h"

// Outputs and columns: a tile, less, and no multiple of a tile; one stage and several stages for each warp.
static const struct {
    int n, k;
} sizes[] = {{2, 1}, {16, 16}, {34, 40}, {130, 257}, {26, 1304}};
enum { SIZES = sizeof sizes / sizeof sizes[0], MAX_ROWS = 20 };

START_TEST(results_are_those_of_sums_in_double_precision)
{
    bench_open(sizes[_i].n, sizes[_i].k, MAX_ROWS);
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
    bench_open(34, 1032, MAX_ROWS);
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
