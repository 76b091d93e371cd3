// SPDX-License-Identifier: Apache-2.0
// Tuning finds the fastest algorithm of a gemm on a device that begins with low clocks and is sometimes disturbed:
// tuning warms the device up before it measures, candidates take turns, and the fastest round of each counts.
#include <stdlib.h>

#include "kernels/cuda/gemm.h"
#include "tests/cuda_fixture.h"
#include "tests/suite.h"

enum { ALGORITHMS = 3, ROWS = 64, COLUMNS = 32, CALLS_MAX = 4096 };

static int calls[CALLS_MAX], n_calls; // the algorithm of every gemm
static int64_t worked_us;

// Algorithm 0 is the fastest. The first 200 ms of work take twice as long, and a gemm in nine five times as long.
static int64_t disturbed_time(int algorithm)
{
    static const int64_t us[ALGORITHMS] = {10000, 12000, 14000};
    ck_assert_int_lt(n_calls, CALLS_MAX);
    calls[n_calls++] = algorithm;
    const int64_t taken_us = us[algorithm] * (worked_us < 200000 ? 2 : 1) * (n_calls % 9 == 0 ? 5 : 1);
    worked_us += taken_us;
    return taken_us;
}

static int64_t last_time(int algorithm)
{
    calls[n_calls++] = algorithm;
    return 14000 - 1000 * algorithm;
}

static struct backend *b;
static struct tensor *x, *out;
static struct weight *w;

static void setup(void)
{
    struct backend_shape shape = small_shape;
    shape.max_rows = ROWS;
    unsetenv("XDG_CACHE_HOME"); // otherwise algorithms of an earlier test would be found
    unsetenv("HOME");
    b = open_cuda(&shape, DTYPE_BF16);
    w = random_weight(b, COLUMNS, COLUMNS, 1);
    x = make_tensor(b, TENSOR_ACTIVATION, ROWS, COLUMNS);
    out = make_tensor(b, TENSOR_F32, ROWS, COLUMNS);
    const struct ragged_batch batch = ragged_warm_up_batch();
    OK(b->ops->begin(b, &batch));
    OK(b->ops->linear(b, out, x, w, NULL, LINEAR_STORE, 1));
    OK(b->ops->wait(b));
}

static void teardown(void)
{
    b->ops->close(b);
    emulator_set_gemm_time(NULL);
}

static void tune(int64_t (*us)(int algorithm))
{
    emulator_set_gemm_time(us);
    n_calls = 0;
    worked_us = 0;
    OK(b->ops->tune(b));
}

// The algorithm of the next gemm of 16 rows.
static int algorithm_in_use(void)
{
    n_calls = 0;
    OK(b->ops->linear(b, out, x, w, NULL, LINEAR_STORE, 16));
    OK(b->ops->wait(b));
    ck_assert_int_eq(n_calls, 1);
    return calls[0];
}

START_TEST(the_fastest_algorithm_is_chosen_on_an_idle_and_disturbed_device)
{
    tune(disturbed_time);
    ck_assert_int_eq(algorithm_in_use(), 0);
}
END_TEST

START_TEST(another_fastest_algorithm_is_chosen_as_well)
{
    tune(last_time);
    ck_assert_int_eq(algorithm_in_use(), ALGORITHMS - 1);
}
END_TEST

START_TEST(the_device_works_before_candidates_are_timed)
{
    tune(disturbed_time);
    int64_t us = 0;
    int i = ALGORITHMS; // each candidate has run once, to be loaded
    while (i < n_calls && calls[i] == 0)
        us += 10000, i++;
    ck_assert_int_ge(us, 200000); // of 300 ms: some took longer
}
END_TEST

START_TEST(candidates_take_turns)
{
    tune(disturbed_time);
    int turns[ALGORITHMS] = {0}, buckets = 3; // 16, 32 and 64 rows: fewer are not the library's
    for (int i = 1; i < n_calls; i++)
        turns[calls[i]] += calls[i] != calls[i - 1];
    for (int a = 0; a < ALGORITHMS; a++)
        ck_assert_int_ge(turns[a], 4 * buckets);
}
END_TEST

// Timing runs as many rows as the tensors have. On a GPU a sample that begins at a later row would read after their
// end.
START_TEST(the_sample_is_the_call_with_the_most_rows)
{
    static const char memory[4];
    struct gemm g = {0};
    const struct weight weight = {.rows = 8, .columns = 8, .stride = 8, .dtype = DTYPE_BF16};
    const struct {
        int x, first_row, max_rows, sample; // x, sample: of memory; 0: without x
    } calls_made[] = {{0, 0, 64, 0}, {1, 32, 64, 1}, {2, 0, 64, 2}, {3, 16, 64, 2},
                      {1, 0, 32, 2}, {0, 0, 64, 2},  {3, 0, 64, 3}};
    for (size_t i = 0; i < sizeof calls_made / sizeof calls_made[0]; i++) {
        const struct gemm_call call = {.w = &weight,
                                       .x = calls_made[i].x ? &memory[calls_made[i].x] : NULL,
                                       .first_row = calls_made[i].first_row,
                                       .max_rows = calls_made[i].max_rows,
                                       .out_stride = 8};
        const struct problem *problem = gemm_problem_of(&g, &call);
        ck_assert_int_eq(g.n_problems, 1);
        ck_assert_ptr_eq(problem->sample.x, calls_made[i].sample ? &memory[calls_made[i].sample] : NULL);
    }
    free(g.problems[0].bucket);
    free(g.problems);
}
END_TEST

SUITE("cuda_tune")
{
    FIXTURE(setup, teardown);
    TEST(the_fastest_algorithm_is_chosen_on_an_idle_and_disturbed_device);
    TEST(another_fastest_algorithm_is_chosen_as_well);
    TEST(the_device_works_before_candidates_are_timed);
    TEST(candidates_take_turns);
    TEST(the_sample_is_the_call_with_the_most_rows);
}
