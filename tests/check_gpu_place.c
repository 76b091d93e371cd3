// SPDX-License-Identifier: Apache-2.0
// The GPU of each rank of a group, from the GPUs that the ranks see.
#include <pthread.h>
#include <stdlib.h>

#include "kernels/gpu_place.h"
#include "tests/comm_threads.h"
#include "tests/suite.h"

enum { RANKS_MAX = 16 };

// Reads the GPUs that ranks see: one word per rank, a letter per GPU.
static int ranks_read(const char *const words[], struct gpus_seen ranks[RANKS_MAX])
{
    int n = 0;
    for (; words[n]; n++) {
        ranks[n] = (struct gpus_seen){0};
        for (const char *c = words[n]; *c; c++)
            ranks[n].id[ranks[n].n++].bytes[0] = (uint8_t)*c;
    }
    return n;
}

// `gpus` has the letter of each rank's GPU, or '-' if it has none.
static void check_places(const char *const words[], const char *gpus)
{
    struct gpus_seen ranks[RANKS_MAX];
    const int n = ranks_read(words, ranks);
    for (int r = 0; r < n; r++) {
        const struct gpu_place place = gpu_place_choose(ranks, r);
        ck_assert_int_eq(place.seen, ranks[r].n);
        ck_assert_msg(place.device == GPU_NONE ? gpus[r] == '-' : words[r][place.device] == gpus[r],
                      "rank %d of %s: device %d", r, gpus, place.device);
    }
}

#define WORDS(...)                                                                                                     \
    (const char *const[])                                                                                              \
    {                                                                                                                  \
        __VA_ARGS__, NULL                                                                                              \
    }

START_TEST(ranks_that_see_all_gpus_take_one_after_the_other)
{
    check_places(WORDS("abcdefgh", "abcdefgh", "abcdefgh"), "abc");
    check_places(WORDS("abcd", "abcd", "wxyz", "wxyz"), "abwx"); // two hosts
    check_places(WORDS("ab", "wx", "ab", "wx"), "awbx");         // mpirun --map-by node
}
END_TEST

START_TEST(ranks_that_see_one_gpu_each_use_it)
{
    check_places(WORDS("a", "b", "c", "d"), "abcd");
    check_places(WORDS("d", "b"), "db");
    check_places(WORDS("ab", "cd", "ef"), "ace"); // --gpus-per-task=2: the first of them
    check_places(WORDS("ba", "ab"), "ba");        // the same GPUs in other orders
}
END_TEST

START_TEST(a_rank_for_which_no_gpu_is_left_has_none)
{
    struct gpus_seen ranks[RANKS_MAX];
    check_places(WORDS("ab", "ab", "ab", "ab"), "ab--");
    check_places(WORDS("a", "b", "b", "c"), "ab-c");
    ranks_read(WORDS("a", "cb", "b", "b"), ranks);
    ck_assert_int_eq(gpu_place_choose(ranks, 3).device, GPU_NONE);
    ck_assert_int_eq(gpu_place_choose(ranks, 3).used_by, 2);
}
END_TEST

START_TEST(a_rank_that_sees_no_gpu_gets_the_first_device)
{
    const struct gpus_seen none[2] = {{0}, {0}};
    for (int r = 0; r < 2; r++) {
        ck_assert_int_eq(gpu_place_choose(none, r).device, 0);
        ck_assert_int_eq(gpu_place_choose(none, r).seen, 0);
    }
}
END_TEST

static void *agree(void *comm)
{
    static struct gpu_place places[RANKS_MAX];
    struct comm *c = comm;
    places[c->rank].seen = -1;
    ck_assert_int_eq(gpu_place_agree(c, "cpu", &places[c->rank]), STATUS_OK);
    return &places[c->rank];
}

START_TEST(all_ranks_take_part_whatever_backend_they_use)
{
    enum { RANKS = 3 };
    struct comm *comms[RANKS];
    pthread_t threads[RANKS];
    ck_assert_int_eq(comm_open_threads(RANKS, comms), STATUS_OK);
    for (int r = 0; r < RANKS; r++)
        ck_assert_int_eq(pthread_create(&threads[r], NULL, agree, comms[r]), 0);
    for (int r = 0; r < RANKS; r++) {
        void *place;
        pthread_join(threads[r], &place);
        ck_assert_int_eq(((struct gpu_place *)place)->seen, 0);
    }
    for (int r = 0; r < RANKS; r++)
        comms[r]->ops->close(comms[r]);
}
END_TEST

SUITE("gpu_place")
{
    TEST(ranks_that_see_all_gpus_take_one_after_the_other);
    TEST(ranks_that_see_one_gpu_each_use_it);
    TEST(a_rank_for_which_no_gpu_is_left_has_none);
    TEST(a_rank_that_sees_no_gpu_gets_the_first_device);
    TEST(all_ranks_take_part_whatever_backend_they_use);
}
