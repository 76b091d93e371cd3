// SPDX-License-Identifier: Apache-2.0
// How `forepack up` counts the GPUs of a machine and divides them among its nodes.
#include <stdlib.h>
#include <string.h>

#include "cli/gpus.h"
#include "tests/suite.h"

static void check_set(const struct gpu_set *set, int n_gpus, const char *visible, int nodes, const char *expected)
{
    char *text = gpus_visible(set, n_gpus, visible);
    if (expected)
        ck_assert_str_eq(text, expected);
    else
        ck_assert_ptr_null(text);
    ck_assert_int_eq(set->nodes, nodes);
    free(text);
}

START_TEST(nodes_share_no_gpu_where_there_are_enough)
{
    struct gpu_set sets[3];
    gpus_divide((int[]){4, 2, 1}, 3, 8, sets);
    check_set(&sets[0], 8, NULL, 1, "0,1,2,3");
    check_set(&sets[1], 8, NULL, 1, "4,5");
    check_set(&sets[2], 8, NULL, 1, "6");
}
END_TEST

START_TEST(nodes_share_gpus_round_robin_where_there_are_too_few)
{
    struct gpu_set sets[4];
    gpus_divide((int[]){8, 8}, 2, 8, sets); // both nodes have all GPUs
    check_set(&sets[0], 8, NULL, 2, NULL);
    check_set(&sets[1], 8, NULL, 2, NULL);
    gpus_divide((int[]){2, 2, 1}, 3, 4, sets);
    check_set(&sets[0], 4, NULL, 2, "0,1");
    check_set(&sets[1], 4, NULL, 1, "2,3");
    check_set(&sets[2], 4, NULL, 2, "0");
    gpus_divide((int[]){2, 2, 2, 1}, 4, 3, sets);
    check_set(&sets[0], 3, NULL, 3, "0,1");
    check_set(&sets[1], 3, NULL, 3, "2,0");
    check_set(&sets[2], 3, NULL, 2, "1,2");
    check_set(&sets[3], 3, NULL, 3, "0");
    gpus_divide((int[]){1, 1, 1}, 3, 1, sets); // a cluster on one GPU
    for (int i = 0; i < 3; i++)
        check_set(&sets[i], 1, NULL, 3, NULL);
    gpus_divide((int[]){5, 1}, 2, 2, sets); // more ranks than GPUs: all GPUs
    check_set(&sets[0], 2, NULL, 2, NULL);
}
END_TEST

START_TEST(more_ranks_than_gpus_are_refused_with_both_numbers)
{
    ck_assert_int_eq(gpus_check((int[]){2, 4}, 2, 4), STATUS_OK);
    ck_assert_int_eq(gpus_check((int[]){2, 5}, 2, 4), STATUS_INVALID);
    ck_assert_str_eq(status_message(), "a node has 5 ranks, this machine 4 GPUs: each rank needs its own GPU");
}
END_TEST

// The memory of a GPU is promised only once: the fractions of the nodes on it add up to at most 1.
START_TEST(fractions_of_a_gpu_add_up)
{
    for (int n_gpus = 1; n_gpus <= 9; n_gpus++)
        for (int seed = 0; seed < 200; seed++) {
            int ranks[5];
            struct gpu_set sets[5];
            for (int i = 0; i < 5; i++)
                ranks[i] = 1 + (seed / (i + 1) * 7 + i * 3) % n_gpus;
            gpus_divide(ranks, 5, n_gpus, sets);
            for (int gpu = 0; gpu < n_gpus; gpu++) {
                double sum = 0;
                for (int i = 0; i < 5; i++) {
                    ck_assert_int_eq(sets[i].ranks, ranks[i]);
                    int from_first = (gpu - sets[i].first + n_gpus) % n_gpus;
                    if (from_first < ranks[i]) sum += 1.0 / sets[i].nodes;
                }
                ck_assert_double_le(sum, 1 + 1e-9);
            }
        }
}
END_TEST

START_TEST(gpus_in_cuda_visible_devices_are_divided)
{
    struct gpu_set sets[3];
    gpus_divide((int[]){2, 1, 1}, 3, 4, sets);
    check_set(&sets[0], 4, "7,5,GPU-8932f937,MIG-1/2", 1, "7,5");
    check_set(&sets[1], 4, "7,5,GPU-8932f937,MIG-1/2", 1, "GPU-8932f937");
    check_set(&sets[2], 4, "7,5,GPU-8932f937,MIG-1/2", 1, "MIG-1/2");
    check_set(&sets[2], 4, "0,1,2,3,-1,5", 1, "3");
    check_set(&sets[1], 4, "7,5", 1, NULL); // does not fit what CUDA shows
    check_set(&sets[1], 4, "", 1, NULL);
    check_set(&sets[1], 4, "7,5,,3", 1, NULL);
}
END_TEST

// tests/fake_cuda_driver.c is the driver, and a file with the name of the CUDA backend is next to this program.
// Counting does not load CUDA into this process, so it can be repeated.
START_TEST(gpus_are_counted_by_the_driver)
{
    setenv("FAKE_CUDA_DEVICES", "3", 1);
    ck_assert_int_eq(gpus_count(), 3);
    setenv("FAKE_CUDA_DEVICES", "1000", 1);
    ck_assert_int_eq(gpus_count(), 255);
    setenv("FAKE_CUDA_DEVICES", "0", 1);
    ck_assert_int_eq(gpus_count(), 0);
    unsetenv("FAKE_CUDA_DEVICES"); // cuInit fails
    ck_assert_int_eq(gpus_count(), 0);
}
END_TEST

SUITE("gpus")
{
    TEST(nodes_share_no_gpu_where_there_are_enough);
    TEST(nodes_share_gpus_round_robin_where_there_are_too_few);
    TEST(more_ranks_than_gpus_are_refused_with_both_numbers);
    TEST(fractions_of_a_gpu_add_up);
    TEST(gpus_in_cuda_visible_devices_are_divided);
    TEST(gpus_are_counted_by_the_driver);
}
