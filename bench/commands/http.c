// SPDX-License-Identifier: Apache-2.0
// forepack bench http: only the HTTP server, without a router. Measures requests on kept connections, new connections,
// and many streams of server-sent events, each plain and with TLS. CPU time and memory are measured for the server's
// process (bench/http_target.h). The client (bench/http_load.h) is one thread of this process.
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "bench/commands/bench.h"
#include "bench/http_load.h"
#include "bench/http_target.h"
#include "cli/request.h"
#include "lib/base/clock.h"
#include "lib/base/mem.h"
#include "lib/base/options.h"

static struct {
    char *what, *tls;
    int64_t connections, body_bytes, streams, event_bytes, threads;
    double events_per_s, tick_ms, seconds;
    bool json;
} o;

// clang-format off
static const struct option options[] = {
    {.name = "measure", .type = OPTION_CHOICE, .value = &o.what, .default_text = "all", .choices = "all|requests|connections|streams",
     .help = "which rows to measure"},
    {.name = "tls", .type = OPTION_CHOICE, .value = &o.tls, .default_text = "both", .choices = "both|on|off",
     .help = "with TLS 1.3 and a key on P-256, or plain"},
    {.name = "threads", .type = OPTION_INT, .value = &o.threads, .default_text = "1", .min = 1, .max = 64,
     .help = "threads of the server"},
    {.name = "seconds", .type = OPTION_REAL, .value = &o.seconds, .default_text = "5", .min = 0.01, .max = 3600, .unit = "s",
     .help = "length of each measurement"},
    {.name = "-Requests and connections"},
    {.name = "connections", .type = OPTION_INT, .value = &o.connections, .default_text = "64", .min = 1, .max = 10000,
     .help = "concurrent connections, each with one request"},
    {.name = "body-bytes", .type = OPTION_INT, .value = &o.body_bytes, .default_text = "1024", .max = 30000, .unit = "bytes",
     .help = "body of a request, which the response repeats"},
    {.name = "-Streams"},
    {.name = "streams", .type = OPTION_INT, .value = &o.streams, .default_text = "10000", .min = 1, .max = 1000000,
     .help = "concurrent streams"},
    {.name = "events-per-s", .type = OPTION_REAL, .value = &o.events_per_s, .default_text = "1", .min = 0.001, .max = 10000,
     .unit = "events/s", .help = "event rate of each stream"},
    {.name = "event-bytes", .type = OPTION_INT, .value = &o.event_bytes, .default_text = "200", .min = 40, .max = 4096,
     .unit = "bytes", .help = "size of an event"},
    {.name = "tick-ms", .type = OPTION_REAL, .value = &o.tick_ms, .default_text = "1", .min = 0.01, .max = 999, .unit = "ms",
     .help = "interval at which all due events are sent together, like the tokens of a pass"},
    {.name = "-Output"},
    {.name = "json", .type = OPTION_BOOL, .value = &o.json, .help = "print a JSON list"},
    {0},
};
// clang-format on

static const char stream_request[] = "GET /events HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n"
                                     "User-Agent: forepack-bench\r\nAuthorization: Bearer 0123456789abcdef\r\n\r\n";

static char *echo_request(void)
{
    char *body = mem_alloc((size_t)o.body_bytes + 1);
    memset(body, 'x', (size_t)o.body_bytes);
    char *request = mem_format("POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                               "Authorization: Bearer 0123456789abcdef\r\nContent-Length: %lld\r\n\r\n%s",
                               (long long)o.body_bytes, body);
    free(body);
    return request;
}

static const char *transport(bool tls)
{
    return tls ? "tls" : "plain";
}

static void print_rate(const json_t *row)
{
    printf("%-9s %-22s %10.0f /s   server CPU %8.1f us each   ms p50 %.3f p99 %.3f max %.3f\n",
           json_string_value(json_object_get(row, "transport")), json_string_value(json_object_get(row, "measurement")),
           bench_row_number(row, "per_s"), bench_row_number(row, "server_cpu_us"), bench_row_number(row, "p50_ms"),
           bench_row_number(row, "p99_ms"), bench_row_number(row, "max_ms"));
    fflush(stdout);
}

static void add_rate(json_t *rows, const char *name, bool tls, struct http_load_result *r, double cpu_s)
{
    struct quantiles q = samples_quantiles(&r->ms);
    double each_us = r->done ? cpu_s * 1e6 / (double)r->done : 0;
    json_t *row = json_pack("{s:s,s:s,s:f,s:f,s:f,s:f,s:f}", "measurement", name, "transport", transport(tls), "per_s",
                            (double)r->done / r->seconds, "server_cpu_us", each_us, "p50_ms", q.p50, "p99_ms", q.p99,
                            "max_ms", q.max);
    json_array_append_new(rows, row);
    if (!o.json) print_rate(row);
    samples_free(&r->ms);
}

static enum status measure_requests(struct http_target *target, struct http_load *load, bool tls, json_t *rows)
{
    struct http_load_result result;
    char *request = echo_request();
    double cpu = http_target_cpu_s(target);
    enum status status = http_load_requests(load, request, o.seconds, &result);
    if (status == STATUS_OK) add_rate(rows, "requests", tls, &result, http_target_cpu_s(target) - cpu);
    free(request);
    return status;
}

static enum status measure_connections(struct http_target *target, struct http_load *load, bool tls, bool resume,
                                       json_t *rows)
{
    struct http_load_result result;
    char *request = echo_request();
    double cpu = http_target_cpu_s(target);
    enum status status = http_load_connections(load, request, resume, o.seconds, &result);
    const char *name = resume ? "connections, resumed" : "connections";
    if (status == STATUS_OK) add_rate(rows, name, tls, &result, http_target_cpu_s(target) - cpu);
    free(request);
    return status;
}

static void add_streams(json_t *rows, bool tls, struct http_load_result *r, int64_t sent, double cpu_s, double send_us,
                        double kb)
{
    struct quantiles q = samples_quantiles(&r->ms);
    json_t *row = json_pack("{s:s,s:s,s:I,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:I,s:I}", "measurement", "streams", "transport",
                            transport(tls), "streams", (json_int_t)o.streams, "events_per_s", (double)sent / r->seconds,
                            "server_cpu_percent", 100 * cpu_s / r->seconds, "send_us", send_us, "rss_kb_per_stream", kb,
                            "p50_ms", q.p50, "p99_ms", q.p99, "max_ms", q.max, "events", (json_int_t)sent, "lost",
                            (json_int_t)(sent - r->done));
    json_array_append_new(rows, row);
    if (!o.json)
        printf("%-9s %lld streams: %.0f events/s   server CPU %.1f %%   send %.2f us   %.2f KiB a stream   ms p50 %.3f "
               "p99 %.3f max "
               "%.3f   "
               "%lld of %lld events lost\n",
               transport(tls), (long long)o.streams, bench_row_number(row, "events_per_s"),
               bench_row_number(row, "server_cpu_percent"), send_us, kb, q.p50, q.p99, q.max,
               (long long)(sent - r->done), (long long)sent);
    fflush(stdout);
    samples_free(&r->ms);
}

static enum status measure_streams(struct http_target *target, bool tls, json_t *rows)
{
    struct http_load *load = NULL;
    struct http_load_result result = {0};
    double kb = http_target_rss_kb(target);
    TRY(http_load_open(http_target_port(target), tls, (int)o.streams, &load));
    enum status status = http_load_open_streams(load, stream_request);
    if (status == STATUS_OK) {
        kb = (http_target_rss_kb(target) - kb) / (double)o.streams;
        double cpu = http_target_cpu_s(target);
        int chunk = http_target_chunk_bytes(target);
        int64_t start_us = clock_now_us();
        http_target_start_events(target);
        status = http_load_read_events(load, chunk, start_us + (int64_t)(o.seconds * 1e6), -1, &result);
        result.seconds = (double)(clock_now_us() - start_us) / 1e6;
        int64_t sent = http_target_stop_events(target);
        cpu = http_target_cpu_s(target) - cpu;
        if (status == STATUS_OK) status = http_load_read_events(load, chunk, clock_now_us() + 2000000, sent, &result);
        if (status == STATUS_OK) {
            double send_us = http_target_sender_cpu_s(target) * 1e6 / (double)(sent ? sent : 1);
            add_streams(rows, tls, &result, sent, cpu, send_us, kb);
        }
    }
    http_load_close(load);
    return status;
}

static bool wanted(const char *what)
{
    return strcmp(o.what, "all") == 0 || strcmp(o.what, what) == 0;
}

// Runs one measurement. Each has its own server, so that memory counts from a fresh process.
static enum status measure_with(const char *what, bool tls, json_t *rows)
{
    if (!wanted(what)) return STATUS_OK;
    struct http_target *target;
    struct http_load *load = NULL;
    const struct http_target_options server = {.tls = tls,
                                               .threads = (int)o.threads,
                                               .streams = (int)o.streams,
                                               .event_bytes = (int)o.event_bytes,
                                               .events_per_s = o.events_per_s,
                                               .tick_ms = o.tick_ms};
    TRY(http_target_open(&server, &target));
    enum status status = http_load_open(http_target_port(target), tls, (int)o.connections, &load);
    if (status == STATUS_OK && strcmp(what, "requests") == 0) status = measure_requests(target, load, tls, rows);
    if (status == STATUS_OK && strcmp(what, "connections") == 0) {
        status = measure_connections(target, load, tls, false, rows);
        if (status == STATUS_OK && tls) status = measure_connections(target, load, tls, true, rows);
    }
    if (status == STATUS_OK && strcmp(what, "streams") == 0) status = measure_streams(target, tls, rows);
    http_load_close(load);
    http_target_close(target);
    return status;
}

static enum status raise_descriptors(void)
{
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
    if (limit.rlim_cur > (rlim_t)o.streams + 64) return STATUS_OK;
    return status_fail(STATUS_INVALID, "--streams %lld: a process may have %llu descriptors here (ulimit -Hn)",
                       (long long)o.streams, (unsigned long long)limit.rlim_cur);
}

int bench_http(int argc, char **argv)
{
    options_main(options,
                 "Usage: forepack bench http [options]\n"
                 "The HTTP server alone: requests, new connections and streams, plain and with TLS.",
                 argc, argv, NULL);
    static const char *const measurements[] = {"requests", "connections", "streams"};
    signal(SIGPIPE, SIG_IGN);
    json_t *rows = json_array();
    enum status status = raise_descriptors();
    for (int i = 0; i < 3; i++)
        for (int tls = 0; tls < 2 && status == STATUS_OK; tls++)
            if (strcmp(o.tls, "both") == 0 || (strcmp(o.tls, "on") == 0) == tls)
                status = measure_with(measurements[i], tls, rows);
    if (status == STATUS_OK && o.json) bench_print_json(rows);
    int code = status == STATUS_OK ? 0 : report_failure(status);
    json_decref(rows);
    options_free(options);
    return code;
}
