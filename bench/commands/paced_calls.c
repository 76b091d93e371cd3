// SPDX-License-Identifier: Apache-2.0
#include "bench/commands/paced_calls.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "bench/commands/bench.h"
#include "bench/memory.h"
#include "bench/quantiles.h"
#include "lib/base/clock.h"
#include "lib/base/mem.h"
#include "lib/base/thread.h"

enum { CALLS_MAX = 100000000 }; // calls of one row

struct run {
    const struct paced_calls *calls;
    int64_t start_us;
    double rate;
    int n;                 // number of calls
    int n_uncounted;       // first calls, which are the warm-up
    pthread_mutex_t mutex; // guards the fields below
    int next, failed;
    struct samples ms;
    char error[256];
};

struct caller {
    struct run *run;
    pthread_t thread;
    int index;
};

static void sleep_until(int64_t due_us)
{
    struct timespec until = {due_us / 1000000, due_us % 1000000 * 1000};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) == EINTR)
        continue;
}

// Makes calls. Each thread takes the next call that no thread has taken.
static void *caller_run(void *argument)
{
    struct caller *caller = argument;
    struct run *run = caller->run;
    pthread_mutex_lock(&run->mutex);
    while (run->next < run->n) {
        int i = run->next++;
        int64_t due_us = run->start_us + (int64_t)((double)i / run->rate * 1e6);
        pthread_mutex_unlock(&run->mutex);
        sleep_until(due_us);
        enum status status = run->calls->call(run->calls->user, caller->index, i);
        double ms = (double)(clock_now_us() - due_us) / 1e3;
        pthread_mutex_lock(&run->mutex);
        if (status != STATUS_OK) {
            run->failed++;
            snprintf(run->error, sizeof run->error, "%s", status_message());
        } else if (i >= run->n_uncounted) {
            samples_add(&run->ms, ms);
        }
    }
    pthread_mutex_unlock(&run->mutex);
    return NULL;
}

static void callers_run(struct run *run)
{
    int n = run->calls->threads;
    struct caller *callers = mem_alloc_array((size_t)n, sizeof *callers);
    run->start_us = clock_now_us() + 10000;
    for (int i = 0; i < n; i++) {
        callers[i] = (struct caller){.run = run, .index = i};
        thread_start(&callers[i].thread, "caller", caller_run, &callers[i]);
    }
    for (int i = 0; i < n; i++)
        pthread_join(callers[i].thread, NULL);
    free(callers);
}

static json_t *run_rate(struct run *run, const struct router_process *router)
{
    double cpu = router_process_cpu_s(router);
    run->n_uncounted = (int)(run->rate * run->calls->seconds / 10) + 1;
    run->n = run->n_uncounted + (int)(run->rate * run->calls->seconds) + 1;
    callers_run(run);
    double seconds = (double)(clock_now_us() - run->start_us) / 1e6;
    cpu = router_process_cpu_s(router) - cpu;
    struct quantiles q = samples_quantiles(&run->ms);
    return json_pack("{s:f,s:f,s:i,s:f,s:f,s:f,s:f,s:f,s:f}", "rate", run->rate, "completed_per_s",
                     (double)(run->n - run->failed) / seconds, "failed", run->failed, "p50_ms", q.p50, "p90_ms", q.p90,
                     "p99_ms", q.p99, "max_ms", q.max, "router_cpu_us", cpu * 1e6 / run->n, "router_peak_mb",
                     memory_peak_mb(router->pid));
}

static void print_row(const json_t *row)
{
    printf("%9.0f %12.0f %7.0f %9.3f %9.3f %9.3f %9.3f %13.1f %10.0f\n", bench_row_number(row, "rate"),
           bench_row_number(row, "completed_per_s"), bench_row_number(row, "failed"), bench_row_number(row, "p50_ms"),
           bench_row_number(row, "p90_ms"), bench_row_number(row, "p99_ms"), bench_row_number(row, "max_ms"),
           bench_row_number(row, "router_cpu_us"), bench_row_number(row, "router_peak_mb"));
    fflush(stdout);
}

static void measure_rate(const struct paced_calls *calls, const struct router_process *router, double rate,
                         json_t *rows)
{
    struct run run = {.calls = calls, .rate = rate};
    pthread_mutex_init(&run.mutex, NULL);
    json_t *row = run_rate(&run, router);
    json_array_append_new(rows, row);
    if (!calls->json) print_row(row);
    if (run.failed) fprintf(stderr, "%d requests failed: %s\n", run.failed, run.error);
    samples_free(&run.ms);
    pthread_mutex_destroy(&run.mutex);
}

enum status paced_calls_run(const struct paced_calls *calls, const struct router_process *router, json_t *rows)
{
    double rates[NUMBER_LIST_MAX];
    int n;
    TRY(real_list_parse("rate", calls->rates, 0.001, 1e6, rates, &n));
    if (!calls->json)
        printf("%9s %12s %7s %9s %9s %9s %9s %13s %10s\n", "rate/s", "completed/s", "failed", "p50 ms", "p90 ms",
               "p99 ms", "max ms", "router us/req", "router MB");
    for (int i = 0; i < n; i++) {
        if (rates[i] * calls->seconds > CALLS_MAX)
            return status_fail(STATUS_INVALID, "--rate %g times --seconds %g is over %d requests", rates[i],
                               calls->seconds, CALLS_MAX);
        measure_rate(calls, router, rates[i], rows);
    }
    return STATUS_OK;
}
