// SPDX-License-Identifier: Apache-2.0
// Gemms of up to 64 rows (kernels/cuda/gemm_stream.cu), on an emulated GPU or a GPU: results against sums in double
// precision, at odd shapes, in every mode; a row has the same bits with any number of other rows, from 1 (gemv.cu) to
// 64; nothing after the rows is written.
#include <stdlib.h>

#include "kernels/cuda/limits.h"
#include "tests/gemm_bench.h"
#include "tests/suite.h"

// Outputs: less than a tile, tiles of 16, 32 and 64 outputs, no multiples of them, and several tiles for each of the 4
// thread blocks of an emulated GPU. Columns: none for most warps, one step, several steps, and more than the ring
// holds.
static const struct {
    int n, k;
} sizes[] = {{2, 1}, {16, 64}, {34, 40}, {130, 257}, {66, 1304}, {1030, 136}, {602, 2056}};
static const int counts[] = {9, 16, 17, 31, 32, 33, 64};
enum { SIZES = sizeof sizes / sizeof sizes[0], COUNTS = sizeof counts / sizeof counts[0], MAX_ROWS = 70 };

static void open_case(int size)
{
    setenv("FOREPACK_CUDA_STREAM_GEMM", "on", 1);
    bench_open(sizes[size].n, sizes[size].k, MAX_ROWS);
}

START_TEST(results_are_those_of_sums_in_double_precision)
{
    open_case(_i);
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
    open_case(_i);
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
