// SPDX-License-Identifier: Apache-2.0
// engine/: roll calls name the rank that others wait for, and a watchdog ends a stuck process with that name.
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "engine/watchdog.h"
#include "lib/base/log.h"
#include "tests/group_ranks.h"
#include "tests/suite.h"

enum { PATIENCE_MS = 100, ENOUGH_MS = 300000 };

static void *open_roll_call(void *arg)
{
    struct rank *r = arg;
    r->status = r->mute ? wakeup_open(r->comm, &r->wakeup) : roll_call_open(r->comm, &r->roll_call);
    return NULL;
}

// Opens the roll calls. Afterwards the test's thread calls the functions of all ranks.
static void open_roll_calls(struct rank *ranks, int mute)
{
    if (mute >= 0) ranks[mute].mute = true;
    start_ranks(ranks, RANKS, open_roll_call, open_roll_call);
    for (int r = 0; r < RANKS; r++) {
        pthread_join(ranks[r].thread, NULL);
        ck_assert_int_eq(ranks[r].status, STATUS_OK);
    }
}

static void close_roll_calls(struct rank *ranks)
{
    for (int r = 0; r < RANKS; r++) {
        if (ranks[r].roll_call) roll_call_close(ranks[r].roll_call);
        if (ranks[r].wakeup) wakeup_close(ranks[r].wakeup);
        ranks[r].comm->ops->close(ranks[r].comm);
    }
}

static const char *name_of(int rank)
{
    static char name[128];
    char host[65] = "";
    gethostname(host, sizeof host - 1);
    snprintf(name, sizeof name, "rank %d (host %s, pid %d)", rank, host, (int)getpid());
    return name;
}

static void check_answer(struct roll_call *roll_call, int patience_ms, enum roll_call_result result, const char *format,
                         int rank)
{
    char sentence[ROLL_CALL_SENTENCE_MAX], expected[ROLL_CALL_SENTENCE_MAX];
    ck_assert_int_eq(roll_call_ask(roll_call, patience_ms, sentence), result);
    snprintf(expected, sizeof expected, format, name_of(rank));
    ck_assert_str_eq(sentence, expected);
}

static void check_answers(const struct rank *ranks, enum roll_call_result result, const char *format, int rank)
{
    for (int r = 0; r < RANKS; r++)
        check_answer(ranks[r].roll_call, ENOUGH_MS, result, format, rank);
}

START_TEST(a_roll_call_names_the_rank_that_others_wait_for)
{
    struct rank ranks[RANKS] = {0};
    open_roll_calls(ranks, -1);
    for (int pass = 0; pass < 3; pass++) { // the first is the opening
        for (int r = 0; r < RANKS; r++)
            roll_call_enter(ranks[r].roll_call);
        check_answers(ranks, ROLL_CALL_COMPLETE, "all 3 ranks answer and are at work", 0);
        for (int late = 0; late < RANKS; late++) {
            for (int r = 0; r < RANKS; r++)
                ranks[r].comm->waits = r != late;
            check_answers(ranks, ROLL_CALL_AWAITED, "all 3 ranks answer, the others wait for %s", late);
        }
        for (int r = 0; r < RANKS; r++)
            ranks[r].comm->waits = true;
        check_answers(ranks, ROLL_CALL_COMPLETE, "all 3 ranks answer and wait for each other: a device or a link hangs",
                      0);
        for (int r = 0; r < RANKS; r++)
            ranks[r].comm->waits = false;
        roll_call_leave(ranks[1].roll_call); // this rank has finished the pass, or has not begun the next
        ranks[0].comm->waits = true;
        check_answers(ranks, ROLL_CALL_AWAITED, "all 3 ranks answer, the others wait for %s", 2);
        roll_call_leave(ranks[0].roll_call);
        roll_call_leave(ranks[2].roll_call);
        roll_call_enter(ranks[0].roll_call);
        roll_call_enter(ranks[1].roll_call);
        ranks[1].comm->waits = true;
        check_answers(ranks, ROLL_CALL_AWAITED, "all 3 ranks answer, the others wait for %s", 2);
        roll_call_leave(ranks[0].roll_call);
        roll_call_leave(ranks[1].roll_call);
        roll_call_enter(ranks[2].roll_call);
        roll_call_leave(ranks[2].roll_call);
        ranks[0].comm->waits = ranks[1].comm->waits = false;
    }
    close_roll_calls(ranks);
}
END_TEST

START_TEST(a_roll_call_names_the_rank_that_does_not_answer)
{
    struct rank ranks[RANKS] = {0};
    open_roll_calls(ranks, _i);
    for (int r = 0; r < RANKS; r++)
        if (r != _i) check_answer(ranks[r].roll_call, PATIENCE_MS, ROLL_CALL_SILENT, "%s does not answer", _i);
    close_roll_calls(ranks);
}
END_TEST

START_TEST(a_roll_call_names_the_rank_that_is_gone)
{
    struct rank ranks[RANKS] = {0};
    open_roll_calls(ranks, -1);
    roll_call_close(ranks[_i].roll_call);
    ranks[_i].roll_call = NULL;
    for (int r = 0; r < RANKS; r++)
        if (r != _i) check_answer(ranks[r].roll_call, ENOUGH_MS, ROLL_CALL_SILENT, "%s is gone", _i);
    close_roll_calls(ranks);
}
END_TEST

static void read_gpu(void *arg, struct gpu_report *report)
{
    *report = *(const struct gpu_report *)arg;
    memset(report->address, 'a', sizeof report->address); // no terminating NUL: the leader must not need it
}

// Reads reports until the rank's report has this temperature.
static void await_temperature(struct roll_call *leader, int rank, uint32_t celsius, struct gpu_report *reports)
{
    do {
        roll_call_read_gpus(leader, reports);
        usleep(1000);
    } while (reports[rank].temperature_celsius != celsius);
}

START_TEST(the_leader_reads_what_followers_know_of_their_gpus)
{
    struct rank ranks[RANKS] = {0};
    struct gpu_report served[RANKS] = {0}, reports[RANKS] = {0};
    open_roll_calls(ranks, -1);
    struct roll_call *leader = ranks[0].roll_call;
    roll_call_read_gpus(leader, reports);
    ck_assert(!reports[1].known);
    ck_assert(!*reports[1].address); // it is not served yet
    for (int r = 1; r < RANKS; r++) {
        served[r] = (struct gpu_report){.known = true, .temperature_celsius = (uint32_t)(50 + r), .xid_errors = 7};
        snprintf(served[r].trouble, sizeof served[r].trouble, "of rank %d", r);
        roll_call_serve_gpu(ranks[r].roll_call, read_gpu, &served[r]);
    }
    for (int r = 1; r < RANKS; r++) {
        await_temperature(leader, r, (uint32_t)(50 + r), reports);
        ck_assert(reports[r].known);
        ck_assert_uint_eq(reports[r].xid_errors, 7);
        ck_assert_str_eq(reports[r].trouble, served[r].trouble);
        ck_assert_uint_eq(strlen(reports[r].address), GPU_ADDRESS_MAX - 1);
    }
    check_answers(ranks, ROLL_CALL_COMPLETE, "all 3 ranks answer and are at work", 0); // roll calls go on
    close_roll_calls(ranks);
}
END_TEST

// A rank reads nothing, like a stopped process. Its socket does not fill up, because the rank is asked only once.
START_TEST(a_silent_follower_is_asked_for_its_gpu_once)
{
    struct rank ranks[RANKS] = {0};
    struct gpu_report served = {.temperature_celsius = 60}, reports[RANKS];
    open_roll_calls(ranks, 2);
    roll_call_serve_gpu(ranks[1].roll_call, read_gpu, &served);
    for (int i = 0; i < 2000; i++)
        roll_call_read_gpus(ranks[0].roll_call, reports);
    await_temperature(ranks[0].roll_call, 1, 60, reports);
    ck_assert_uint_eq(reports[2].temperature_celsius, 0);
    int asked_bytes = 0;
    ck_assert_int_eq(ioctl(wakeup_socket(ranks[2].wakeup, 0), FIONREAD, &asked_bytes), 0);
    ck_assert_int_gt(asked_bytes, 0);
    ck_assert_int_lt(asked_bytes, 2 * ROLL_CALL_SENTENCE_MAX); // one frame
    close_roll_calls(ranks);
}
END_TEST

static atomic_bool gpu_is_stuck;

static void read_stuck_gpu(void *arg, struct gpu_report *report)
{
    while (gpu_is_stuck)
        usleep(1000);
    read_gpu(arg, report);
}

// Reads reports until rank 1's numbers are known, or unknown if `first_known` is false, and rank 2's are known.
static void await_known(struct roll_call *leader, bool first_known, struct gpu_report *reports)
{
    do {
        roll_call_read_gpus(leader, reports);
        usleep(1000);
    } while (reports[1].known != first_known || !reports[2].known);
}

START_TEST(numbers_of_a_follower_that_stops_reporting_are_not_known_any_more)
{
    struct rank ranks[RANKS] = {0};
    struct gpu_report served = {.known = true, .trouble = "a fan is broken"}, reports[RANKS];
    const int age_ms = roll_call_gpu_age_ms;
    roll_call_gpu_age_ms = 500;
    open_roll_calls(ranks, -1);
    roll_call_serve_gpu(ranks[1].roll_call, read_stuck_gpu, &served);
    roll_call_serve_gpu(ranks[2].roll_call, read_gpu, &served);
    await_known(ranks[0].roll_call, true, reports);
    gpu_is_stuck = true;
    await_known(ranks[0].roll_call, false, reports);
    ck_assert_str_eq(reports[1].trouble, "a fan is broken"); // the rank still has this trouble
    gpu_is_stuck = false;
    await_known(ranks[0].roll_call, true, reports);
    close_roll_calls(ranks);
    roll_call_gpu_age_ms = age_ms;
}
END_TEST

static void *call_often(void *arg)
{
    struct rank *r = arg;
    char sentence[ROLL_CALL_SENTENCE_MAX];
    for (int i = 0; i < 300; i++)
        if (roll_call_ask(r->roll_call, ENOUGH_MS, sentence) == ROLL_CALL_SILENT) r->status = STATUS_UNAVAILABLE;
    return NULL;
}

START_TEST(concurrent_roll_calls_are_all_answered)
{
    struct rank ranks[RANKS] = {0};
    open_roll_calls(ranks, -1);
    for (int r = 0; r < RANKS; r++)
        ck_assert_int_eq(pthread_create(&ranks[r].thread, NULL, call_often, &ranks[r]), 0);
    for (int r = 0; r < RANKS; r++) {
        pthread_join(ranks[r].thread, NULL);
        ck_assert_int_eq(ranks[r].status, STATUS_OK);
    }
    close_roll_calls(ranks);
}
END_TEST

// ---- the watchdog ----

static int stuck_rows; // 0: the work may take any time
static atomic_uint_least64_t no_progress;

static void be_stuck(void)
{
    static struct rank ranks[RANKS];
    open_roll_calls(ranks, 2);
    struct watchdog *watchdog = watchdog_start(ranks[0].roll_call, &no_progress, false);
    for (int i = 0; i < 3; i++) { // no effect without a timeout, and between passes
        watchdog_enter_pass(watchdog, 1);
        watchdog_leave(watchdog);
    }
    watchdog_set_timeout(watchdog, 20);
    if (stuck_rows) {
        watchdog_enter_pass(watchdog, stuck_rows);
    } else {
        watchdog_enter_open_ended(watchdog);
    }
    for (;;)
        pause();
}

START_TEST(a_stuck_step_ends_the_process_and_names_the_missing_rank)
{
    stuck_rows = 7;
    char *words = last_words(be_stuck);
    ck_assert_msg(strstr(words, "step_stuck rows=7 timeout_ms=20 reason=\"rank 2 (host ") != NULL, "%s", words);
    ck_assert_msg(strstr(words, ") does not answer\"") != NULL, "%s", words);
    stuck_rows = 0;
    words = last_words(be_stuck);
    ck_assert_msg(strstr(words, "group_stuck reason=\"rank 2 (host ") != NULL, "%s", words);
}
END_TEST

START_TEST(a_watchdog_ignores_quick_steps_and_waits_while_all_answer)
{
    struct rank ranks[RANKS] = {0};
    open_roll_calls(ranks, -1);
    struct watchdog *watchdog = watchdog_start(ranks[1].roll_call, &no_progress, false);
    watchdog_set_timeout(watchdog, 60000);
    for (int i = 1; i < 1000; i++) {
        watchdog_enter_pass(watchdog, i);
        watchdog_leave(watchdog);
    }
    watchdog_set_timeout(watchdog, 1);
    watchdog_enter_open_ended(watchdog);
    for (int i = 0; i < 1000; i++)
        check_answer(ranks[0].roll_call, ENOUGH_MS, ROLL_CALL_COMPLETE, "all 3 ranks answer and are at work", 0);
    watchdog_leave(watchdog);
    watchdog_stop(watchdog);
    close_roll_calls(ranks);
}
END_TEST

START_TEST(a_roll_call_adds_up_the_progress_of_all_ranks)
{
    struct rank ranks[RANKS] = {0};
    open_roll_calls(ranks, -1);
    for (int r = 0; r < RANKS; r++)
        ranks[r].comm->progress = 10 + (unsigned)r;
    check_answer(ranks[0].roll_call, ENOUGH_MS, ROLL_CALL_COMPLETE, "all 3 ranks answer and are at work", 0);
    ck_assert_uint_eq(roll_call_progress(ranks[0].roll_call), 33);
    ranks[2].comm->progress = 100;
    check_answer(ranks[1].roll_call, ENOUGH_MS, ROLL_CALL_COMPLETE, "all 3 ranks answer and are at work", 0);
    ck_assert_uint_eq(roll_call_progress(ranks[0].roll_call), 121);
    ck_assert_uint_eq(roll_call_progress(ranks[1].roll_call), 121);
    close_roll_calls(ranks);
}
END_TEST

static void wait_for_a_stage(void)
{
    static struct rank ranks[RANKS];
    open_roll_calls(ranks, -1);
    struct watchdog *watchdog = watchdog_start(ranks[0].roll_call, &no_progress, true);
    ranks[0].comm->waits = true;
    watchdog_set_timeout(watchdog, 20);
    watchdog_enter_pass(watchdog, 3);
    for (;;)
        pause();
}

START_TEST(a_pass_with_stages_ends_if_no_rank_makes_progress)
{
    const char *words = last_words(wait_for_a_stage);
    ck_assert_msg(strstr(words, "step_stuck rows=3 timeout_ms=20 reason=\"all 3 ranks answer") != NULL, "%s", words);
}
END_TEST

SUITE("roll_call")
{
    log_setup("test", LOG_ERROR);
    TIMEOUT(30);
    TEST(a_roll_call_names_the_rank_that_others_wait_for);
    LOOP(a_roll_call_names_the_rank_that_does_not_answer, 0, RANKS);
    LOOP(a_roll_call_names_the_rank_that_is_gone, 0, RANKS);
    TEST(concurrent_roll_calls_are_all_answered);
    TEST(the_leader_reads_what_followers_know_of_their_gpus);
    TEST(a_silent_follower_is_asked_for_its_gpu_once);
    TEST(numbers_of_a_follower_that_stops_reporting_are_not_known_any_more);
    TEST(a_stuck_step_ends_the_process_and_names_the_missing_rank);
    TEST(a_watchdog_ignores_quick_steps_and_waits_while_all_answer);
    TEST(a_roll_call_adds_up_the_progress_of_all_ranks);
    TEST(a_pass_with_stages_ends_if_no_rank_makes_progress);
}
