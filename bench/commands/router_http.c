// SPDX-License-Identifier: Apache-2.0
// forepack bench router-http: measures what a whole router process adds to requests over HTTP, with a node that has no
// model (fake_node.h). By default it sends completions at fixed times over kept-alive connections. With --streams it
// opens many server-sent streams that get one token per interval (router_streams.c). With --limit it measures the
// highest rate, and with --tls it compares a router with TLS and a plain one at their limits (router_limits.c).
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench/certificate.h"
#include "bench/commands/bench.h"
#include "bench/commands/fake_node.h"
#include "bench/commands/http_client.h"
#include "bench/commands/paced_calls.h"
#include "bench/commands/router_limits.h"
#include "bench/commands/router_streams.h"
#include "cli/request.h"
#include "engine/node.h"
#include "lib/base/mem.h"
#include "lib/base/options.h"

static struct {
    char *model, *shape, *config, *rate, *log;
    int64_t prompt_tokens, output_tokens, concurrency, streams, interval_ms, core, cores;
    double seconds;
    bool chat, limit, tls, json;
} o;

// clang-format off
static const struct option options[] = {
    {.name = "-Router"},
    {.name = "model", .type = OPTION_STRING, .value = &o.model, .help = "model directory of the router (required)"},
    {.name = "shape", .type = OPTION_STRING, .value = &o.shape, .help = "config.json for the router, for a longer context"},
    ROUTER_CORE_OPTION_ROWS(o, "0"),
    ROUTER_FILE_OPTION_ROWS(o),
    {.name = "-Requests"},
    {.name = "rate", .type = OPTION_STRING, .value = &o.rate, .default_text = "1500,3000", .unit = "requests/s",
     .help = "arrival rates, comma-separated, one row each"},
    {.name = "seconds", .type = OPTION_REAL, .value = &o.seconds, .default_text = "5", .min = 0.01, .max = 3600, .unit = "s",
     .help = "time over which the requests of a row arrive, or over which streams are measured; an "
             "uncounted tenth of this time comes before it"},
    {.name = "prompt-tokens", .type = OPTION_INT, .value = &o.prompt_tokens, .default_text = "100", .min = 1, .max = 1 << 20,
     .unit = "tokens", .help = "approximate length of the prompts"},
    {.name = "chat", .type = OPTION_BOOL, .value = &o.chat, .help = "send chats of one turn instead of completions"},
    {.name = "output-tokens", .type = OPTION_INT, .value = &o.output_tokens, .default_text = "1", .min = 1, .max = 1000000,
     .unit = "tokens", .help = "length of the answers"},
    {.name = "concurrency", .type = OPTION_INT, .value = &o.concurrency, .default_text = "64", .min = 1, .max = 4096,
     .help = "connections, and so concurrent requests; further requests wait at the client, and the wait counts"},
    {.name = "-Streams"},
    {.name = "streams", .type = OPTION_INT, .value = &o.streams, .default_text = "0", .max = 60000,
     .help = "number of server-sent streams, instead of requests at a rate"},
    {.name = "interval-ms", .type = OPTION_INT, .value = &o.interval_ms, .default_text = "1000", .min = 100, .max = 60000,
     .unit = "ms", .help = "time between two tokens of a stream"},
    {.name = "-Limits"},
    {.name = "limit", .type = OPTION_BOOL, .value = &o.limit,
     .help = "requests as fast as --concurrency connections allow, instead of at a rate"},
    {.name = "tls", .type = OPTION_BOOL, .value = &o.tls,
     .help = "like --limit, also with new connections: with TLS and, for comparison, plain"},
    {.name = "-Output"},
    {.name = "json", .type = OPTION_BOOL, .value = &o.json, .help = "print a JSON list"},
    {0},
};
// clang-format on

// Returns English text of about `n` tokens of the demo model's tokenizer, which has some 2.5 bytes per token.
static char *make_prompt(int64_t n)
{
    static const char part[] = "The keeper of the lighthouse wrote 12 lines about the sea and the weather, as always. ";
    size_t n_bytes = (size_t)n * 5 / 2;
    char *text = mem_alloc(n_bytes + 1);
    for (size_t i = 0; i < n_bytes; i++)
        text[i] = part[i % (sizeof part - 1)];
    return text;
}

static char *make_request(int64_t output_tokens, const char *more)
{
    char *prompt = make_prompt(o.prompt_tokens);
    const char *before = o.chat ? "\"messages\":[{\"role\":\"user\",\"content\":\"" : "\"prompt\":\"";
    char *body = mem_format("{%s%s\"%s,\"max_tokens\":%lld,\"ignore_eos\":true%s}", before, prompt, o.chat ? "}]" : "",
                            (long long)output_tokens, more);
    char *request = http_client_request(o.chat ? "/v1/chat/completions" : "/v1/completions", body);
    free(body);
    free(prompt);
    return request;
}

struct clients {
    int *fds; // [o.concurrency]
    char *request;
    size_t request_bytes;
};

static enum status call_run(void *user, int thread, int i)
{
    struct clients *clients = user;
    return http_client_call(clients->fds[thread], clients->request, clients->request_bytes);
}

static enum status measure_rates(const struct router_process *router, json_t *rows)
{
    struct clients clients = {.fds = mem_alloc_array((size_t)o.concurrency, sizeof(int)),
                              .request = make_request(o.output_tokens, "")};
    clients.request_bytes = strlen(clients.request);
    int n = 0;
    enum status status = STATUS_OK;
    while (n < o.concurrency && status == STATUS_OK) {
        status = http_client_open(router->http_port, &clients.fds[n]);
        n += status == STATUS_OK;
    }
    const struct paced_calls calls = {o.rate, o.seconds, (int)o.concurrency, o.json, call_run, &clients};
    if (status == STATUS_OK) status = paced_calls_run(&calls, router, rows);
    while (n--)
        close(clients.fds[n]);
    free(clients.fds);
    free(clients.request);
    return status;
}

static enum status measure_streams(const struct router_process *router, struct fake_pace *pace, json_t *rows)
{
    int64_t tokens = (int64_t)(o.seconds * 2000) / o.interval_ms + 60; // no stream may end while it is measured
    char *request = make_request(tokens, ",\"stream\":true,\"return_token_ids\":true");
    const struct router_streams streams = {(int)o.streams, o.seconds, pace, request, o.json};
    enum status status = router_streams_measure(&streams, router, rows);
    free(request);
    return status;
}

static enum status measure_limits(const struct router_process *router, json_t *rows)
{
    char *request = make_request(o.output_tokens, "");
    const struct router_limits limits = {(int)o.concurrency, o.seconds, request, o.tls, o.json};
    enum status status = router_limits_measure(&limits, router, rows);
    free(request);
    return status;
}

static enum status measure_attached(const struct router_process *router, struct fake_pace *pace, json_t *rows)
{
    if (o.tls || o.limit) return measure_limits(router, rows);
    return o.streams ? measure_streams(router, pace, rows) : measure_rates(router, rows);
}

static enum status measure(const struct router_process *router, json_t *rows)
{
    static struct fake_pace pace;
    struct fake_node *node = NULL;
    pace.interval_ms = (int)o.interval_ms;
    enum status status = router_process_wait(router, false);
    if (status == STATUS_OK) status = fake_node_open(router, o.streams ? &pace : NULL, &node);
    if (status == STATUS_OK) status = router_process_wait(router, true);
    if (status == STATUS_OK) status = measure_attached(router, &pace, rows);
    fake_node_close(node);
    return status;
}

// Starts a plain router, and with --tls also one with TLS. Both start before the first thread.
enum { ROUTERS = 2 };

static enum status routers_start(struct router_process routers[ROUTERS], struct certificate_files *files,
                                 struct rpc_tls *tls)
{
    if (!o.model) return status_fail(STATUS_INVALID, "--model DIR is required");
    if (o.tls && o.streams) return status_fail(STATUS_INVALID, "--tls: not together with --streams");
    if (o.limit && o.streams) return status_fail(STATUS_INVALID, "--limit: not together with --streams");
    const struct router_process_options plain = {.model = o.model,
                                                 .shape = o.shape,
                                                 .config = o.config,
                                                 .log = o.log,
                                                 .core = (int)o.core,
                                                 .n_cores = (int)o.cores,
                                                 .http = true};
    TRY(router_process_start(&plain, &routers[0]));
    if (!o.tls) return STATUS_OK;
    TRY(certificate_files_create(files));
    *tls = (struct rpc_tls){.cert = files->cert, .key = files->key};
    struct router_process_options secure = plain;
    secure.tls = tls;
    return router_process_start(&secure, &routers[1]);
}

int bench_router_http(int argc, char **argv)
{
    options_main(options,
                 "Usage: forepack bench router-http --model DIR [--rate 1500,3000 | --streams 10000 | --limit | --tls] "
                 "[options]\n"
                 "Latency, throughput, CPU time and memory that a router adds over HTTP, with a node without a model.",
                 argc, argv, NULL);
    json_t *rows = json_array();
    struct router_process routers[ROUTERS] = {0};
    struct certificate_files files = {0};
    struct rpc_tls tls;
    enum status status = routers_start(routers, &files, &tls);
    if (status == STATUS_OK) {
        node_block_signals();
        rpc_init();
        for (int i = 0; i < (o.tls ? ROUTERS : 1) && status == STATUS_OK; i++)
            status = measure(&routers[i], rows);
        rpc_shutdown();
    }
    for (int i = 0; i < ROUTERS; i++)
        router_process_stop(&routers[i]);
    certificate_files_remove(&files);
    if (status == STATUS_OK && o.json) bench_print_json(rows);
    int code = status == STATUS_OK ? 0 : report_failure(status);
    json_decref(rows);
    options_free(options);
    return code;
}
