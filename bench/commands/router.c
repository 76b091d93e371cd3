// SPDX-License-Identifier: Apache-2.0
// forepack bench router: the cost of scheduling. Measures the time to pack a queue, the bins against a lower bound, and
// the CPU time of the router's core per request with simulated worker groups (bench/dispatch.h).
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench/commands/bench.h"
#include "bench/dispatch.h"
#include "bench/pack_exact.h"
#include "bench/pack_offline.h"
#include "bench/prompts.h"
#include "bench/quantiles.h"
#include "bench/report.h"
#include "cli/progress.h"
#include "cli/request.h"
#include "lib/base/clock.h"
#include "lib/base/mem.h"
#include "lib/base/options.h"

static struct {
    char *queue, *lengths, *report;
    bool prefix_cache;
    int64_t capacity, workers, max_seqs, kv_blocks, max_wait_ms, shared_prefix_tokens, output_tokens, rounds;
    double seconds;
    bool json;
} o;

// clang-format off
static const struct option options[] = {
    {.name = "-Queue"},
    {.name = "queue", .type = OPTION_STRING, .value = &o.queue, .default_text = "10000,100000", .unit = "requests",
     .help = "waiting requests, comma-separated"},
    {.name = "lengths", .type = OPTION_STRING, .value = &o.lengths,
     .help = "file with one prompt length per line; requests sample it with a fixed seed (required)"},
    {.name = "capacity", .type = OPTION_INT, .value = &o.capacity, .default_text = "2048", .max = 1048576,
     .unit = "tokens", .help = "bin capacity; raised to the longest prompt"},
    {.name = "-Simulated worker groups"},
    {.name = "workers", .type = OPTION_INT, .value = &o.workers, .default_text = "2", .min = 1, .max = 1000,
     .help = "number of groups"},
    {.name = "max-num-seqs", .type = OPTION_INT, .value = &o.max_seqs, .default_text = "256", .min = 1, .max = MODEL_SEQS_MAX,
     .unit = "sequences", .help = "concurrent sequences of a group"},
    {.name = "kv-blocks", .type = OPTION_INT, .value = &o.kv_blocks, .default_text = "0", .max = MODEL_KV_BLOCKS_MAX,
     .unit = "blocks", .help = "KV blocks of a group, of 16 tokens; 0 is enough for every sequence"},
    {.name = "enable-prefix-caching", .type = OPTION_BOOL, .value = &o.prefix_cache,
     .help = "groups have a prefix cache"},
    {.name = "shared-prefix-tokens", .type = OPTION_INT, .value = &o.shared_prefix_tokens, .default_text = "0", .max = 1048576,
     .unit = "tokens", .help = "length of a prefix that all prompts share; 0 is none"},
    {.name = "max-wait-ms", .type = OPTION_INT, .value = &o.max_wait_ms, .default_text = "3600000", .max = 3600000,
     .unit = "ms", .help = "waiting time after which a request is overdue (a step takes 10 ms); the default is never"},
    {.name = "output-tokens", .type = OPTION_INT, .value = &o.output_tokens, .default_text = "8", .min = 1, .max = 1e6,
     .unit = "tokens", .help = "tokens of each answer"},
    {.name = "-Timing and output"},
    {.name = "rounds", .type = OPTION_INT, .value = &o.rounds, .default_text = "5", .min = 1, .max = ROUNDS_MAX,
     .help = "times that the queue is packed; the median is reported"},
    {.name = "seconds", .type = OPTION_REAL, .value = &o.seconds, .default_text = "10", .min = 0.001, .max = 86400,
     .unit = "s", .help = "longest simulation; figures then count the requests that ended"},
    {.name = "report", .type = OPTION_STRING, .value = &o.report, .help = "also write an HTML page with plots to this file"},
    {.name = "json", .type = OPTION_BOOL, .value = &o.json, .help = "print a JSON list"},
    {0},
};
// clang-format on

enum { SAMPLE = 32, SAMPLES_MAX = 100, SAMPLE_NODES = 1000000, WARM_UP_REQUESTS = 1000 };

struct queue {
    int32_t *length; // [n] sampled from the file with a fixed seed
    int n;
    int32_t capacity; // capacity of a bin in rows
    struct progress progress;
};

static struct queue queue_create(const struct prompts *prompts, int n)
{
    struct queue q = {.length = mem_alloc_array((size_t)n, sizeof *q.length), .n = n};
    q.capacity = prompts->longest > o.capacity ? prompts->longest : (int32_t)o.capacity;
    uint64_t state = 1;
    for (int i = 0; i < n; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        q.length[i] = prompts->length[(state >> 33) % (uint64_t)prompts->n];
    }
    return q;
}

// ---- packing --------------------------------------------------------------------------------------------------------

// Returns the median over rounds in ms. The first round is not counted.
static double queue_time_packing(struct queue *q, enum pack_rule rule, int32_t *bin_of, int *bins_p)
{
    struct samples ms = {0};
    for (int r = 0; r <= o.rounds; r++) {
        progress_draw(&q->progress, 0, q->n, false, "%d waiting: packing, round %d of %d", q->n, r, (int)o.rounds);
        int64_t from_us = clock_now_us();
        *bins_p = pack_items(q->length, q->n, q->capacity, rule, bin_of);
        if (r) samples_add(&ms, (double)(clock_now_us() - from_us) / 1e3);
    }
    double median = samples_percentile(&ms, 50);
    samples_free(&ms);
    return median;
}

// Packs batches of the queue with the exact solver, into bins as long as their longest prompt. Counts the batches with
// a proven optimal packing, and the batches for which best fit takes more bins than the solver.
static void queue_compare_exact(json_t *row, struct queue *q)
{
    int samples = 0, proven = 0, worse = 0;
    for (int first = 0; first + SAMPLE <= q->n && samples < SAMPLES_MAX; first += SAMPLE, samples++) {
        progress_draw(&q->progress, 0, q->n, false, "%d waiting: exact packing of batch %d", q->n, samples + 1);
        const int32_t *length = q->length + first;
        int32_t bin_of[SAMPLE], longest = 0;
        for (int i = 0; i < SAMPLE; i++)
            if (length[i] > longest) longest = length[i];
        int lower, best = pack_exact(length, SAMPLE, longest, SAMPLE_NODES, bin_of, &lower);
        proven += best == lower;
        worse += pack_items(length, SAMPLE, longest, PACK_BEST_FIT, bin_of) > best;
    }
    json_object_set_new(row, "samples", json_integer(samples));
    json_object_set_new(row, "samples_proven", json_integer(proven));
    json_object_set_new(row, "samples_best_fit_worse", json_integer(worse));
}

static json_t *queue_measure_packing(struct queue *q)
{
    int32_t *bin_of = mem_alloc_array((size_t)q->n, sizeof *bin_of);
    int64_t tokens = 0;
    for (int i = 0; i < q->n; i++)
        tokens += q->length[i];
    int best_bins = 0, first_bins = 0;
    double best_ms = queue_time_packing(q, PACK_BEST_FIT, bin_of, &best_bins);
    double first_ms = queue_time_packing(q, PACK_FIRST_FIT, bin_of, &first_bins);
    free(bin_of);
    json_int_t full = (tokens + q->capacity - 1) / q->capacity;
    json_t *row =
        json_pack("{s:i,s:i,s:I,s:f,s:i,s:f,s:i,s:I,s:i,s:f}", "queue", q->n, "capacity", (int)q->capacity, "tokens",
                  (json_int_t)tokens, "pack_ms", best_ms, "bins", best_bins, "first_fit_ms", first_ms, "first_fit_bins",
                  first_bins, "bins_by_sum", full, "lower_bound", pack_lower_bound(q->length, q->n, q->capacity),
                  "bins_over_sum", (double)best_bins / (double)full);
    queue_compare_exact(row, q);
    return row;
}

// ---- the core -------------------------------------------------------------------------------------------------------

static void queue_draw_progress(void *user, int ended)
{
    struct queue *q = user;
    progress_draw(&q->progress, ended, q->n, false, "%d waiting: %d passed through the core", q->n, ended);
}

static enum status queue_simulate(struct queue *q, struct dispatch_result *result_p)
{
    const struct dispatch_options dispatch = {.length = q->length,
                                              .n = q->n,
                                              .token_budget = (int)q->capacity,
                                              .max_seqs = (int)o.max_seqs,
                                              .kv_blocks = (int)o.kv_blocks,
                                              .prefix_cache = o.prefix_cache,
                                              .workers = (int)o.workers,
                                              .shared_head = (int)o.shared_prefix_tokens,
                                              .max_wait_us = o.max_wait_ms * 1000,
                                              .output_tokens = (int)o.output_tokens,
                                              .seconds = o.seconds,
                                              .stepped = queue_draw_progress,
                                              .user = q};
    return dispatch_run(&dispatch, result_p);
}

// Runs a short uncounted queue, so that code and heap pages are in memory.
static enum status router_warm_up(const struct prompts *prompts)
{
    struct queue q = queue_create(prompts, WARM_UP_REQUESTS);
    struct dispatch_result unused;
    enum status status = queue_simulate(&q, &unused);
    free(q.length);
    return status;
}

// ---- report ---------------------------------------------------------------------------------------------------------

static void router_print_row(const json_t *row)
{
    printf("%.0f waiting requests, bins of %.0f rows\n", bench_row_number(row, "queue"),
           bench_row_number(row, "capacity"));
    printf(
        "  packing: %.0f bins in %.2f ms with best fit (first fit: %.2f ms); lower bounds: %.0f by total length, %.0f "
        "by prompt lengths\n",
        bench_row_number(row, "bins"), bench_row_number(row, "pack_ms"), bench_row_number(row, "first_fit_ms"),
        bench_row_number(row, "bins_by_sum"), bench_row_number(row, "lower_bound"));
    printf("  packing of batches of %d: best fit takes more bins than the exact solver in %.0f of %.0f batches\n",
           (int)SAMPLE, bench_row_number(row, "samples_best_fit_worse"), bench_row_number(row, "samples"));
    printf("  core, CPU time: %.2f us to submit a request, %.3f ms to dispatch a bin (max %.3f), %.3f ms the longest "
           "tick, %.2f us per token, %.1f us per request in total\n",
           bench_row_number(row, "submit_us"), bench_row_number(row, "hand_out_ms_mean"),
           bench_row_number(row, "hand_out_ms_max"), bench_row_number(row, "tick_ms_max"),
           bench_row_number(row, "token_us"), bench_row_number(row, "router_us_per_request"));
    printf("  core: %.0f requests ended, bins %.1f %% full, scan cost %.1f requests per dispatched request\n",
           bench_row_number(row, "requests"), 100 * bench_row_number(row, "fill"),
           bench_row_number(row, "looks_per_request"));
    printf("  core: %.2f nodes asked and %.1f nodes visited per bin, %.1f kB of memory per node\n",
           bench_row_number(row, "nodes_asked_per_bin"), bench_row_number(row, "node_visits_per_bin"),
           bench_row_number(row, "node_kb"));
    fflush(stdout);
}

struct plot_line {
    const char *key, *name;
};

// Adds a plot by the number of waiting requests, with one line per key.
static void router_report_by_queue(struct report *report, const json_t *rows, const char *title, const char *y_title,
                                   const struct plot_line *lines, int n_lines)
{
    double x[NUMBER_LIST_MAX], y[3][NUMBER_LIST_MAX];
    struct report_series series[3];
    int n = (int)json_array_size(rows);
    for (int l = 0; l < n_lines; l++) {
        for (int i = 0; i < n; i++) {
            const json_t *row = json_array_get(rows, (size_t)i);
            x[i] = bench_row_number(row, "queue");
            y[l][i] = bench_row_number(row, lines[l].key);
        }
        series[l] = (struct report_series){lines[l].name, x, y[l], n};
    }
    report_lines(report, &(struct report_chart){title, "requests waiting", y_title, true, true, series, n_lines});
}

static void router_write_report(struct report *report, const json_t *rows)
{
    static const struct plot_line packing[] = {{"pack_ms", "best fit"}, {"first_fit_ms", "first fit"}};
    static const struct plot_line core[] = {
        {"router_us_per_request", "total"}, {"submit_us", "submit"}, {"token_us", "one token"}};
    static const struct plot_line bins[] = {{"hand_out_ms_mean", "mean"}, {"hand_out_ms_max", "max"}};
    static const char *const columns[] = {"queue=Waiting",
                                          "capacity=Bin",
                                          "pack_ms=Packing ms, best fit",
                                          "first_fit_ms=first fit",
                                          "bins=Bins, best fit",
                                          "first_fit_bins=first fit",
                                          "bins_by_sum=Lower bound by total length",
                                          "lower_bound=Lower bound by lengths",
                                          "samples=Batches solved exactly",
                                          "samples_proven=proven optimal",
                                          "samples_best_fit_worse=best fit worse",
                                          "requests=Ended",
                                          "submit_us=Submit, us",
                                          "hand_out_ms_mean=Dispatch of a bin, ms",
                                          "hand_out_ms_max=max",
                                          "tick_ms_max=longest tick, ms",
                                          "token_us=Token, us",
                                          "router_us_per_request=Request, us",
                                          "looks_per_request=Scan cost",
                                          "fill=Fill",
                                          "nodes_asked_per_bin=Nodes asked",
                                          "node_visits_per_bin=Nodes visited",
                                          "node_kb=kB per node"};
    report_paragraph(
        report,
        "Prompt lengths of %s, sampled with a fixed seed; packing time is the median of %lld rounds. %lld simulated "
        "groups of %lld sequences and %lld KV blocks (0: enough), prefix cache %s, a shared prefix of %lld tokens, "
        "%lld tokens per answer, requests overdue after %lld ms. Times of the core are CPU time of its thread.",
        o.lengths, (long long)o.rounds, (long long)o.workers, (long long)o.max_seqs, (long long)o.kv_blocks,
        o.prefix_cache ? "on" : "off", (long long)o.shared_prefix_tokens, (long long)o.output_tokens,
        (long long)o.max_wait_ms);
    router_report_by_queue(report, rows, "Time to pack the queue", "ms", packing, 2);
    router_report_by_queue(report, rows, "CPU time of the core per request", "us", core, 3);
    router_report_by_queue(report, rows, "CPU time to dispatch a bin", "ms", bins, 2);
    report_table(report, rows, columns, sizeof columns / sizeof columns[0]);
}

// ---- the command ----------------------------------------------------------------------------------------------------

static enum status router_measure(const struct prompts *prompts, int n, json_t *rows)
{
    struct queue q = queue_create(prompts, n);
    json_t *row = queue_measure_packing(&q);
    struct dispatch_result r;
    enum status status = queue_simulate(&q, &r);
    free(q.length);
    json_array_append_new(rows, row);
    if (status != STATUS_OK) return status;
    if (isatty(STDERR_FILENO)) progress_draw(&q.progress, r.requests, n, true, "%d of %d requests", r.requests, n);
    json_t *more =
        json_pack("{s:i,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:I,s:f,s:f,s:f,s:f}", "requests", r.requests, "submit_us",
                  r.submit_us, "hand_out_ms_mean", r.dispatch_ms, "hand_out_ms_max", r.dispatch_ms_max, "tick_ms_max",
                  r.tick_ms_max, "token_us", r.token_us, "router_us_per_request", r.request_us, "looks_per_request",
                  r.scan_cost, "bins_handed_out", (json_int_t)r.bins, "fill", r.fill, "nodes_asked_per_bin",
                  r.nodes_asked, "node_visits_per_bin", r.node_visits, "node_kb", r.node_kb);
    json_object_update(row, more);
    json_decref(more);
    if (!o.json) router_print_row(row);
    return STATUS_OK;
}

static int queue_compare_size(const void *a, const void *b)
{
    return *(const int *)a - *(const int *)b;
}

int bench_router(int argc, char **argv)
{
    options_main(
        options,
        "Usage: forepack bench router --lengths F [--queue 10000,100000] [options]\n"
        "Time to pack a queue, bins compared with a lower bound, and CPU time of the router's core per request.",
        argc, argv, NULL);
    struct count_list queues;
    struct prompts prompts = {.n = 0};
    struct report *report = NULL;
    json_t *rows = json_array();
    enum status status =
        o.lengths ? STATUS_OK
                  : status_fail(STATUS_INVALID, "--lengths F is required: a file with one prompt length per line");
    if (status == STATUS_OK) status = count_list_parse("queue", o.queue, 1, 10000000, &queues);
    if (status == STATUS_OK) status = prompts_read_lengths(o.lengths, 0, &prompts);
    if (status == STATUS_OK && o.report) status = report_open(o.report, "forepack bench router", &report);
    if (status == STATUS_OK) status = router_warm_up(&prompts);
    if (status == STATUS_OK) qsort(queues.count, (size_t)queues.n, sizeof *queues.count, queue_compare_size);
    for (int i = 0; status == STATUS_OK && i < queues.n; i++)
        status = router_measure(&prompts, queues.count[i], rows);
    if (status == STATUS_OK && o.json) bench_print_json(rows);
    if (status == STATUS_OK && report) router_write_report(report, rows);
    enum status written = report_close(report);
    if (status == STATUS_OK) status = written;
    int code = status == STATUS_OK ? 0 : report_failure(status);
    prompts_free(&prompts);
    json_decref(rows);
    options_free(options);
    return code;
}
