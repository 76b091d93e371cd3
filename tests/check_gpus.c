// SPDX-License-Identifier: Apache-2.0
// How `forepack up` gives the GPUs of a machine to its nodes: each its own where there are enough, else in turn.
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "cli/gpus.h"
#include "tests/cuda_here.h"

static void check_share(const struct gpu_share *share, int n_gpus, const char *visible, int nodes, const char *expected)
{
    char *text = gpus_visible(share, n_gpus, visible);
    if (expected)
        ck_assert_str_eq(text, expected);
    else
        ck_assert_ptr_null(text);
    ck_assert_int_eq(share->nodes, nodes);
    free(text);
}

START_TEST(each_node_has_its_own_where_there_are_enough)
{
    struct gpu_share shares[3];
    gpus_divide((int[]){4, 2, 1}, 3, 8, shares);
    check_share(&shares[0], 8, NULL, 1, "0,1,2,3");
    check_share(&shares[1], 8, NULL, 1, "4,5");
    check_share(&shares[2], 8, NULL, 1, "6");
}
END_TEST

START_TEST(else_they_take_turns)
{
    struct gpu_share shares[4];
    gpus_divide((int[]){8, 8}, 2, 8, shares); // no two ranks of a node on one
    check_share(&shares[0], 8, NULL, 2, NULL);
    check_share(&shares[1], 8, NULL, 2, NULL);
    gpus_divide((int[]){2, 2, 1}, 3, 4, shares);
    check_share(&shares[0], 4, NULL, 2, "0,1");
    check_share(&shares[1], 4, NULL, 1, "2,3");
    check_share(&shares[2], 4, NULL, 2, "0");
    gpus_divide((int[]){2, 2, 2, 1}, 4, 3, shares);
    check_share(&shares[0], 3, NULL, 3, "0,1");
    check_share(&shares[1], 3, NULL, 3, "2,0");
    check_share(&shares[2], 3, NULL, 2, "1,2");
    check_share(&shares[3], 3, NULL, 3, "0");
    gpus_divide((int[]){1, 1, 1}, 3, 1, shares); // a cluster on one GPU
    for (int i = 0; i < 3; i++)
        check_share(&shares[i], 1, NULL, 3, NULL);
    gpus_divide((int[]){5, 1}, 2, 2, shares); // which computes on the CPU, or says so itself
    check_share(&shares[0], 2, NULL, 2, NULL);
}
END_TEST

START_TEST(more_ranks_than_gpus_are_refused_with_both_numbers)
{
    ck_assert_int_eq(gpus_check((int[]){2, 4}, 2, 4), STATUS_OK);
    ck_assert_int_eq(gpus_check((int[]){2, 5}, 2, 4), STATUS_INVALID);
    ck_assert_str_eq(status_message(), "a node of 5 ranks on 4 GPUs: each rank takes one of its own");
}
END_TEST

// No GPU is ever promised more than once: shares of a whole add up to it at most.
START_TEST(shares_of_a_gpu_add_up)
{
    for (int n_gpus = 1; n_gpus <= 9; n_gpus++)
        for (int seed = 0; seed < 200; seed++) {
            int ranks[5];
            struct gpu_share shares[5];
            for (int i = 0; i < 5; i++)
                ranks[i] = 1 + (seed / (i + 1) * 7 + i * 3) % n_gpus;
            gpus_divide(ranks, 5, n_gpus, shares);
            for (int gpu = 0; gpu < n_gpus; gpu++) {
                double sum = 0;
                for (int i = 0; i < 5; i++) {
                    ck_assert_int_eq(shares[i].ranks, ranks[i]);
                    int from_first = (gpu - shares[i].first + n_gpus) % n_gpus;
                    if (from_first < ranks[i]) sum += 1.0 / shares[i].nodes;
                }
                ck_assert_double_le(sum, 1 + 1e-9);
            }
        }
}
END_TEST

START_TEST(gpus_chosen_before_are_the_ones_divided)
{
    struct gpu_share shares[3];
    gpus_divide((int[]){2, 1, 1}, 3, 4, shares);
    check_share(&shares[0], 4, "7,5,GPU-8932f937,MIG-1/2", 1, "7,5");
    check_share(&shares[1], 4, "7,5,GPU-8932f937,MIG-1/2", 1, "GPU-8932f937");
    check_share(&shares[2], 4, "7,5,GPU-8932f937,MIG-1/2", 1, "MIG-1/2");
    check_share(&shares[2], 4, "0,1,2,3,-1,5", 1, "3");
    check_share(&shares[1], 4, "7,5", 1, NULL); // does not fit what CUDA shows
    check_share(&shares[1], 4, "", 1, NULL);
    check_share(&shares[1], 4, "7,5,,3", 1, NULL);
}
END_TEST

// Counting leaves this process without CUDA, so that it can be done again.
START_TEST(gpus_are_counted_in_a_child)
{
    int n = gpus_count();
    ck_assert_int_eq(gpus_count(), n);
#ifndef FOREPACK_CUDA_EMULATED
    ck_assert_int_eq(n > 0, cuda_is_here());
#endif
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("gpus");
    TCase *tests = tcase_create("gpus");
    tcase_add_test(tests, each_node_has_its_own_where_there_are_enough);
    tcase_add_test(tests, else_they_take_turns);
    tcase_add_test(tests, more_ranks_than_gpus_are_refused_with_both_numbers);
    tcase_add_test(tests, shares_of_a_gpu_add_up);
    tcase_add_test(tests, gpus_chosen_before_are_the_ones_divided);
    tcase_add_test(tests, gpus_are_counted_in_a_child);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
