// SPDX-License-Identifier: Apache-2.0
// One thread reads all streams by epoll. An event names its token, and the token's number gives the time of sending.
#include "bench/commands/router_streams.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "bench/commands/bench.h"
#include "bench/commands/http_client.h"
#include "bench/memory.h"
#include "bench/quantiles.h"
#include "lib/base/clock.h"
#include "lib/base/mem.h"

enum { READ_ROOM = 1 << 16, EVENTS = 256 };

#define TOKEN_KEY "\"token_ids\":["

struct stream {
    int fd;
    bool begun, lost;
};

struct run {
    const struct router_streams *streams;
    struct stream *stream; // [streams->n]
    int epoll, n_begun, n_lost;
    bool measuring;
    struct samples ms;
    uint64_t tokens;
};

// Raises the limit of descriptors: the client needs one for each stream.
static enum status raise_descriptors(int n)
{
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    rlim_t wanted = (rlim_t)n + 200;
    if (limit.rlim_cur >= wanted) return STATUS_OK;
    limit.rlim_cur = wanted;
    if (limit.rlim_max < wanted) limit.rlim_max = wanted;
    if (!setrlimit(RLIMIT_NOFILE, &limit)) return STATUS_OK;
    return status_fail(STATUS_EXHAUSTED, "--streams %d: %llu descriptors are needed: raise the limit (ulimit -n)", n,
                       (unsigned long long)wanted);
}

static void token_count(struct run *run, long token, int64_t now_us)
{
    if (token < FAKE_FIRST_TOKEN || token >= FAKE_FIRST_TOKEN + FAKE_TOKENS) return;
    int64_t sent_us = __atomic_load_n(&run->streams->pace->sent_us[token - FAKE_FIRST_TOKEN], __ATOMIC_RELAXED);
    run->tokens++;
    if (run->measuring) samples_add(&run->ms, (double)(now_us - sent_us) / 1e3);
}

// Counts only events that arrive whole, as the router writes them.
static void stream_read(struct run *run, struct stream *s)
{
    char bytes[READ_ROOM];
    ssize_t n = recv(s->fd, bytes, sizeof bytes - 1, MSG_DONTWAIT);
    int64_t now_us = clock_now_us();
    if (n < 0 && errno == EAGAIN) return;
    if (n <= 0) {
        s->lost = true;
        run->n_lost++;
        close(s->fd);
        return;
    }
    bytes[n] = 0;
    for (const char *at = bytes; (at = strstr(at, TOKEN_KEY)); at++) {
        token_count(run, strtol(at + sizeof TOKEN_KEY - 1, NULL, 10), now_us);
        run->n_begun += !s->begun;
        s->begun = true;
    }
}

static void streams_poll(struct run *run, int64_t until_us)
{
    struct epoll_event events[EVENTS];
    int64_t left_us = until_us - clock_now_us();
    int n = epoll_wait(run->epoll, events, EVENTS, left_us > 0 ? (int)(left_us / 1000 + 1) : 0);
    for (int i = 0; i < n; i++)
        stream_read(run, events[i].data.ptr);
}

static enum status stream_open(struct run *run, int port, struct stream *s)
{
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = s};
    TRY(http_client_open(port, &s->fd));
    epoll_ctl(run->epoll, EPOLL_CTL_ADD, s->fd, &event);
    return http_client_send(s->fd, run->streams->request, strlen(run->streams->request));
}

static enum status streams_open(struct run *run, int port, int *n_open_p)
{
    for (int i = 0; i < run->streams->n; i++) {
        TRY(stream_open(run, port, &run->stream[i]));
        *n_open_p = i + 1;
        streams_poll(run, 0);
    }
    int64_t end_us = clock_now_us() + 60000000;
    while (run->n_begun + run->n_lost < run->streams->n && clock_now_us() < end_us)
        streams_poll(run, clock_now_us() + 100000);
    if (run->n_begun == run->streams->n) return STATUS_OK;
    return status_fail(STATUS_UNAVAILABLE, "%d of %d streams have begun: see --log", run->n_begun, run->streams->n);
}

static void streams_run(struct run *run, double seconds)
{
    int64_t end_us = clock_now_us() + (int64_t)(seconds * 1e6);
    while (clock_now_us() < end_us)
        streams_poll(run, end_us);
}

static json_t *measure_begun(struct run *run, const struct router_process *router)
{
    double seconds = run->streams->seconds;
    streams_run(run, seconds / 10);
    run->measuring = true;
    run->tokens = 0;
    double cpu = router_process_cpu_s(router);
    streams_run(run, seconds);
    cpu = router_process_cpu_s(router) - cpu;
    struct quantiles q = samples_quantiles(&run->ms);
    return json_pack("{s:i,s:f,s:i,s:f,s:f,s:f,s:f,s:f,s:f}", "streams", run->streams->n, "tokens_per_s",
                     (double)run->tokens / seconds, "lost", run->n_lost, "p50_ms", q.p50, "p90_ms", q.p90, "p99_ms",
                     q.p99, "max_ms", q.max, "router_cpu_percent", 100 * cpu / seconds, "router_peak_mb",
                     memory_peak_mb(router->pid));
}

static void print_row(const json_t *row)
{
    printf("%9s %12s %7s %9s %9s %9s %9s %13s %10s\n", "streams", "tokens/s", "lost", "p50 ms", "p90 ms", "p99 ms",
           "max ms", "router CPU %", "router MB");
    printf("%9.0f %12.0f %7.0f %9.3f %9.3f %9.3f %9.3f %13.1f %10.0f\n", bench_row_number(row, "streams"),
           bench_row_number(row, "tokens_per_s"), bench_row_number(row, "lost"), bench_row_number(row, "p50_ms"),
           bench_row_number(row, "p90_ms"), bench_row_number(row, "p99_ms"), bench_row_number(row, "max_ms"),
           bench_row_number(row, "router_cpu_percent"), bench_row_number(row, "router_peak_mb"));
}

enum status router_streams_measure(const struct router_streams *streams, const struct router_process *router,
                                   json_t *rows)
{
    TRY(raise_descriptors(streams->n));
    struct run run = {.streams = streams, .stream = mem_alloc_array((size_t)streams->n, sizeof *run.stream)};
    run.epoll = epoll_create1(EPOLL_CLOEXEC);
    int n_open = 0;
    enum status status = streams_open(&run, router->http_port, &n_open);
    if (status == STATUS_OK) {
        json_t *row = measure_begun(&run, router);
        json_array_append_new(rows, row);
        if (!streams->json) print_row(row);
    }
    for (int i = 0; i < n_open; i++) {
        if (!run.stream[i].lost) close(run.stream[i].fd);
    }
    close(run.epoll);
    samples_free(&run.ms);
    free(run.stream);
    return status;
}
