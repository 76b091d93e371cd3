// SPDX-License-Identifier: Apache-2.0
// forepack bench router-page: measures the CPU time of a router for each open live page
// (router/front/live/live_pages.h). Simulated worker groups (fake_node.h) hold a few requests each and are then silent.
// So a long queue stays in the router, which has nothing to do but its pages.
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "bench/commands/bench.h"
#include "bench/commands/fake_node.h"
#include "bench/commands/http_client.h"
#include "bench/commands/router_process.h"
#include "cli/request.h"
#include "engine/node.h"
#include "lib/base/clock.h"
#include "lib/base/log.h"
#include "lib/base/mem.h"
#include "lib/base/options.h"
#include "lib/net/rpc.h"
#include "proto/forepack/v1/inference.pb-c.h"

enum { NODE_SEQS = 16, PAGES_MAX = 32, PROMPT_MOST = 400, WAIT_US = 60000000, READ_ROOM = 1 << 16 };

static struct {
    char *model, *pages, *log;
    int64_t nodes, queue, core;
    double seconds;
    bool json;
} o;

// clang-format off
static const struct option options[] = {
    {.name = "-Router"},
    {.name = "model", .type = OPTION_STRING, .value = &o.model, .help = "model directory of the router (required)"},
    {.name = "core", .type = OPTION_INT, .value = &o.core, .default_text = "0", .min = -1, .max = CPU_SETSIZE / 2,
     .help = "the only core that the router may use; -1: any"},
    {.name = "log", .type = OPTION_STRING, .value = &o.log, .default_text = "/dev/null", .help = "file for the router's log"},
    {.name = "-Cluster"},
    {.name = "nodes", .type = OPTION_INT, .value = &o.nodes, .default_text = "50", .min = 1, .max = 1000,
     .help = "number of simulated worker groups"},
    {.name = "queue", .type = OPTION_INT, .value = &o.queue, .default_text = "10000", .max = 1000000, .unit = "requests",
     .help = "number of waiting requests"},
    {.name = "-Pages"},
    {.name = "pages", .type = OPTION_STRING, .value = &o.pages, .default_text = "0,1,8,32", .unit = "pages",
     .help = "open pages, comma-separated, one row each; the first row should be 0, with which the other rows are compared"},
    {.name = "seconds", .type = OPTION_REAL, .value = &o.seconds, .default_text = "20", .min = 1, .max = 3600, .unit = "s",
     .help = "time over which a row is measured"},
    {.name = "-Output"},
    {.name = "json", .type = OPTION_BOOL, .value = &o.json, .help = "print a JSON list"},
    {0},
};
// clang-format on

struct bench {
    struct router_process router;
    struct fake_pace pace;
    struct fake_node **nodes; // [n_nodes]
    int n_nodes;
    struct rpc_channel *channel;
    struct rpc_stream *requests; // all requests, in one call
    double idle_cpu_percent;     // CPU load of the first row
    json_t *rows;
};

// ---- the cluster ----------------------------------------------------------------------------------------------------

static enum status nodes_attach(struct bench *b)
{
    b->pace = (struct fake_pace){.interval_ms = 10000, .max_seqs = NODE_SEQS};
    b->nodes = mem_alloc_array((size_t)o.nodes, sizeof *b->nodes);
    for (; b->n_nodes < o.nodes; b->n_nodes++)
        TRY(fake_node_open(&b->router, &b->pace, &b->nodes[b->n_nodes]));
    return router_process_wait(&b->router, true);
}

static void request_send(struct bench *b, int i)
{
    uint32_t ids[PROMPT_MOST];
    char id[24];
    Forepack__V1__GenerateRequest request = FOREPACK__V1__GENERATE_REQUEST__INIT;
    Forepack__V1__SamplingOptions sampling = FOREPACK__V1__SAMPLING_OPTIONS__INIT;
    size_t n = 10 + (size_t)i * 7919 % (PROMPT_MOST - 10);
    for (size_t k = 0; k < n; k++)
        ids[k] = 300 + (uint32_t)k % 100;
    snprintf(id, sizeof id, "r%d", i);
    sampling.max_tokens_given_case = FOREPACK__V1__SAMPLING_OPTIONS__MAX_TOKENS_GIVEN_MAX_TOKENS;
    sampling.max_tokens = 100;
    sampling.ignore_eos = true;
    request.request_id = id;
    request.token_ids = ids;
    request.n_token_ids = n;
    request.sampling = &sampling;
    uint8_t bytes[4096];
    rpc_stream_send(b->requests, bytes, forepack__v1__generate_request__pack(&request, bytes));
}

// Reads the number of waiting requests and of attached nodes.
static enum status state_read(struct bench *b, int64_t *waiting_p, int64_t *nodes_p)
{
    struct rpc_bytes answer;
    TRY(rpc_unary(b->channel, "/forepack.v1.Inference/GetClusterInfo", (const uint8_t *)"", 0, 10000, &answer));
    Forepack__V1__ClusterInfo *info = forepack__v1__cluster_info__unpack(NULL, answer.size, answer.data);
    rpc_bytes_free(&answer);
    if (!info || !info->queue) return status_fail(STATUS_INTERNAL, "the router's answer is not a valid ClusterInfo");
    *waiting_p = info->queue->waiting;
    *nodes_p = (int64_t)info->n_nodes;
    forepack__v1__cluster_info__free_unpacked(info, NULL);
    return STATUS_OK;
}

static enum status queue_fill(struct bench *b)
{
    TRY(rpc_channel_open(b->router.server, &b->channel));
    TRY(rpc_stream_open(b->channel, "/forepack.v1.Inference/GenerateMany", 0, false, &b->requests));
    int64_t waiting = 0, nodes = 0, end_us = clock_now_us() + WAIT_US;
    for (int64_t i = 0; i < o.queue + o.nodes * NODE_SEQS; i++)
        request_send(b, (int)i);
    while (waiting != o.queue || nodes != o.nodes) {
        TRY(state_read(b, &waiting, &nodes));
        if (clock_now_us() > end_us)
            return status_fail(STATUS_UNAVAILABLE,
                               "%lld requests wait and %lld nodes are attached, instead of %lld and %lld",
                               (long long)waiting, (long long)nodes, (long long)o.queue, (long long)o.nodes);
        usleep(100000);
    }
    return STATUS_OK;
}

// ---- pages ----------------------------------------------------------------------------------------------------------

static enum status page_open(const struct bench *b, struct pollfd *page)
{
    static const char request[] = "GET /live/events HTTP/1.1\r\nHost: localhost\r\n\r\n";
    page->events = POLLIN;
    TRY(http_client_open(b->router.http_port, &page->fd));
    return http_client_send(page->fd, request, sizeof request - 1);
}

// Reads all pages for some time. Adds the bytes received to *bytes_p.
static enum status pages_read(struct pollfd *pages, int n, double seconds, uint64_t *bytes_p)
{
    char bytes[READ_ROOM];
    int64_t now_us = clock_now_us(), end_us = now_us + (int64_t)(seconds * 1e6);
    for (; now_us < end_us; now_us = clock_now_us()) {
        poll(pages, (nfds_t)n, (int)((end_us - now_us) / 1000) + 1);
        for (int i = 0; i < n; i++) {
            if (!pages[i].revents) continue;
            ssize_t got = recv(pages[i].fd, bytes, sizeof bytes, MSG_DONTWAIT);
            if (got == 0) return status_fail(STATUS_UNAVAILABLE, "the router closed a page");
            if (got > 0) *bytes_p += (uint64_t)got;
        }
    }
    return STATUS_OK;
}

static void row_add(struct bench *b, int n, double cpu_percent, double kb_per_s)
{
    if (!json_array_size(b->rows)) b->idle_cpu_percent = cpu_percent;
    double page_percent = n ? (cpu_percent - b->idle_cpu_percent) / n : 0;
    json_array_append_new(b->rows, json_pack("{s:i,s:I,s:I,s:f,s:f,s:f}", "pages", n, "nodes", (json_int_t)o.nodes,
                                             "waiting", (json_int_t)o.queue, "router_cpu_percent", cpu_percent,
                                             "page_cpu_percent", page_percent, "page_kb_per_s", n ? kb_per_s / n : 0));
    if (o.json) return;
    if (json_array_size(b->rows) == 1) printf("  pages   router CPU %%   CPU %% for each page   kB/s for each page\n");
    printf("%7d %14.2f %22.3f %20.1f\n", n, cpu_percent, page_percent, n ? kb_per_s / n : 0);
    fflush(stdout);
}

static enum status pages_measure(struct bench *b, int n)
{
    struct pollfd pages[PAGES_MAX];
    uint64_t first = 0, bytes = 0;
    int n_open = 0;
    enum status status = STATUS_OK;
    while (n_open < n && status == STATUS_OK) {
        status = page_open(b, &pages[n_open]);
        n_open += status == STATUS_OK;
    }
    if (status == STATUS_OK) status = pages_read(pages, n, 1.5, &first); // includes the histories
    double cpu_s = router_process_cpu_s(&b->router);
    int64_t from_us = clock_now_us();
    if (status == STATUS_OK) status = pages_read(pages, n, o.seconds, &bytes);
    double lasted_s = (double)(clock_now_us() - from_us) / 1e6;
    cpu_s = router_process_cpu_s(&b->router) - cpu_s;
    while (n_open--)
        close(pages[n_open].fd);
    if (status == STATUS_OK && n && !bytes) status = status_fail(STATUS_UNAVAILABLE, "the pages got no event");
    if (status == STATUS_OK) row_add(b, n, 100 * cpu_s / lasted_s, (double)bytes / 1000 / lasted_s);
    return status;
}

// ---- the command ----------------------------------------------------------------------------------------------------

static enum status measure(struct bench *b, const struct count_list *pages)
{
    TRY(router_process_wait(&b->router, false));
    TRY(nodes_attach(b));
    TRY(queue_fill(b));
    for (int i = 0; i < pages->n; i++)
        TRY(pages_measure(b, pages->count[i]));
    return STATUS_OK;
}

// Kills the router first: its drain would wait for the nodes, and each node for the end of its stream.
static void bench_close(struct bench *b)
{
    kill(b->router.pid, SIGKILL);
    router_process_stop(&b->router);
    if (b->requests) rpc_stream_close(b->requests);
    rpc_channel_close(b->channel);
    while (b->n_nodes--)
        fake_node_close(b->nodes[b->n_nodes]);
    free(b->nodes);
}

int bench_router_page(int argc, char **argv)
{
    options_main(options,
                 "Usage: forepack bench router-page --model DIR [--nodes 50] [--queue 10000] [--pages 0,1,8,32]\n"
                 "CPU time that a router spends on each open live page, with many nodes and a long queue.",
                 argc, argv, NULL);
    log_setup("forepack-bench", LOG_ERROR); // all nodes lose the router at the end
    static struct bench b;
    struct count_list pages;
    b.rows = json_array();
    const struct router_process_options router_options = {.model = o.model,
                                                          .log = o.log,
                                                          .core = (int)o.core,
                                                          .n_cores = 1,
                                                          .queue_requests = 2 * (o.queue + o.nodes * NODE_SEQS) + 100,
                                                          .http = true};
    enum status status = count_list_parse("pages", o.pages, 0, PAGES_MAX, &pages);
    if (status == STATUS_OK && !o.model) status = status_fail(STATUS_INVALID, "--model DIR is required");
    if (status == STATUS_OK) status = router_process_start(&router_options, &b.router);
    if (status == STATUS_OK) {
        node_block_signals();
        rpc_init();
        status = measure(&b, &pages);
        bench_close(&b);
        rpc_shutdown();
    } else {
        router_process_stop(&b.router);
    }
    if (status == STATUS_OK && o.json) bench_print_json(b.rows);
    int code = status == STATUS_OK ? 0 : report_failure(status);
    json_decref(b.rows);
    options_free(options);
    return code;
}
