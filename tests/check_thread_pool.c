// SPDX-License-Identifier: Apache-2.0
// The thread pool: every item runs exactly once, for any number of threads, runs and items. Memory written before a run
// is visible in it, and memory written in a run is visible after it. Threads keep their ranges and cores.
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "kernels/cpu/thread_pool.h"
#include "lib/base/cores.h"
#include "tests/suite.h"

enum { MAX_ITEMS = 500, RUNS = 210 };

struct count {
    int threads, value; // value: plain memory, written by the caller between runs
    int times[MAX_ITEMS], seen[MAX_ITEMS];
};

static void count_item(void *arg, int item, int thread)
{
    struct count *c = arg;
    ck_assert_int_ge(thread, 0);
    ck_assert_int_lt(thread, c->threads);
    c->times[item]++;
    c->seen[item] = c->value;
}

START_TEST(every_item_runs_once)
{
    static const int sizes[] = {0, 1, 2, 3, 7, 64, MAX_ITEMS};
    struct thread_pool *pool;
    ck_assert_int_eq(thread_pool_open(_i, NULL, true, &pool), STATUS_OK);
    struct count c = {.threads = _i};
    for (int run = 0; run < RUNS; run++) {
        int n = sizes[run % 7];
        c.value = run;
        for (int i = 0; i < n; i++)
            c.times[i] = 0;
        thread_pool_run(pool, run / 7 % 2 ? THREAD_POOL_STATIC : THREAD_POOL_DYNAMIC, count_item, &c, n);
        for (int i = 0; i < n; i++) {
            ck_assert_msg(c.times[i] == 1, "run %d of %d items: item %d %d times", run, n, i, c.times[i]);
            ck_assert_int_eq(c.seen[i], run);
        }
    }
    thread_pool_close(pool);
}
END_TEST

struct delayed {
    _Atomic int done;
    int items;
};

// The first item waits until all others are done: a delayed thread must not delay the others.
static void delayed_item(void *arg, int item, int thread)
{
    struct delayed *h = arg;
    while (item == 0 && atomic_load(&h->done) < h->items - 1)
        sched_yield();
    atomic_fetch_add(&h->done, 1);
}

START_TEST(other_threads_do_the_work_of_a_delayed_thread)
{
    struct thread_pool *pool;
    ck_assert_int_eq(thread_pool_open(2, NULL, true, &pool), STATUS_OK);
    for (int order = THREAD_POOL_STATIC; order <= THREAD_POOL_DYNAMIC; order++) {
        struct delayed h = {.items = 100};
        thread_pool_run(pool, (enum thread_pool_order)order, delayed_item, &h, h.items);
        ck_assert_int_eq(atomic_load(&h.done), h.items);
    }
    thread_pool_close(pool);
}
END_TEST

// Returns the CPU time of the process. Sleeping workers use none.
static double process_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

START_TEST(idle_workers_sleep_and_wake_up)
{
    struct thread_pool *pool;
    ck_assert_int_eq(thread_pool_open(3, NULL, true, &pool), STATUS_OK);
    struct count c = {.threads = 3};
    thread_pool_run(pool, THREAD_POOL_STATIC, count_item, &c, MAX_ITEMS);
    // Workers spin less and less between tries; a pool that never slept would never pass.
    double used = 1;
    for (int tries = 0; tries < 1000 && used > 1e-3; tries++) {
        double before = process_seconds();
        nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
        used = process_seconds() - before;
    }
    ck_assert_msg(used <= 1e-3, "%g s of processor time in 20 ms", used);
    thread_pool_run(pool, THREAD_POOL_STATIC, count_item, &c, MAX_ITEMS);
    for (int i = 0; i < MAX_ITEMS; i++)
        ck_assert_int_eq(c.times[i], 2);
    thread_pool_close(pool);
}
END_TEST

// Workers spin after a run, then sleep.
START_TEST(a_pool_is_awake_until_its_workers_sleep)
{
    struct thread_pool *pool;
    struct count c = {.threads = 2};
    ck_assert_int_eq(thread_pool_open(1, NULL, true, &pool), STATUS_OK);
    ck_assert(thread_pool_is_awake(pool)); // it has no workers
    thread_pool_close(pool);
    ck_assert_int_eq(thread_pool_open(2, NULL, true, &pool), STATUS_OK);
    for (int run = 0; run < 3; run++) {
        thread_pool_run(pool, THREAD_POOL_STATIC, count_item, &c, MAX_ITEMS);
        while (thread_pool_is_awake(pool)) // the test's time limit bounds this
            sched_yield();
    }
    thread_pool_close(pool);
}
END_TEST

START_TEST(a_pool_that_does_not_spin_runs_every_item)
{
    struct thread_pool *pool;
    ck_assert_int_eq(thread_pool_open(3, NULL, false, &pool), STATUS_OK);
    struct count c = {.threads = 3};
    for (int run = 0; run < RUNS; run++)
        thread_pool_run(pool, THREAD_POOL_STATIC, count_item, &c, MAX_ITEMS);
    for (int i = 0; i < MAX_ITEMS; i++)
        ck_assert_int_eq(c.times[i], RUNS);
    thread_pool_close(pool);
}
END_TEST

START_TEST(a_pool_may_close_without_a_run)
{
    for (int i = 0; i < 50; i++) {
        struct thread_pool *pool;
        ck_assert_int_eq(thread_pool_open(1 + i % 5, NULL, true, &pool), STATUS_OK);
        thread_pool_close(pool);
    }
    thread_pool_close(NULL);
}
END_TEST

START_TEST(every_item_is_in_one_range)
{
    for (int threads = 1; threads <= 9; threads++)
        for (int n = 1; n < 60; n++) {
            ck_assert_int_eq(thread_pool_range(n, 0, threads), 0);
            ck_assert_int_eq(thread_pool_range(n, threads, threads), n);
            for (int item = 0; item < n; item++) {
                int t = thread_pool_thread_of(n, item, threads);
                ck_assert_int_ge(item, thread_pool_range(n, t, threads));
                ck_assert_int_lt(item, thread_pool_range(n, t + 1, threads));
            }
        }
}
END_TEST

enum { THREADS = 3, GROUPS = 10, GROUP = 4 };

struct start {
    _Atomic int begun;
    _Atomic int first[THREADS]; // first item of the thread
    _Atomic int times[GROUPS * GROUP];
};

// Every thread waits for all others at its first item, so no thread can help another before.
static void start_item(void *arg, int item, int thread)
{
    struct start *s = arg;
    atomic_fetch_add(&s->times[item], 1);
    if (atomic_load(&s->first[thread]) >= 0) return;
    atomic_store(&s->first[thread], item);
    atomic_fetch_add(&s->begun, 1);
    while (atomic_load(&s->begun) < THREADS)
        sched_yield();
}

START_TEST(threads_start_with_their_own_range)
{
    struct thread_pool *pool;
    ck_assert_int_eq(thread_pool_open(THREADS, NULL, true, &pool), STATUS_OK);
    for (int size = 1; size <= GROUP; size++) {
        struct start s = {.first = {-1, -1, -1}};
        thread_pool_run_groups(pool, start_item, &s, GROUPS, size);
        for (int t = 0; t < THREADS; t++)
            ck_assert_int_eq(s.first[t], thread_pool_range(GROUPS, t, THREADS) * size);
        for (int i = 0; i < GROUPS * size; i++)
            ck_assert_int_eq(s.times[i], 1);
    }
    thread_pool_close(pool);
}
END_TEST

struct places {
    _Atomic int begun;
    int threads;
    cpu_set_t cores[CPU_SETSIZE]; // usable by each thread
};

static void place_item(void *arg, int item, int thread)
{
    struct places *p = arg;
    cores_usable(&p->cores[thread]);
    atomic_fetch_add(&p->begun, 1);
    while (atomic_load(&p->begun) < p->threads)
        sched_yield();
}

static void find_places(struct thread_pool *pool, int threads, struct places *p)
{
    p->threads = threads;
    p->begun = 0;
    thread_pool_run(pool, THREAD_POOL_STATIC, place_item, p, p->threads);
}

// Opens a pool with one thread on each usable core, in descending order. Returns the number of threads.
static int open_on_all_cores(struct thread_pool **pool_p, int cores[CPU_SETSIZE])
{
    cpu_set_t all;
    cores_usable(&all);
    int n = CPU_COUNT(&all);
    for (int t = 0; t < n; t++)
        cores[t] = cores_at(&all, n - 1 - t);
    ck_assert_int_eq(thread_pool_open(n, cores, true, pool_p), STATUS_OK);
    return n;
}

START_TEST(workers_are_bound_to_their_cores)
{
    static struct places p;
    int cores[CPU_SETSIZE];
    cpu_set_t all;
    cores_usable(&all);
    struct thread_pool *pool;
    int n = open_on_all_cores(&pool, cores);
    if (n < 2) return;
    find_places(pool, n, &p);
    ck_assert(CPU_EQUAL(&p.cores[0], &all));
    for (int t = 1; t < n; t++) {
        ck_assert_int_eq(CPU_COUNT(&p.cores[t]), 1);
        ck_assert_int_eq(cores_at(&p.cores[t], 0), cores[t]);
    }
    thread_pool_close(pool);
}
END_TEST

START_TEST(threads_without_cores_are_not_bound)
{
    static struct places p;
    cpu_set_t all;
    cores_usable(&all);
    struct thread_pool *pool;
    ck_assert_int_eq(thread_pool_open(3, NULL, true, &pool), STATUS_OK);
    find_places(pool, 3, &p);
    for (int t = 0; t < 3; t++)
        ck_assert(CPU_EQUAL(&p.cores[t], &all));
    thread_pool_close(pool);
}
END_TEST

static void busy_item(void *arg, int item, int thread)
{
    struct timespec from, now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &from);
    do
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    while ((now.tv_sec - from.tv_sec) * 1000000000 + now.tv_nsec - from.tv_nsec < 100000);
}

// Another process occupies the caller's core. After some runs a worker has that core.
START_TEST(the_caller_leaves_a_core_that_another_process_uses)
{
    static struct places p;
    int cores[CPU_SETSIZE];
    cpu_set_t all, first;
    cores_usable(&all);
    if (CPU_COUNT(&all) < 2) return;
    CPU_ZERO(&first);
    CPU_SET(cores_at(&all, CPU_COUNT(&all) - 1), &first);
    pid_t other = fork();
    if (other == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        sched_setaffinity(0, sizeof first, &first);
        for (;;)
            continue;
    }
    struct thread_pool *pool;
    int n = open_on_all_cores(&pool, cores);
    bool left = false;
    for (int tries = 0; tries < 2000 && !left; tries++) {
        thread_pool_run(pool, THREAD_POOL_STATIC, busy_item, NULL, 30 * n);
        find_places(pool, n, &p);
        for (int t = 1; t < n; t++)
            left = left || CPU_EQUAL(&p.cores[t], &first);
    }
    ck_assert(left);
    ck_assert(CPU_EQUAL(&p.cores[0], &all));
    thread_pool_close(pool);
    kill(other, SIGKILL);
    waitpid(other, NULL, 0);
}
END_TEST

SUITE("thread_pool")
{
    TIMEOUT(30);
    LOOP(every_item_runs_once, 1, 6);
    TEST(other_threads_do_the_work_of_a_delayed_thread);
    TEST(every_item_is_in_one_range);
    TEST(threads_start_with_their_own_range);
    TEST(workers_are_bound_to_their_cores);
    TEST(threads_without_cores_are_not_bound);
    TEST(the_caller_leaves_a_core_that_another_process_uses);
    TEST(idle_workers_sleep_and_wake_up);
    TEST(a_pool_is_awake_until_its_workers_sleep);
    TEST(a_pool_that_does_not_spin_runs_every_item);
    TEST(a_pool_may_close_without_a_run);
}
