// SPDX-License-Identifier: Apache-2.0
// forepack bench hostile: latency of polite clients of a router without nodes, alone and next to hostile clients
// (bench/hostile_kinds.h). Polite clients tokenise a short text, which the router answers itself. Each round measures
// both, so that the ratio holds on a machine with changing speed. The last rows are the CPU time of headers.
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench/certificate.h"
#include "bench/commands/bench.h"
#include "bench/commands/router_process.h"
#include "bench/header_cost.h"
#include "bench/hostile_peers.h"
#include "bench/http_load.h"
#include "bench/quantiles.h"
#include "cli/request.h"
#include "lib/base/clock.h"
#include "lib/base/mem.h"
#include "lib/base/options.h"

static struct {
    char *model, *config, *log, *port, *tls, *kind;
    int64_t polite, hostile, reconnect_ms, rounds, core, cores;
    double rate, seconds;
    bool json;
} o;

// clang-format off
static const struct option options[] = {
    {.name = "-Router"},
    {.name = "model", .type = OPTION_STRING, .value = &o.model, .help = "model directory of the router (required)"},
    ROUTER_CORE_OPTION_ROWS(o, "-1"),
    ROUTER_FILE_OPTION_ROWS(o),
    {.name = "port", .type = OPTION_CHOICE, .value = &o.port, .default_text = "both", .choices = "both|grpc|http",
     .help = "the port under attack"},
    {.name = "tls", .type = OPTION_CHOICE, .value = &o.tls, .default_text = "both", .choices = "both|on|off",
     .help = "with TLS 1.3 and a key on P-256, or plain"},
    {.name = "-Polite clients"},
    {.name = "polite", .type = OPTION_INT, .value = &o.polite, .default_text = "200", .min = 1, .max = 10000,
     .help = "connections, each with one request at a time"},
    {.name = "rate", .type = OPTION_REAL, .value = &o.rate, .default_text = "500", .min = 1, .max = 100000, .unit = "requests/s",
     .help = "requests of all polite connections together; a latency counts from the time at which the request was due"},
    {.name = "seconds", .type = OPTION_REAL, .value = &o.seconds, .default_text = "10", .min = 0.1, .max = 3600, .unit = "s",
     .help = "length of each of the two measurements of a round"},
    {.name = "rounds", .type = OPTION_INT, .value = &o.rounds, .default_text = "5", .min = 1, .max = 100,
     .help = "number of rounds; medians are printed"},
    {.name = "-Hostile clients"},
    {.name = "hostile", .type = OPTION_INT, .value = &o.hostile, .default_text = "1000", .min = 1, .max = 20000,
     .help = "connections"},
    {.name = "kind", .type = OPTION_STRING, .value = &o.kind, .placeholder = "NAME",
     .help = "only clients of this kind, such as 'pings' (bench/hostile_kinds.c); default: all kinds, in turn"},
    {.name = "reconnect-ms", .type = OPTION_INT, .value = &o.reconnect_ms, .default_text = "1000", .min = 1, .max = 60000,
     .unit = "ms", .help = "time after which a client that was closed connects again"},
    {.name = "-Output"},
    {.name = "json", .type = OPTION_BOOL, .value = &o.json, .help = "print a JSON list"},
    {0},
};
// clang-format on

static const char http_request[] = "POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                                   "Content-Length: 29\r\n\r\n{\"prompt\":\"A short question\"}";
static const char grpc_request[] = "\x0a\x10"
                                   "A short question"; // a TokenizeRequest

struct target {
    const struct router_process *router;
    bool grpc, tls;
    int port;
};

// --- one measurement

struct measured {
    struct quantiles ms;
    double router_cpu; // cores
};

// Waits until the router has ended the work that earlier clients left.
static void router_await_rest(const struct router_process *router)
{
    enum { LOOK_US = 250000, LOOKS_MAX = 240 };
    double before_s, now_s = router_process_cpu_s(router);
    for (int i = 0; i < LOOKS_MAX; i++) {
        before_s = now_s;
        usleep(LOOK_US);
        now_s = router_process_cpu_s(router);
        if (now_s - before_s < 0.1 * LOOK_US / 1e6) return;
    }
}

static enum status polite_measure(const struct target *target, struct measured *measured_p)
{
    struct http_load *load;
    struct http_load_result result;
    TRY(http_load_open(target->port, target->tls, (int)o.polite, &load));
    if (target->grpc)
        http_load_use_grpc(load, "/forepack.v1.Inference/Tokenize", grpc_request, sizeof grpc_request - 1);
    double cpu_s = router_process_cpu_s(target->router);
    int64_t start_us = clock_now_us();
    enum status status = http_load_paced(load, http_request, o.rate, o.seconds, &result);
    if (status == STATUS_OK) {
        measured_p->router_cpu =
            (router_process_cpu_s(target->router) - cpu_s) * 1e6 / (double)(clock_now_us() - start_us);
        measured_p->ms = samples_quantiles(&result.ms);
    }
    samples_free(&result.ms);
    http_load_close(load);
    return status;
}

struct attack {
    struct measured polite;
    double opened_per_s, closed_per_s, client_cpu;
    int open;
};

static enum status attack_measure(const struct target *target, struct attack *a)
{
    struct hostile_peers *peers;
    const struct hostile_options hostile = {.port = target->port,
                                            .connections = (int)o.hostile,
                                            .reconnect_ms = (int)o.reconnect_ms,
                                            .grpc = target->grpc,
                                            .tls = target->tls,
                                            .kind = o.kind};
    TRY(hostile_peers_start(&hostile, &peers));
    int64_t start_us = clock_now_us();
    while (hostile_peers_count(peers).opened < o.hostile && clock_now_us() - start_us < 60000000)
        usleep(10000);
    enum status status = polite_measure(target, &a->polite);
    struct hostile_counts counts = hostile_peers_count(peers);
    double seconds = (double)(clock_now_us() - start_us) / 1e6;
    a->open = counts.open;
    a->opened_per_s = (double)counts.opened / seconds;
    a->closed_per_s = (double)counts.closed / seconds;
    a->client_cpu = hostile_peers_stop(peers) / seconds;
    return status;
}

// --- rounds

enum value { ALONE_P50, ALONE_P99, ALONE_CPU, P50, P99, CPU, RATIO, OPENED, CLOSED, OPEN, CLIENT_CPU, VALUES };

static const char *const keys[VALUES] = {"alone_p50_ms",   "alone_p99_ms",        "alone_router_cores",
                                         "hostile_p50_ms", "hostile_p99_ms",      "hostile_router_cores",
                                         "p99_ratio",      "opened_per_s",        "closed_per_s",
                                         "open",           "hostile_client_cores"};

static enum status round_measure(const struct target *target, struct samples values[VALUES])
{
    struct measured alone;
    struct attack a;
    router_await_rest(target->router);
    TRY(polite_measure(target, &alone));
    TRY(attack_measure(target, &a));
    const double value[VALUES] = {alone.ms.p50,
                                  alone.ms.p99,
                                  alone.router_cpu,
                                  a.polite.ms.p50,
                                  a.polite.ms.p99,
                                  a.polite.router_cpu,
                                  a.polite.ms.p99 / alone.ms.p99,
                                  a.opened_per_s,
                                  a.closed_per_s,
                                  a.open,
                                  a.client_cpu};
    for (int i = 0; i < VALUES; i++)
        samples_add(&values[i], value[i]);
    return STATUS_OK;
}

static void print_row(const json_t *row)
{
    printf("%-5s %-5s p50 %.3f p99 %.3f ms alone, %.3f / %.3f ms next to hostile clients: p99 ratio %.2f (%.2f to "
           "%.2f)   router %.2f, then %.2f cores   hostile: %.0f opened/s, %.0f closed/s, %.0f open, %.2f cores\n",
           json_string_value(json_object_get(row, "port")), json_string_value(json_object_get(row, "transport")),
           bench_row_number(row, keys[ALONE_P50]), bench_row_number(row, keys[ALONE_P99]),
           bench_row_number(row, keys[P50]), bench_row_number(row, keys[P99]), bench_row_number(row, keys[RATIO]),
           bench_row_number(row, "p99_ratio_min"), bench_row_number(row, "p99_ratio_max"),
           bench_row_number(row, keys[ALONE_CPU]), bench_row_number(row, keys[CPU]),
           bench_row_number(row, keys[OPENED]), bench_row_number(row, keys[CLOSED]), bench_row_number(row, keys[OPEN]),
           bench_row_number(row, keys[CLIENT_CPU]));
    fflush(stdout);
}

static void row_add(const struct target *target, struct samples values[VALUES], json_t *rows)
{
    json_t *row = json_pack("{s:s,s:s,s:f,s:f}", "port", target->grpc ? "grpc" : "http", "transport",
                            target->tls ? "tls" : "plain", "p99_ratio_min", samples_percentile(&values[RATIO], 0),
                            "p99_ratio_max", samples_percentile(&values[RATIO], 100));
    for (int i = 0; i < VALUES; i++)
        json_object_set_new(row, keys[i], bench_number(samples_percentile(&values[i], 50)));
    json_array_append_new(rows, row);
    if (!o.json) print_row(row);
}

static enum status target_measure(const struct target *target, json_t *rows)
{
    struct samples values[VALUES] = {0};
    enum status status = STATUS_OK;
    for (int i = 0; i < o.rounds && status == STATUS_OK; i++)
        status = round_measure(target, values);
    if (status == STATUS_OK) row_add(target, values, rows);
    for (int i = 0; i < VALUES; i++)
        samples_free(&values[i]);
    return status;
}

static void headers_measure(json_t *rows)
{
    struct header_cost costs[HEADER_COSTS];
    header_costs_measure(costs);
    for (int i = 0; i < HEADER_COSTS; i++) {
        const struct header_cost *c = &costs[i];
        json_array_append_new(rows, json_pack("{s:s,s:s,s:f}", "protocol", c->protocol, "headers", c->form,
                                              "cpu_ns_per_byte", c->ns_per_byte));
        if (!o.json) printf("%-8s headers, %-14s %.3f ns of CPU time per byte\n", c->protocol, c->form, c->ns_per_byte);
    }
}

// --- routers

static bool wanted(const char *choice, const char *what)
{
    return strcmp(choice, "both") == 0 || strcmp(choice, what) == 0;
}

static enum status router_measure(const struct router_process *router, json_t *rows)
{
    struct target target = {
        .router = router, .grpc = true, .tls = router->tls, .port = atoi(strrchr(router->server, ':') + 1)};
    if (wanted(o.port, "grpc")) TRY(target_measure(&target, rows));
    target.grpc = false;
    target.port = router->http_port;
    return wanted(o.port, "http") ? target_measure(&target, rows) : STATUS_OK;
}

// Starts a plain router and one with TLS, as far as they are wanted, before the first thread.
enum { ROUTERS = 2 };

static enum status routers_start(struct router_process routers[ROUTERS], struct certificate_files *files,
                                 struct rpc_tls *tls)
{
    if (!o.model) return status_fail(STATUS_INVALID, "--model DIR is required");
    struct router_process_options router = {
        .model = o.model, .config = o.config, .log = o.log, .core = (int)o.core, .n_cores = (int)o.cores, .http = true};
    if (wanted(o.tls, "off")) TRY(router_process_start(&router, &routers[0]));
    if (!wanted(o.tls, "on")) return STATUS_OK;
    TRY(certificate_files_create(files));
    *tls = (struct rpc_tls){.cert = files->cert, .key = files->key};
    router.tls = tls;
    return router_process_start(&router, &routers[1]);
}

static enum status routers_wait(const struct router_process routers[ROUTERS])
{
    enum status status = STATUS_OK;
    rpc_init();
    for (int i = 0; i < ROUTERS && status == STATUS_OK; i++)
        if (routers[i].pid > 0) status = router_process_wait(&routers[i], false);
    rpc_shutdown();
    return status;
}

int bench_hostile(int argc, char **argv)
{
    options_main(
        options,
        "Usage: forepack bench hostile --model DIR [options]\n"
        "Latency of polite clients of a router, alone and next to clients that break its limits, and CPU time of "
        "headers.",
        argc, argv, NULL);
    json_t *rows = json_array();
    struct router_process routers[ROUTERS] = {0};
    struct certificate_files files = {0};
    struct rpc_tls tls;
    signal(SIGPIPE, SIG_IGN);
    enum status status = routers_start(routers, &files, &tls);
    if (status == STATUS_OK) status = routers_wait(routers);
    for (int i = 0; i < ROUTERS && status == STATUS_OK; i++)
        if (routers[i].pid > 0) status = router_measure(&routers[i], rows);
    for (int i = 0; i < ROUTERS; i++)
        router_process_stop(&routers[i]);
    if (status == STATUS_OK) headers_measure(rows);
    certificate_files_remove(&files);
    if (status == STATUS_OK && o.json) bench_print_json(rows);
    int code = status == STATUS_OK ? 0 : report_failure(status);
    json_decref(rows);
    options_free(options);
    return code;
}
