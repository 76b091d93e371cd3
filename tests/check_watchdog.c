// SPDX-License-Identifier: Apache-2.0
// The watchdog of one rank, and what the leader learns about a follower that ends. check_engine tests the watchdog of a
// group.
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/roll_call.h"
#include "engine/watchdog.h"
#include "lib/base/clock.h"
#include "tests/suite.h"

static atomic_uint_least64_t progress;

// Runs a function in a child process. Returns its exit code, and its log in `words`.
static int run_child(void (*run)(void), char *words, size_t size)
{
    int fds[2], status;
    ck_assert_int_eq(pipe(fds), 0);
    pid_t child = fork();
    ck_assert_int_ge(child, 0);
    if (child == 0) {
        dup2(fds[1], STDERR_FILENO);
        run();
        _exit(0);
    }
    close(fds[1]);
    size_t length = 0;
    for (ssize_t n; length < size - 1 && (n = read(fds[0], words + length, size - 1 - length)) > 0;)
        length += (size_t)n;
    words[length] = 0;
    close(fds[0]);
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void hang_alone(void)
{
    struct watchdog *watchdog = watchdog_start(NULL, &progress, false);
    watchdog_set_timeout(watchdog, 20);
    watchdog_enter_open_ended(watchdog); // opening a model may take any time
    usleep(100000);
    watchdog_leave(watchdog);
    watchdog_enter_pass(watchdog, 5);
    for (;;)
        pause();
}

START_TEST(a_hung_pass_of_one_rank_ends_the_process)
{
    char words[4096];
    ck_assert_int_eq(run_child(hang_alone, words, sizeof words), 1);
    ck_assert_msg(strstr(words, "step_stuck rows=5 timeout_ms=20 reason=\"the pass makes no progress"), "%s", words);
}
END_TEST

static void hang_in_sampling(void)
{
    struct watchdog *watchdog = watchdog_start(NULL, &progress, false);
    watchdog_set_timeout(watchdog, 20);
    watchdog_enter_pass(watchdog, 5);
    watchdog_enter_sampling(watchdog);
    for (;;)
        pause();
}

START_TEST(sampling_that_hangs_ends_the_process)
{
    char words[4096];
    ck_assert_int_eq(run_child(hang_in_sampling, words, sizeof words), 1);
    ck_assert_msg(strstr(words, "step_stuck rows=5 timeout_ms=20 reason=\"sampling"), "%s", words);
}
END_TEST

// Runs a pass of more than twice the timeout.
static void work_slowly(void)
{
    enum { TIMEOUT_MS = 700 };
    struct watchdog *watchdog = watchdog_start(NULL, &progress, false);
    watchdog_set_timeout(watchdog, TIMEOUT_MS);
    watchdog_enter_pass(watchdog, 5);
    for (int64_t until_us = clock_now_us() + 2200 * TIMEOUT_MS; clock_now_us() < until_us; usleep(1000))
        atomic_fetch_add(&progress, 1);
    watchdog_leave(watchdog);
    watchdog_stop(watchdog);
}

START_TEST(a_long_pass_that_makes_progress_is_not_ended)
{
    char words[4096];
    ck_assert_msg(run_child(work_slowly, words, sizeof words) == 0, "%s", words);
}
END_TEST

// Runs short passes in a process that is stopped for longer than the timeout.
static void work_with_a_stop(void)
{
    enum { TIMEOUT_MS = 2000, PASS_US = 100000 };
    pid_t self = getpid();
    struct watchdog *watchdog = watchdog_start(NULL, &progress, false);
    watchdog_set_timeout(watchdog, TIMEOUT_MS);
    if (fork() == 0) {
        usleep(9 * PASS_US); // after the watchdog has examined an earlier pass
        kill(self, SIGSTOP);
        usleep(1000 * (TIMEOUT_MS + 1500)); // for the watchdog a thread may wait up to a second
        kill(self, SIGCONT);
        _exit(0);
    }
    for (int64_t until_us = clock_now_us() + 60 * PASS_US; clock_now_us() < until_us; watchdog_leave(watchdog)) {
        watchdog_enter_pass(watchdog, 5);
        for (int i = 0; i < 20; i++)
            usleep(PASS_US / 20);
    }
    watchdog_stop(watchdog);
}

START_TEST(a_process_that_was_stopped_continues)
{
    char words[4096];
    ck_assert_msg(run_child(work_with_a_stop, words, sizeof words) == 0, "%s", words);
}
END_TEST

static void hang_in_check(void)
{
    struct watchdog *watchdog = watchdog_start(NULL, &progress, false);
    watchdog_enter_check(watchdog, 20); // has its own limit, although passes have none
    for (;;)
        pause();
}

START_TEST(a_check_that_hangs_ends_the_process)
{
    char words[4096];
    ck_assert_int_eq(run_child(hang_in_check, words, sizeof words), 1);
    ck_assert_msg(strstr(words, "check_stuck timeout_ms=20"), "%s", words);
}
END_TEST

static void hang_in_close(void)
{
    struct watchdog *watchdog = watchdog_start(NULL, &progress, false);
    watchdog_enter_close(watchdog, 20);
    for (;;)
        pause();
}

START_TEST(a_model_that_does_not_close_ends_the_process)
{
    char words[4096];
    ck_assert_int_eq(run_child(hang_in_close, words, sizeof words), 1);
    ck_assert_msg(strstr(words, "close_stuck timeout_ms=20 reason=\"closing the model makes no progress"), "%s", words);
}
END_TEST

SUITE("watchdog")
{
    TIMEOUT(60);
    TEST(a_hung_pass_of_one_rank_ends_the_process);
    TEST(sampling_that_hangs_ends_the_process);
    TEST(a_long_pass_that_makes_progress_is_not_ended);
    TEST(a_process_that_was_stopped_continues);
    TEST(a_check_that_hangs_ends_the_process);
    TEST(a_model_that_does_not_close_ends_the_process);
}
