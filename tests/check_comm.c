// SPDX-License-Identifier: Apache-2.0
// comm_self and comm_threads: every collective, sums in rank order, results independent of the count.
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "tests/comm_threads.h"
#include "tests/suite.h"

enum { COUNT = 1001 };

// Returns a value whose float sum depends on the order in which ranks are added.
static float rank_value(int rank, size_t i)
{
    static const float scale[] = {1e8f, 1, -1e8f, 1e-3f, 3e4f};
    return scale[rank % 5] * (float)(1 + (i * 7 + (size_t)rank) % 13);
}

static float sum_in_rank_order(int size, size_t i)
{
    float sum = rank_value(0, i);
    for (int r = 1; r < size; r++)
        sum += rank_value(r, i);
    return sum;
}

// Runs all collectives of one rank. Returns the number of failures, because ck_assert must not be used outside the main
// thread.
static int collectives_check(struct comm *c)
{
    int bad = 0;
    float data[COUNT];
    for (size_t count = 0; count <= COUNT; count += count < 8 ? 1 : 331) {
        for (size_t i = 0; i < count; i++)
            data[i] = rank_value(c->rank, i);
        bad += c->ops->all_reduce_sum(c, data, count) != STATUS_OK;
        for (size_t i = 0; i < count; i++)
            bad += data[i] != sum_in_rank_order(c->size, i);

        for (size_t i = 0; i < count; i++)
            data[i] = rank_value(c->rank, i);
        bad += c->ops->all_reduce_max(c, data, count) != STATUS_OK;
        for (size_t i = 0; i < count; i++) {
            float max = rank_value(0, i);
            for (int r = 1; r < c->size; r++)
                max = rank_value(r, i) > max ? rank_value(r, i) : max;
            bad += data[i] != max;
        }

        for (size_t i = 0; i < count; i++)
            data[i] = rank_value(c->rank, i);
        float *all = c->rank ? NULL : malloc((count * (size_t)c->size + 1) * sizeof *all);
        bad += c->ops->gather(c, data, count, all) != STATUS_OK;
        for (size_t i = 0; all && i < count * (size_t)c->size; i++)
            bad += all[i] != rank_value((int)(i / count), i % count);
        free(all);

        char text[16] = "";
        if (c->rank == 0) strcpy(text, "from rank 0");
        bad += c->ops->broadcast(c, text, sizeof text) != STATUS_OK;
        bad += strcmp(text, "from rank 0") != 0;
    }
    return bad;
}

struct rank {
    pthread_t thread;
    struct comm *comm;
    int bad;
    enum status status;
};

static void *rank_main(void *arg)
{
    struct rank *rank = arg;
    rank->bad = collectives_check(rank->comm);
    float data[2] = {0};
    rank->status = rank->comm->ops->all_reduce_sum(rank->comm, data, rank->comm->rank == 1 ? 1 : 2);
    rank->comm->ops->close(rank->comm);
    return NULL;
}

START_TEST(one_rank_changes_nothing)
{
    struct comm *c;
    ck_assert_int_eq(comm_open_self(&c), STATUS_OK);
    ck_assert_int_eq(c->rank, 0);
    ck_assert_int_eq(c->size, 1);
    ck_assert_int_eq(collectives_check(c), 0);
    c->ops->close(c);
}
END_TEST

START_TEST(threads_reduce_in_rank_order)
{
    int size = _i;
    struct comm *comms[8];
    struct rank ranks[8] = {0};
    ck_assert_int_eq(comm_open_threads(size, comms), STATUS_OK);
    for (int r = 0; r < size; r++) {
        ranks[r].comm = comms[r];
        ck_assert_int_eq(pthread_create(&ranks[r].thread, NULL, rank_main, &ranks[r]), 0);
    }
    for (int r = 0; r < size; r++) {
        pthread_join(ranks[r].thread, NULL);
        ck_assert_int_eq(ranks[r].bad, 0);
        // In the last call rank 1 passed another count: every rank must report an error.
        ck_assert_int_eq(ranks[r].status, size > 1 ? STATUS_INTERNAL : STATUS_OK);
    }
}
END_TEST

START_TEST(no_ranks_is_refused)
{
    ck_assert_int_eq(comm_open_threads(0, NULL), STATUS_INVALID);
    ck_assert_str_eq(status_message(), "0 ranks: must be 1 or more");
}
END_TEST

SUITE("comm")
{
    TEST(one_rank_changes_nothing);
    LOOP(threads_reduce_in_rank_order, 1, 6);
    TEST(no_ranks_is_refused);
}
