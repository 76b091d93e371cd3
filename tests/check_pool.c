// SPDX-License-Identifier: Apache-2.0
// The thread pool: every item exactly once in either order, whatever the number of threads, runs and items; what was
// written before a run is seen in it and the other way round.
#include <check.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

#include "kernels/cpu/pool.h"

enum { MAX_ITEMS = 500, RUNS = 210 };

struct count {
    int threads, value; // value: plain memory, written by the caller between runs
    int times[MAX_ITEMS], seen[MAX_ITEMS];
};

static void count_item(void *arg, int item, int thread)
{
    struct count *c = arg;
    ck_assert(thread >= 0 && thread < c->threads);
    c->times[item]++;
    c->seen[item] = c->value;
}

START_TEST(every_item_is_done_once)
{
    static const int sizes[] = {0, 1, 2, 3, 7, 64, MAX_ITEMS};
    struct pool *pool;
    ck_assert_int_eq(pool_open(_i, &pool), STATUS_OK);
    ck_assert_int_eq(pool_threads(pool), _i);
    struct count c = {.threads = _i};
    for (int run = 0; run < RUNS; run++) {
        int n = sizes[run % 7];
        c.value = run;
        for (int i = 0; i < n; i++)
            c.times[i] = 0;
        pool_run(pool, run / 7 % 2 ? POOL_SPLIT : POOL_QUEUE, count_item, &c, n);
        for (int i = 0; i < n; i++)
            ck_assert_msg(c.times[i] == 1 && c.seen[i] == run, "run %d of %d items: item %d %d times", run, n, i,
                          c.times[i]);
    }
    pool_close(pool);
}
END_TEST

struct held {
    _Atomic int done;
    int items;
};

// The first item does not return before all others have: it is held up, they must not wait for it.
static void hold_item(void *arg, int item, int thread)
{
    struct held *h = arg;
    while (item == 0 && atomic_load(&h->done) < h->items - 1)
        sched_yield();
    atomic_fetch_add(&h->done, 1);
}

START_TEST(others_do_the_work_of_a_thread_that_is_held_up)
{
    struct pool *pool;
    ck_assert_int_eq(pool_open(2, &pool), STATUS_OK);
    for (int order = POOL_SPLIT; order <= POOL_QUEUE; order++) {
        struct held h = {.items = 100};
        pool_run(pool, (enum pool_order)order, hold_item, &h, h.items);
        ck_assert_int_eq(atomic_load(&h.done), h.items);
    }
    pool_close(pool);
}
END_TEST

// Workers that sleep use no processor time: the process' clock hardly moves while it waits.
static double process_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

START_TEST(idle_workers_sleep_and_wake)
{
    struct pool *pool;
    ck_assert_int_eq(pool_open(3, &pool), STATUS_OK);
    struct count c = {.threads = 3};
    pool_run(pool, POOL_SPLIT, count_item, &c, MAX_ITEMS);
    // Each look finds less and less spinning; a pool that never slept would never pass.
    double used = 1;
    for (int tries = 0; tries < 1000 && used > 1e-3; tries++) {
        double before = process_seconds();
        nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
        used = process_seconds() - before;
    }
    ck_assert_msg(used <= 1e-3, "%g s of processor time in 20 ms", used);
    pool_run(pool, POOL_SPLIT, count_item, &c, MAX_ITEMS);
    for (int i = 0; i < MAX_ITEMS; i++)
        ck_assert_int_eq(c.times[i], 2);
    pool_close(pool);
}
END_TEST

START_TEST(a_pool_may_close_without_a_run)
{
    for (int i = 0; i < 50; i++) {
        struct pool *pool;
        ck_assert_int_eq(pool_open(1 + i % 5, &pool), STATUS_OK);
        pool_close(pool);
    }
    pool_close(NULL);
    ck_assert_int_ge(pool_usable_cores(), 1);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("pool");
    TCase *tcase = tcase_create("pool");
    tcase_set_timeout(tcase, 30);
    tcase_add_loop_test(tcase, every_item_is_done_once, 1, 6);
    tcase_add_test(tcase, others_do_the_work_of_a_thread_that_is_held_up);
    tcase_add_test(tcase, idle_workers_sleep_and_wake);
    tcase_add_test(tcase, a_pool_may_close_without_a_run);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? 1 : 0;
}
