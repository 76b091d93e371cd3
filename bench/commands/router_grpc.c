// SPDX-License-Identifier: Apache-2.0
// forepack bench router-grpc: what a whole router process adds to a request. It starts a router, attaches a node that
// answers at once (fake_node.h), and sends Generate calls at fixed times from several connections. Latencies count from
// the time at which a request was due. CPU time is that of the router's process.
#include <arpa/inet.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/options.h"
#include "bench/commands/bench.h"
#include "bench/commands/fake_node.h"
#include "bench/memory.h"
#include "bench/quantiles.h"
#include "cli/request.h"
#include "engine/node.h"

static struct {
    char *model, *shape, *rate, *prompt, *log;
    int64_t prompt_tokens, output_tokens, connections, concurrency, core, tokenise_threads;
    double seconds;
    bool json;
} o;

// clang-format off
static const struct option options[] = {
    {.name = "-Router"},
    {.name = "model", .type = OPTION_STRING, .value = &o.model, .help = "model directory of the router (required)"},
    {.name = "shape", .type = OPTION_STRING, .value = &o.shape, .help = "config.json for the router, for a longer context"},
    {.name = "core", .type = OPTION_INT, .value = &o.core, .default_text = "0", .min = -1, .max = CPU_SETSIZE - 1,
     .help = "the only core that the router may use; -1: any"},
    {.name = "tokenise-threads", .type = OPTION_INT, .value = &o.tokenise_threads, .default_text = "0", .max = 1024,
     .help = "of the router; 0: its default"},
    {.name = "log", .type = OPTION_STRING, .value = &o.log, .default_text = "/dev/null", .help = "file for the router's log"},
    {.name = "-Requests"},
    {.name = "rate", .type = OPTION_STRING, .value = &o.rate, .default_text = "2500,5000", .unit = "requests/s",
     .help = "arrival rates, comma-separated, one row each"},
    {.name = "seconds", .type = OPTION_REAL, .value = &o.seconds, .default_text = "5", .min = 0.01, .max = 3600, .unit = "s",
     .help = "time over which the requests of a row arrive; a tenth of it is sent before, uncounted"},
    {.name = "prompt", .type = OPTION_CHOICE, .value = &o.prompt, .default_text = "ids", .choices = "ids|text",
     .help = "prompts as token ids or as text of about as many tokens"},
    {.name = "prompt-tokens", .type = OPTION_INT, .value = &o.prompt_tokens, .default_text = "100", .min = 1, .max = 1 << 20,
     .unit = "tokens", .help = "length of the prompts"},
    {.name = "output-tokens", .type = OPTION_INT, .value = &o.output_tokens, .default_text = "1", .min = 1, .max = 1000000,
     .unit = "tokens", .help = "length of the answers"},
    {.name = "connections", .type = OPTION_INT, .value = &o.connections, .default_text = "4", .min = 1, .max = 1000,
     .help = "connections of the clients"},
    {.name = "concurrency", .type = OPTION_INT, .value = &o.concurrency, .default_text = "64", .min = 1, .max = 4096,
     .help = "calls at once at most; requests that are due later wait at the client, which counts"},
    {.name = "-Output"},
    {.name = "json", .type = OPTION_BOOL, .value = &o.json, .help = "print a JSON list"},
    {0},
};
// clang-format on

#define GENERATE "/forepack.v1.Inference/Generate"

enum { REQUESTS_MAX = 100000000 }; // of one row

// ---- the router -----------------------------------------------------------------------------------------------------

static enum status free_port(int *port_p)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool found =
        fd >= 0 && !bind(fd, (struct sockaddr *)&address, size) && !getsockname(fd, (struct sockaddr *)&address, &size);
    if (fd >= 0) close(fd);
    *port_p = ntohs(address.sin_port);
    return found ? STATUS_OK : status_fail(STATUS_INTERNAL, "no free port on loopback: %s", strerror(errno));
}

// The router beside this program; free() it.
static char *router_path(void)
{
    char self[4096];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    self[n > 0 ? n : 0] = 0;
    char *slash = strrchr(self, '/');
    return mem_format("%.*s/forepack-router", slash ? (int)(slash - self) : 1, slash ? self : ".");
}

static _Noreturn void router_exec(const char *path, const char *port, const char *nodes, const char *threads)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    cpu_set_t cores;
    CPU_ZERO(&cores);
    if (o.core >= 0) CPU_SET((size_t)o.core, &cores);
    if (o.core >= 0 && sched_setaffinity(0, sizeof cores, &cores)) _exit(3);
    if (!freopen(o.log, "a", stderr)) _exit(3);
    execl(path, path, "--model", o.model, "--port", port, "--http-port", "-1", "--node-listen", nodes,
          "--tokenise-threads", threads, o.shape ? "--shape" : NULL, o.shape, (char *)NULL);
    _exit(3);
}

// Before rpc_init(), because a fork must not copy gRPC's threads.
static enum status router_start(int port, const char *nodes, pid_t *pid_p)
{
    char *path = router_path(), *port_text = mem_format("%d", port);
    char *threads = mem_format("%lld", (long long)o.tokenise_threads);
    *pid_p = fork();
    if (*pid_p == 0) router_exec(path, port_text, nodes, threads);
    free(threads);
    free(port_text);
    free(path);
    return *pid_p > 0 ? STATUS_OK : status_fail(STATUS_INTERNAL, "cannot start the router: %s", strerror(errno));
}

static double router_cpu_s(pid_t pid)
{
    char *path = mem_format("/proc/%d/stat", (int)pid);
    FILE *file = fopen(path, "r");
    unsigned long user = 0, kernel = 0;
    int n = file ? fscanf(file, "%*d %*s %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user, &kernel) : 0;
    if (file) fclose(file);
    free(path);
    return n == 2 ? (double)(user + kernel) / (double)sysconf(_SC_CLK_TCK) : 0;
}

// ---- requests -------------------------------------------------------------------------------------------------------

// Text of about `n` tokens, as the router counts them.
static char *make_text(struct rpc_channel *channel, int64_t n)
{
    static const char part[] = "The keeper of the lighthouse wrote 12 lines about the sea and the weather, as always. ";
    Forepack__V1__TokenizeRequest request = FOREPACK__V1__TOKENIZE_REQUEST__INIT;
    request.text = (ProtobufCBinaryData){sizeof part - 1, (uint8_t *)part};
    request.no_special = true;
    uint8_t bytes[512];
    size_t size = forepack__v1__tokenize_request__pack(&request, bytes), tokens = sizeof part / 4;
    struct rpc_bytes answer;
    if (rpc_unary(channel, "/forepack.v1.Inference/Tokenize", bytes, size, 10000, &answer) == STATUS_OK) {
        Forepack__V1__TokenizeResponse *m = forepack__v1__tokenize_response__unpack(NULL, answer.size, answer.data);
        if (m && m->n_token_ids) tokens = m->n_token_ids;
        if (m) forepack__v1__tokenize_response__free_unpacked(m, NULL);
        rpc_bytes_free(&answer);
    }
    size_t n_bytes = (size_t)n * (sizeof part - 1) / tokens;
    char *text = mem_alloc(n_bytes + 1);
    for (size_t i = 0; i < n_bytes; i++)
        text[i] = part[i % (sizeof part - 1)];
    return text;
}

static struct rpc_bytes make_message(struct rpc_channel *channel)
{
    Forepack__V1__SamplingOptions sampling = FOREPACK__V1__SAMPLING_OPTIONS__INIT;
    sampling.max_tokens_given_case = FOREPACK__V1__SAMPLING_OPTIONS__MAX_TOKENS_GIVEN_MAX_TOKENS;
    sampling.max_tokens = (uint32_t)o.output_tokens;
    sampling.ignore_eos = true;
    Forepack__V1__GenerateRequest request = FOREPACK__V1__GENERATE_REQUEST__INIT;
    request.sampling = &sampling;
    char *text = NULL;
    uint32_t *ids = NULL;
    if (strcmp(o.prompt, "text") == 0) {
        text = make_text(channel, o.prompt_tokens);
        request.text = (ProtobufCBinaryData){strlen(text), (uint8_t *)text};
    } else {
        ids = mem_alloc_array((size_t)o.prompt_tokens, sizeof *ids);
        for (int64_t i = 0; i < o.prompt_tokens; i++)
            ids[i] = (uint32_t)(i * 37 % 1000);
        request.token_ids = ids;
        request.n_token_ids = (size_t)o.prompt_tokens;
    }
    struct rpc_bytes message = {.size = forepack__v1__generate_request__get_packed_size(&request)};
    message.data = mem_resize(NULL, message.size, 1);
    forepack__v1__generate_request__pack(&request, message.data);
    free(ids);
    free(text);
    return message;
}

// ---- load -----------------------------------------------------------------------------------------------------------

struct run {
    struct rpc_channel **channels; // [o.connections]
    struct rpc_bytes message;
    int64_t start_us;
    double rate;
    int n, n_uncounted;    // requests; the first ones are warm-up
    pthread_mutex_t mutex; // guards what follows
    int next, failed;
    struct samples ms;
    char error[256];
};

static enum status call_run(struct run *run, int i)
{
    struct rpc_stream *stream;
    TRY(rpc_stream_open(run->channels[i % o.connections], GENERATE, 0, false, &stream));
    rpc_stream_send(stream, run->message.data, run->message.size);
    rpc_stream_half_close(stream);
    enum status status;
    struct rpc_bytes bytes;
    while ((status = rpc_stream_read(stream, &bytes)) == STATUS_OK && bytes.data)
        rpc_bytes_free(&bytes);
    rpc_stream_close(stream);
    return status;
}

static void sleep_until(int64_t due_us)
{
    struct timespec until = {due_us / 1000000, due_us % 1000000 * 1000};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) == EINTR)
        continue;
}

// Takes the requests in turn with the other threads.
static void *caller_run(void *argument)
{
    struct run *run = argument;
    pthread_mutex_lock(&run->mutex);
    while (run->next < run->n) {
        int i = run->next++;
        int64_t due_us = run->start_us + (int64_t)((double)i / run->rate * 1e6);
        pthread_mutex_unlock(&run->mutex);
        sleep_until(due_us);
        enum status status = call_run(run, i);
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

static json_t *run_rate(struct run *run, pid_t router, double rate)
{
    run->rate = rate;
    run->n_uncounted = (int)(rate * o.seconds / 10) + 1;
    run->n = run->n_uncounted + (int)(rate * o.seconds) + 1;
    run->next = run->failed = 0;
    run->ms = (struct samples){0};
    pthread_t *threads = mem_alloc_array((size_t)o.concurrency, sizeof *threads);
    double cpu = router_cpu_s(router);
    run->start_us = clock_now_us() + 10000;
    for (int i = 0; i < o.concurrency; i++)
        pthread_create(&threads[i], NULL, caller_run, run);
    for (int i = 0; i < o.concurrency; i++)
        pthread_join(threads[i], NULL);
    double seconds = (double)(clock_now_us() - run->start_us) / 1e6;
    cpu = router_cpu_s(router) - cpu;
    free(threads);
    struct quantiles q = samples_quantiles(&run->ms);
    samples_free(&run->ms);
    return json_pack("{s:f,s:f,s:i,s:f,s:f,s:f,s:f,s:f,s:f}", "rate", rate, "completed_per_s",
                     (double)(run->n - run->failed) / seconds, "failed", run->failed, "p50_ms", q.p50, "p90_ms", q.p90,
                     "p99_ms", q.p99, "max_ms", q.max, "router_cpu_us", cpu * 1e6 / run->n, "router_peak_mb",
                     memory_peak_mb(router));
}

static void print_row(const json_t *row)
{
    printf("%9.0f %12.0f %7.0f %9.3f %9.3f %9.3f %9.3f %13.1f %10.0f\n", bench_row_number(row, "rate"),
           bench_row_number(row, "completed_per_s"), bench_row_number(row, "failed"), bench_row_number(row, "p50_ms"),
           bench_row_number(row, "p90_ms"), bench_row_number(row, "p99_ms"), bench_row_number(row, "max_ms"),
           bench_row_number(row, "router_cpu_us"), bench_row_number(row, "router_peak_mb"));
    fflush(stdout);
}

static enum status run_all(struct run *run, pid_t router, json_t *rows)
{
    double rates[BENCH_COUNTS_MAX];
    int n;
    TRY(bench_reals_parse("rate", o.rate, 0.001, 1e6, rates, &n));
    if (!o.json)
        printf("%9s %12s %7s %9s %9s %9s %9s %13s %10s\n", "rate/s", "completed/s", "failed", "p50 ms", "p90 ms",
               "p99 ms", "max ms", "router us/req", "router MB");
    for (int i = 0; i < n; i++) {
        if (rates[i] * o.seconds > REQUESTS_MAX)
            return status_fail(STATUS_INVALID, "--rate %g times --seconds %g is over %d requests", rates[i], o.seconds,
                               REQUESTS_MAX);
        json_t *row = run_rate(run, router, rates[i]);
        json_array_append_new(rows, row);
        if (!o.json) print_row(row);
        if (run->failed) fprintf(stderr, "%d requests failed: %s\n", run->failed, run->error);
    }
    return STATUS_OK;
}

// Reads the health of the router until it answers; with `serving`, until it would serve a request.
static enum status wait_for_router(struct rpc_channel *channel, bool serving)
{
    static const uint8_t is_serving[] = {8, 1}; // a HealthCheckResponse
    struct rpc_stream *stream;
    struct rpc_bytes bytes = {0};
    TRY(rpc_stream_open(channel, "/grpc.health.v1.Health/Watch", 60000, true, &stream));
    rpc_stream_send(stream, NULL, 0);
    bool reached = false;
    while (!reached && rpc_stream_read(stream, &bytes) == STATUS_OK && bytes.data) {
        reached = !serving || (bytes.size == sizeof is_serving && !memcmp(bytes.data, is_serving, sizeof is_serving));
        rpc_bytes_free(&bytes);
    }
    rpc_stream_close(stream);
    return reached ? STATUS_OK : status_fail(STATUS_UNAVAILABLE, "the router did not become ready, see --log");
}

static enum status measure(const char *server, const char *nodes, pid_t router, json_t *rows)
{
    struct run run = {.channels = mem_alloc_array((size_t)o.connections, sizeof(struct rpc_channel *))};
    struct fake_node *node = NULL;
    pthread_mutex_init(&run.mutex, NULL);
    enum status status = STATUS_OK;
    for (int i = 0; i < o.connections && status == STATUS_OK; i++)
        status = rpc_channel_open(server, &run.channels[i]);
    if (status == STATUS_OK) status = wait_for_router(run.channels[0], false);
    if (status == STATUS_OK) status = fake_node_open(server, nodes, &node);
    if (status == STATUS_OK) status = wait_for_router(run.channels[0], true);
    if (status == STATUS_OK) {
        run.message = make_message(run.channels[0]);
        status = run_all(&run, router, rows);
        rpc_bytes_free(&run.message);
    }
    fake_node_close(node);
    for (int i = 0; i < o.connections; i++)
        rpc_channel_close(run.channels[i]);
    free(run.channels);
    pthread_mutex_destroy(&run.mutex);
    return status;
}

int bench_router_grpc(int argc, char **argv)
{
    options_main(options,
                 "Usage: forepack bench router-grpc --model DIR [--rate 2500,5000] [options]\n"
                 "Latency, throughput and CPU time that a router adds, with a node that answers at once.",
                 argc, argv, NULL);
    json_t *rows = json_array();
    pid_t router = 0;
    int port = 0, node_port = 0;
    enum status status = o.model ? free_port(&port) : status_fail(STATUS_INVALID, "--model DIR is required");
    if (status == STATUS_OK) status = free_port(&node_port);
    char *nodes = mem_format("127.0.0.1:%d", node_port);
    if (status == STATUS_OK) status = router_start(port, nodes, &router);
    if (status == STATUS_OK) {
        char *server = mem_format("127.0.0.1:%d", port);
        node_block_signals();
        rpc_init();
        status = measure(server, nodes, router, rows);
        rpc_shutdown();
        free(server);
        kill(router, SIGTERM);
        waitpid(router, NULL, 0);
    }
    if (status == STATUS_OK && o.json) bench_print_json(rows);
    int code = status == STATUS_OK ? 0 : report_failure(status);
    json_decref(rows);
    free(nodes);
    options_free(options);
    return code;
}
