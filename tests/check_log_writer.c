// SPDX-License-Identifier: Apache-2.0
// base/log_writer: a reader of standard error that stops reading blocks no thread. Lines that do not fit are dropped
// and counted. When a process ends, it loses no line that fits. Each test is a child process with a pipe as its
// standard error.
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lib/base/log.h"
#include "lib/base/log_writer.h"
#include "tests/suite.h"

enum { TEXT_BYTES = 250, THREADS = 4, LINES = 3000 };

struct child {
    pid_t pid;
    FILE *log;   // reads its standard error
    int reports; // reads what report() wrote
};

static int report_fd;

// Runs in the child: sends a number to the test to report that this point is reached.
static void report(uint64_t number)
{
    if (write(report_fd, &number, sizeof number) != sizeof number) _exit(9);
}

static struct child child_start(void (*run)(void))
{
    int log[2], reports[2];
    ck_assert_int_eq(pipe(log), 0);
    ck_assert_int_eq(pipe(reports), 0);
    pid_t pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        dup2(log[1], STDERR_FILENO);
        close(log[0]);
        close(log[1]);
        report_fd = reports[1];
        signal(SIGSEGV, SIG_DFL); // not the handlers of sanitizers
        signal(SIGABRT, SIG_DFL);
        log_writer_start(log_tell_dropped);
        run();
        exit(0);
    }
    close(log[1]);
    close(reports[1]);
    return (struct child){pid, fdopen(log[0], "r"), reports[0]};
}

static uint64_t child_reported(const struct child *child)
{
    uint64_t number;
    ck_assert_int_eq(read(child->reports, &number, sizeof number), sizeof number);
    return number;
}

static int child_end(struct child *child)
{
    int status;
    fclose(child->log);
    close(child->reports);
    ck_assert_int_eq(waitpid(child->pid, &status, 0), child->pid);
    return status;
}

static void log_numbers(int thread, int n)
{
    char text[TEXT_BYTES];
    memset(text, 'x', sizeof text);
    text[sizeof text - 1] = 0;
    for (int i = 0; i < n; i++)
        log_event(LOG_INFO, "numbered", LOG_FIELD("thread", thread), LOG_FIELD("number", i), LOG_FIELD("a", text),
                  LOG_FIELD("b", text), LOG_FIELD("c", text), LOG_FIELD("d", text), LOG_FIELD("e", text),
                  LOG_FIELD("f", text));
}

struct reading {
    int next[THREADS];
    uint64_t lines, dropped;
};

// Checks that the lines of a thread are whole and in order, and that log_lines_dropped with the number of missing lines
// follows a gap.
static void reading_line(struct reading *r, const char *line)
{
    int thread, number;
    unsigned long long dropped;
    const char *event = strstr(line, " numbered "), *told = strstr(line, " log_lines_dropped lines=");
    ck_assert_msg(line[strlen(line) - 1] == '\n', "'%s' is cut", line);
    if (told) {
        ck_assert_int_eq(sscanf(told, " log_lines_dropped lines=%llu", &dropped), 1);
        r->dropped += dropped;
        return;
    }
    ck_assert_msg(event != NULL, "'%s'", line);
    ck_assert_msg(sscanf(event, " numbered thread=%d number=%d", &thread, &number) == 2, "'%s'", line);
    ck_assert_uint_gt(strlen(event), 6 * (TEXT_BYTES - 1));
    ck_assert_int_ge(number, r->next[thread]);
    r->next[thread] = number + 1;
    r->lines++;
}

static struct reading read_to_end(const struct child *child)
{
    struct reading r = {0};
    char *line = NULL;
    size_t room = 0;
    while (getline(&line, &room, child->log) > 0)
        reading_line(&r, line);
    free(line);
    return r;
}

static void log_without_reader(void)
{
    log_numbers(0, LINES); // 4.5 MB: more than the pipe and the ring
    report(log_lines_dropped());
    log_flush(); // nobody reads the pipe: the flush ends at its time limit
    report(log_lines_dropped());
    // exit() flushes again: by now the test reads
}

START_TEST(a_reader_that_stops_blocks_no_thread)
{
    struct child child = child_start(log_without_reader);
    uint64_t dropped = child_reported(&child); // nothing has been read so far
    ck_assert_uint_gt(dropped, LINES / 4);
    ck_assert_uint_eq(child_reported(&child), dropped);
    struct reading r = read_to_end(&child);
    ck_assert_uint_eq(r.dropped, dropped);
    ck_assert_uint_eq(r.lines, LINES - dropped);
    ck_assert_int_eq(child_end(&child), 0);
}
END_TEST

static void *logging_thread(void *thread)
{
    log_numbers((int)(intptr_t)thread, LINES);
    return NULL;
}

static void log_from_threads(void)
{
    pthread_t threads[THREADS];
    for (intptr_t i = 0; i < THREADS; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, logging_thread, (void *)i), 0);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    report(log_lines_dropped());
}

START_TEST(lines_of_many_threads_are_whole_and_counted)
{
    struct child child = child_start(log_from_threads);
    struct reading r = read_to_end(&child);
    uint64_t dropped = child_reported(&child);
    ck_assert_uint_eq(r.dropped, dropped);
    ck_assert_uint_eq(r.lines + dropped, THREADS * LINES);
    ck_assert_int_eq(child_end(&child), 0);
}
END_TEST

enum { BEFORE_END = 200 }; // 0.3 MB: the ring holds them

static void log_and_fault(void)
{
    log_numbers(0, BEFORE_END);
    *(volatile char *)mmap(NULL, 1, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) = 1;
}

static void log_and_abort(void)
{
    log_numbers(0, BEFORE_END);
    abort();
}

static void log_and_exit(void)
{
    log_numbers(0, BEFORE_END);
}

static void log_and_leave(void)
{
    log_numbers(0, BEFORE_END);
    log_flush();
    _exit(0);
}

START_TEST(the_end_of_a_process_loses_no_line)
{
    static void (*const ends[])(void) = {log_and_exit, log_and_leave, log_and_abort, log_and_fault};
    static const int signals[] = {0, 0, SIGABRT, SIGSEGV};
    struct child child = child_start(ends[_i]);
    struct reading r = read_to_end(&child);
    ck_assert_uint_eq(r.lines, BEFORE_END);
    int status = child_end(&child);
    ck_assert_int_eq(WIFSIGNALED(status) ? WTERMSIG(status) : 0, signals[_i]);
}
END_TEST

static void log_after_fork(void)
{
    log_numbers(0, 1);
    log_flush();
    pid_t pid = fork();
    if (pid == 0) {
        log_numbers(1, 1);
        _exit(0);
    }
    waitpid(pid, NULL, 0);
    log_numbers(2, 1);
}

START_TEST(a_child_of_fork_logs)
{
    struct child child = child_start(log_after_fork);
    struct reading r = read_to_end(&child);
    for (int thread = 0; thread < 3; thread++)
        ck_assert_int_eq(r.next[thread], 1);
    ck_assert_int_eq(child_end(&child), 0);
}
END_TEST

SUITE("log writer")
{
    TEST(a_reader_that_stops_blocks_no_thread);
    TEST(lines_of_many_threads_are_whole_and_counted);
    LOOP(the_end_of_a_process_loses_no_line, 0, 4);
    TEST(a_child_of_fork_logs);
}
