// SPDX-License-Identifier: Apache-2.0
// router/front/intake_pool: bounds, order, cancelling, draining. Run it under -fsanitize=thread too.
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "lib/base/mem.h"
#include "router/front/request/intake_pool.h"
#include "tests/suite.h"

enum { LONG_BYTES = 1 << 20, JOBS_MAX = 100, LOG_BYTES = 4096 };

struct test_job {
    struct intake_job job; // first
    char name[32];
    bool gate; // blocks until the gate is open
};

static struct intake_pool *pool;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
// Guarded by the mutex:
static char log_text[LOG_BYTES]; // names of the jobs that ran, in order; a minus marks dropped ones
static int ended, blocked;
static bool open_gate;
static int successors; // jobs that are still to be added by running jobs named "new"

static enum status add_job(const char *tenant, const char *name, size_t bytes, bool gate, struct intake_owner *owner);

static void job_run(struct intake_job *base, bool dropped)
{
    struct test_job *job = (struct test_job *)base;
    pthread_mutex_lock(&mutex);
    snprintf(log_text + strlen(log_text), LOG_BYTES - strlen(log_text), "%s%s ", dropped ? "-" : "", job->name);
    if (job->gate && !dropped) {
        blocked++;
        pthread_cond_broadcast(&changed);
        while (!open_gate)
            pthread_cond_wait(&changed, &mutex);
        blocked--;
    }
    if (!strcmp(job->name, "new") && successors-- > 0)
        ck_assert_int_eq(add_job("a", "new", LONG_BYTES, false, NULL), STATUS_OK);
    ended++;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&mutex);
    free(job);
}

static enum status add_job(const char *tenant, const char *name, size_t bytes, bool gate, struct intake_owner *owner)
{
    struct test_job *job = mem_alloc(sizeof *job);
    *job = (struct test_job){.job = {.run = job_run, .tenant = tenant, .bytes = bytes}, .gate = gate};
    snprintf(job->name, sizeof job->name, "%s", name);
    enum status status = intake_pool_add(pool, &job->job, owner);
    if (status != STATUS_OK) free(job);
    return status;
}

static void add(const char *tenant, const char *name, size_t bytes)
{
    ck_assert_msg(add_job(tenant, name, bytes, false, NULL) == STATUS_OK, "%s", status_message());
}

static void open_pool(int threads, size_t max_bytes, int max_jobs, int share)
{
    *log_text = 0;
    ended = blocked = 0;
    open_gate = false;
    pool = intake_pool_open(&(struct intake_pool_options){threads, max_bytes, max_jobs, share});
}

static void open_large_pool(int threads)
{
    open_pool(threads, JOBS_MAX * LONG_BYTES, JOBS_MAX, 0);
}

// Occupies a thread with a job of `bytes` until the gate opens.
static void block_thread(size_t bytes)
{
    pthread_mutex_lock(&mutex);
    int before = blocked;
    pthread_mutex_unlock(&mutex);
    ck_assert_int_eq(add_job("gate", "gate", bytes, true, NULL), STATUS_OK);
    pthread_mutex_lock(&mutex);
    while (blocked == before)
        pthread_cond_wait(&changed, &mutex);
    pthread_mutex_unlock(&mutex);
}

static void let_go(void)
{
    pthread_mutex_lock(&mutex);
    open_gate = true;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&mutex);
}

static void wait_ended(int n)
{
    pthread_mutex_lock(&mutex);
    while (ended < n)
        pthread_cond_wait(&changed, &mutex);
    pthread_mutex_unlock(&mutex);
}

static void close_pool(void)
{
    if (!pool) return; // the test has closed it
    intake_pool_close(pool);
    intake_pool_free(pool);
    pool = NULL;
}

START_TEST(short_jobs_do_not_wait_for_long_ones)
{
    open_large_pool(2);
    block_thread(LONG_BYTES); // the only thread for long jobs
    for (int i = 0; i < 10; i++)
        add("", "long", LONG_BYTES);
    for (int i = 0; i < 10; i++)
        add("", "short", 1000);
    wait_ended(10); // short ones: no thread for others is free
    ck_assert_int_eq(intake_pool_waiting(pool), 10);
    ck_assert(!intake_pool_idle(pool));
    let_go();
    wait_ended(21);
    while (!intake_pool_idle(pool))
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
}
END_TEST

START_TEST(one_thread_alternates_between_long_and_short)
{
    open_large_pool(1);
    block_thread(1);
    for (int i = 0; i < 3; i++)
        add("", "long", LONG_BYTES);
    for (int i = 0; i < 3; i++)
        add("", "short", 1000);
    let_go();
    wait_ended(7);
    ck_assert_ptr_nonnull(strstr(log_text, "long short long short"));
}
END_TEST

START_TEST(of_one_tenant_the_shortest_goes_first_but_a_long_one_is_not_passed_forever)
{
    open_large_pool(1);
    block_thread(LONG_BYTES);
    add("a", "c", 3 * LONG_BYTES);
    add("a", "b", 2 * LONG_BYTES);
    add("a", "a", LONG_BYTES);
    let_go();
    wait_ended(4);
    ck_assert_str_eq(log_text, "gate a b c ");
    close_pool();

    open_large_pool(1);
    block_thread(LONG_BYTES);
    add("a", "old", 3 * LONG_BYTES);
    successors = 4; // each is added when the one before it runs
    add("a", "new", LONG_BYTES);
    let_go();
    wait_ended(7);
    ck_assert_str_eq(log_text, "gate new new old new new new ");
}
END_TEST

START_TEST(tenants_take_turns_by_bytes)
{
    open_large_pool(1);
    block_thread(LONG_BYTES);
    for (int i = 0; i < 4; i++)
        add("greedy", "g", LONG_BYTES);
    add("small", "s", LONG_BYTES);
    add("small", "s", LONG_BYTES);
    let_go();
    wait_ended(7);
    ck_assert_str_eq(log_text, "gate g s g s g g ");
}
END_TEST

START_TEST(bytes_and_jobs_are_bounded)
{
    open_pool(1, 4 * LONG_BYTES, 5, 0);
    block_thread(LONG_BYTES); // running jobs count
    add("", "fits", 3 * LONG_BYTES);
    ck_assert_int_eq(add_job("", "too much", 1, false, NULL), STATUS_EXHAUSTED);
    ck_assert_str_eq(status_message(),
                     "2 prompts of 4194304 bytes wait to be tokenised, at most 5 of 4194304 bytes are "
                     "allowed: try again later");
    let_go();
    wait_ended(2);
    while (!intake_pool_idle(pool))
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    add("", "larger than the bound, alone", 5 * LONG_BYTES);
    wait_ended(3);
    close_pool();

    open_pool(1, 4 * LONG_BYTES, 5, 0);
    block_thread(1);
    for (int i = 0; i < 5; i++)
        add("", "fits", 1);
    ck_assert_int_eq(add_job("", "one too many", 1, false, NULL), STATUS_EXHAUSTED);
    let_go();
}
END_TEST

START_TEST(a_tenant_leaves_room_for_others)
{
    open_pool(1, 100, 1000, 80);
    block_thread(1);
    int greedy = 0, other = 0;
    while (add_job("greedy", "g", 1, false, NULL) == STATUS_OK)
        greedy++;
    ck_assert_ptr_nonnull(strstr(status_message(), "of this tenant wait"));
    ck_assert_int_eq(greedy, 79); // 80 % of the 99 that are free
    while (add_job("other", "o", 1, false, NULL) == STATUS_OK)
        other++;
    ck_assert_int_eq(other, 16); // 80 % of the rest
    let_go();
}
END_TEST

// The bound keeps their memory from growing with the number of threads.
START_TEST(long_jobs_run_together_within_a_bound_while_short_ones_run)
{
    enum { BIG = INTAKE_RUNNING_BYTES / 3 };
    open_pool(8, JOBS_MAX * BIG, JOBS_MAX, 0);
    for (int i = 0; i < 3; i++)
        block_thread(BIG);
    for (int i = 0; i < 3; i++)
        ck_assert_int_eq(add_job("gate", "more", BIG, true, NULL), STATUS_OK);
    for (int i = 0; i < 50; i++)
        add("", "short", 1000);
    wait_ended(50);
    ck_assert_int_eq(blocked, 3);
    ck_assert_int_eq(intake_pool_waiting(pool), 3);
    let_go();
    wait_ended(56);
}
END_TEST

START_TEST(a_job_above_the_bound_runs_alone_and_is_not_passed)
{
    struct intake_owner owner = {0};
    open_pool(4, 4 * INTAKE_RUNNING_BYTES, JOBS_MAX, 0);
    block_thread(LONG_BYTES);
    add("a", "big", 2 * INTAKE_RUNNING_BYTES);
    add("b", "small", LONG_BYTES);
    for (int i = 0; i < 50; i++)
        add("", "", 1000);
    wait_ended(50);
    ck_assert_int_eq(intake_pool_waiting(pool), 2);
    let_go();
    wait_ended(53);
    ck_assert_ptr_nonnull(strstr(log_text, "big small"));
    close_pool();

    open_pool(4, 4 * INTAKE_RUNNING_BYTES, JOBS_MAX, 0);
    block_thread(LONG_BYTES);
    ck_assert_int_eq(add_job("a", "big", 2 * INTAKE_RUNNING_BYTES, false, &owner), STATUS_OK);
    add("b", "small", LONG_BYTES);
    for (int i = 0; i < 50; i++)
        add("", "", 1000);
    wait_ended(50);
    intake_pool_cancel(pool, &owner); // the job that waited for it starts
    wait_ended(52);
    let_go();
    wait_ended(53);
}
END_TEST

START_TEST(cancelled_jobs_are_dropped_and_their_bytes_are_free)
{
    struct intake_owner mine = {0}, theirs = {0};
    open_pool(2, 4 * LONG_BYTES, JOBS_MAX, 0);
    block_thread(LONG_BYTES);
    ck_assert_int_eq(add_job("a", "m1", LONG_BYTES, false, &mine), STATUS_OK);
    ck_assert_int_eq(add_job("a", "t", LONG_BYTES, false, &theirs), STATUS_OK);
    ck_assert_int_eq(add_job("b", "m2", LONG_BYTES, false, &mine), STATUS_OK);
    ck_assert_int_eq(add_job("b", "full", LONG_BYTES, false, &mine), STATUS_EXHAUSTED);
    intake_pool_cancel(pool, &mine);
    ck_assert_int_eq(ended, 2); // on this thread
    ck_assert_ptr_nonnull(strstr(log_text, "-m1"));
    ck_assert_ptr_nonnull(strstr(log_text, "-m2"));
    ck_assert_ptr_null(mine.jobs);
    intake_pool_cancel(pool, &mine);
    ck_assert_int_eq(add_job("b", "m3", 2 * LONG_BYTES, false, &mine), STATUS_OK);
    let_go();
    wait_ended(5);
    ck_assert_ptr_null(strstr(log_text, "-t"));
}
END_TEST

START_TEST(closing_drops_what_waits)
{
    open_large_pool(2);
    block_thread(LONG_BYTES);
    for (int i = 0; i < 10; i++)
        add(i % 2 ? "a" : "b", "long", LONG_BYTES);
    let_go();
    close_pool();
    ck_assert_int_eq(ended, 11);
}
END_TEST

// --- many threads at once

static atomic_int storm_ended;

static void storm_run(struct intake_job *job, bool dropped)
{
    atomic_fetch_add(&storm_ended, 1);
    free(job);
}

static void *storm_add(void *argument)
{
    static const char *const tenants[] = {"", "a", "b"};
    struct intake_owner owner = {0};
    int refused = 0;
    for (int i = 0; i < 3000; i++) {
        struct intake_job *job = mem_alloc(sizeof *job);
        *job = (struct intake_job){
            .run = storm_run, .tenant = tenants[i % 3], .bytes = i % 5 ? (size_t)i : (size_t)i + 9 * LONG_BYTES};
        if (intake_pool_add(pool, job, i % 2 ? &owner : NULL) != STATUS_OK) {
            free(job);
            refused++;
        }
        if (i % 100 == 0) intake_pool_cancel(pool, &owner);
    }
    intake_pool_cancel(pool, &owner);
    atomic_fetch_add(&storm_ended, refused);
    return NULL;
}

START_TEST(every_job_ends_once_under_load)
{
    pthread_t threads[4];
    open_pool(3, 64 * LONG_BYTES, 1000, 80);
    atomic_store(&storm_ended, 0);
    for (int i = 0; i < 4; i++)
        pthread_create(&threads[i], NULL, storm_add, NULL);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    close_pool();
    ck_assert_int_eq(atomic_load(&storm_ended), 4 * 3000);
}
END_TEST

SUITE("intake pool")
{
    TIMEOUT(30);
    FIXTURE(NULL, close_pool);
    TEST(short_jobs_do_not_wait_for_long_ones);
    TEST(one_thread_alternates_between_long_and_short);
    TEST(of_one_tenant_the_shortest_goes_first_but_a_long_one_is_not_passed_forever);
    TEST(tenants_take_turns_by_bytes);
    TEST(bytes_and_jobs_are_bounded);
    TEST(a_tenant_leaves_room_for_others);
    TEST(long_jobs_run_together_within_a_bound_while_short_ones_run);
    TEST(a_job_above_the_bound_runs_alone_and_is_not_passed);
    TEST(cancelled_jobs_are_dropped_and_their_bytes_are_free);
    TEST(closing_drops_what_waits);
    TEST(every_job_ends_once_under_load);
}
