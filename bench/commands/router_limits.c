// SPDX-License-Identifier: Apache-2.0
// The client (bench/http_load.h) is one thread. Its share of the cores may limit the rate. The router's CPU time per
// request does not depend on the client: `per_core_s` is the rate that one core of the router would reach.
#include "bench/commands/router_limits.h"

#include <stdio.h>

#include "bench/commands/bench.h"
#include "bench/http_load.h"

enum measured { REQUESTS, CONNECTIONS, RESUMED };

static const char *const names[] = {"requests", "connections", "connections, resumed"};

static enum status load_run(struct http_load *load, const struct router_limits *l, enum measured what,
                            struct http_load_result *result_p)
{
    if (what == REQUESTS) return http_load_requests(load, l->request, l->seconds, result_p);
    return http_load_connections(load, l->request, what == RESUMED, l->seconds, result_p);
}

static void print_row(const json_t *row)
{
    printf("%-5s %-20s %8.0f /s   router CPU %7.1f us each: %6.0f /s on a core   ms p50 %.3f p99 %.3f\n",
           json_string_value(json_object_get(row, "transport")), json_string_value(json_object_get(row, "measurement")),
           bench_row_number(row, "per_s"), bench_row_number(row, "router_cpu_us"), bench_row_number(row, "per_core_s"),
           bench_row_number(row, "p50_ms"), bench_row_number(row, "p99_ms"));
    fflush(stdout);
}

static enum status limit_measure(struct http_load *load, const struct router_limits *l,
                                 const struct router_process *router, enum measured what, json_t *rows)
{
    struct http_load_result r;
    double cpu_s = router_process_cpu_s(router);
    TRY(load_run(load, l, what, &r));
    cpu_s = router_process_cpu_s(router) - cpu_s;
    struct quantiles q = samples_quantiles(&r.ms);
    json_t *row = json_pack("{s:s,s:s,s:f,s:f,s:f,s:f,s:f,s:f}", "measurement", names[what], "transport",
                            router->tls ? "tls" : "plain", "per_s", (double)r.done / r.seconds, "router_cpu_us",
                            r.done ? cpu_s * 1e6 / (double)r.done : 0, "per_core_s",
                            cpu_s > 0 ? (double)r.done / cpu_s : 0, "p50_ms", q.p50, "p99_ms", q.p99, "max_ms", q.max);
    json_array_append_new(rows, row);
    if (!l->json) print_row(row);
    samples_free(&r.ms);
    return STATUS_OK;
}

enum status router_limits_measure(const struct router_limits *l, const struct router_process *router, json_t *rows)
{
    struct http_load *load;
    TRY(http_load_open(router->http_port, router->tls != NULL, l->connections, &load));
    enum status status = limit_measure(load, l, router, REQUESTS, rows);
    if (status == STATUS_OK && l->new_connections) status = limit_measure(load, l, router, CONNECTIONS, rows);
    if (status == STATUS_OK && l->new_connections && router->tls)
        status = limit_measure(load, l, router, RESUMED, rows);
    http_load_close(load);
    return status;
}
