// SPDX-License-Identifier: Apache-2.0
// forepack bench router: what scheduling costs. Time to pack a queue and how near the packing is to what any packing
// needs, and the CPU time of the router's core for a request, with simulated worker groups (bench/dispatch.h).
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/options.h"
#include "bench/commands/bench.h"
#include "bench/dispatch.h"
#include "bench/pack_exact.h"
#include "bench/pack_offline.h"
#include "bench/prompts.h"
#include "bench/quantiles.h"
#include "bench/report.h"
#include "cli/progress.h"
#include "cli/request.h"

static struct {
    char *queue, *lengths, *report;
    bool prefix_cache;
    int64_t capacity, workers, max_seqs, kv_blocks, max_wait_ms, shared_head, output_tokens, rounds;
    double seconds;
    bool json;
} o;

// clang-format off
static const struct option options[] = {
    {.name = "-Queue"},
    {.name = "queue", .type = OPTION_STRING, .value = &o.queue, .default_text = "10000,100000", .unit = "requests",
     .help = "requests that wait at once"},
    {.name = "lengths", .type = OPTION_STRING, .value = &o.lengths,
     .help = "file with a length in tokens each line; drawn from with a fixed seed (required)"},
    {.name = "capacity", .type = OPTION_INT, .value = &o.capacity, .default_text = "2048", .max = 1048576,
     .unit = "tokens", .help = "of a bin, unless the longest prompt is longer; 0: the longest prompt"},
    {.name = "-Worker groups, simulated"},
    {.name = "workers", .type = OPTION_INT, .value = &o.workers, .default_text = "2", .min = 1, .max = 1000,
     .help = "groups that ask for work"},
    {.name = "max-num-seqs", .type = OPTION_INT, .value = &o.max_seqs, .default_text = "256", .min = 1, .max = MODEL_SEQS_MAX,
     .unit = "sequences", .help = "that a group runs at once"},
    {.name = "kv-blocks", .type = OPTION_INT, .value = &o.kv_blocks, .default_text = "0", .max = MODEL_KV_BLOCKS_MAX,
     .unit = "blocks", .help = "KV cache of a group, of 16 tokens each; 0: more than it can use"},
    {.name = "enable-prefix-caching", .type = OPTION_BOOL, .value = &o.prefix_cache,
     .help = "groups have one"},
    {.name = "shared-head", .type = OPTION_INT, .value = &o.shared_head, .default_text = "0", .max = 1048576,
     .unit = "tokens", .help = "that all prompts begin with, of their length; 0: none"},
    {.name = "max-wait-ms", .type = OPTION_INT, .value = &o.max_wait_ms, .default_text = "3600000", .max = 3600000,
     .unit = "ms", .help = "after which a request goes before others (a step takes 10 ms): by default never"},
    {.name = "output-tokens", .type = OPTION_INT, .value = &o.output_tokens, .default_text = "8", .min = 1, .max = 1e6,
     .unit = "tokens", .help = "of each answer"},
    {.name = "-How"},
    {.name = "rounds", .type = OPTION_INT, .value = &o.rounds, .default_text = "5", .min = 1, .max = ROUNDS_MAX,
     .help = "times that the queue is packed; the middle time is told"},
    {.name = "seconds", .type = OPTION_REAL, .value = &o.seconds, .default_text = "10", .min = 0.001, .max = 86400,
     .unit = "s", .help = "simulate no longer than this; figures are then of the requests that ended"},
    {.name = "report", .type = OPTION_STRING, .value = &o.report, .help = "write an HTML page with plots to this file"},
    {.name = "json", .type = OPTION_BOOL, .value = &o.json, .help = "print a JSON list"},
    {0},
};
// clang-format on

enum { SAMPLE = 32, SAMPLES_MAX = 100, SAMPLE_NODES = 1000000, WARM_UP_REQUESTS = 1000 };

struct queue {
    int32_t *length; // [n] the file's, drawn with a fixed seed
    int n;
    int32_t capacity; // of a bin
    struct progress progress;
};

static struct queue queue_draw(const struct prompts *prompts, int n)
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

// Milliseconds of the middle round; one before them is not counted.
static double time_packing(struct queue *q, enum pack_rule rule, int32_t *bin_of, int *bins_p)
{
    struct samples ms = {0};
    for (int r = 0; r <= o.rounds; r++) {
        progress_draw(&q->progress, 0, q->n, false, "%d waiting: packing, round %d of %d", q->n, r, (int)o.rounds);
        int64_t from_us = clock_now_us();
        *bins_p = pack_items(q->length, q->n, q->capacity, rule, bin_of);
        if (r) samples_add(&ms, (double)(clock_now_us() - from_us) / 1e3);
    }
    double middle = samples_percentile(&ms, 50);
    samples_free(&ms);
    return middle;
}

// Batches of the queue into bins of their longest prompt: how many have a packing that is proven the best, and for how
// many best fit takes a bin more than the best that was found.
static void judge(json_t *row, struct queue *q)
{
    int samples = 0, proven = 0, worse = 0;
    for (int first = 0; first + SAMPLE <= q->n && samples < SAMPLES_MAX; first += SAMPLE, samples++) {
        progress_draw(&q->progress, 0, q->n, false, "%d waiting: judging batch %d", q->n, samples + 1);
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

static json_t *measure_packing(struct queue *q)
{
    int32_t *bin_of = mem_alloc_array((size_t)q->n, sizeof *bin_of);
    int64_t tokens = 0;
    for (int i = 0; i < q->n; i++)
        tokens += q->length[i];
    int best_bins = 0, first_bins = 0;
    double best_ms = time_packing(q, PACK_BEST_FIT, bin_of, &best_bins);
    double first_ms = time_packing(q, PACK_FIRST_FIT, bin_of, &first_bins);
    free(bin_of);
    json_int_t full = (tokens + q->capacity - 1) / q->capacity;
    json_t *row =
        json_pack("{s:i,s:i,s:I,s:f,s:i,s:f,s:i,s:I,s:i,s:f}", "queue", q->n, "capacity", (int)q->capacity, "tokens",
                  (json_int_t)tokens, "pack_ms", best_ms, "bins", best_bins, "first_fit_ms", first_ms, "first_fit_bins",
                  first_bins, "bins_by_sum", full, "lower_bound", pack_lower_bound(q->length, q->n, q->capacity),
                  "bins_over_sum", (double)best_bins / (double)full);
    judge(row, q);
    return row;
}

// ---- the core -------------------------------------------------------------------------------------------------------

static void draw_ended(void *user, int ended)
{
    struct queue *q = user;
    progress_draw(&q->progress, ended, q->n, false, "%d waiting: %d went through the core", q->n, ended);
}

static enum status simulate(struct queue *q, struct dispatch_result *result_p)
{
    const struct dispatch_options dispatch = {.length = q->length,
                                              .n = q->n,
                                              .token_budget = (int)q->capacity,
                                              .max_seqs = (int)o.max_seqs,
                                              .kv_blocks = (int)o.kv_blocks,
                                              .prefix_cache = o.prefix_cache,
                                              .workers = (int)o.workers,
                                              .shared_head = (int)o.shared_head,
                                              .max_wait_us = o.max_wait_ms * 1000,
                                              .output_tokens = (int)o.output_tokens,
                                              .seconds = o.seconds,
                                              .stepped = draw_ended,
                                              .user = q};
    return dispatch_run(&dispatch, result_p);
}

// A short queue, not counted: code and the heap are in memory then.
static enum status warm_up(const struct prompts *prompts)
{
    struct queue q = queue_draw(prompts, WARM_UP_REQUESTS);
    struct dispatch_result unused;
    enum status status = simulate(&q, &unused);
    free(q.length);
    return status;
}

// ---- telling --------------------------------------------------------------------------------------------------------

static double real(const json_t *row, const char *key)
{
    return json_number_value(json_object_get(row, key));
}

static void print_row(const json_t *row)
{
    printf(
        "%9.0f waiting, bins of %.0f: packed in %.2f ms (first fit %.2f) into %.0f bins; at least %.0f by their sum, "
        "%.0f by any packing\n",
        real(row, "queue"), real(row, "capacity"), real(row, "pack_ms"), real(row, "first_fit_ms"), real(row, "bins"),
        real(row, "bins_by_sum"), real(row, "lower_bound"));
    printf("          batches of %d in bins of their longest: best fit takes one more than the best for %.0f of %.0f\n",
           (int)SAMPLE, real(row, "samples_best_fit_worse"), real(row, "samples"));
    printf(
        "          CPU of the core: %.2f us to take in a request, %.3f ms to hand out a bin (most %.3f), %.2f us a "
        "token; %.1f us a request in all (%.0f ended, bins %.1f %% full, %.1f looks at requests for each handed out)\n",
        real(row, "submit_us"), real(row, "hand_out_ms_mean"), real(row, "hand_out_ms_max"), real(row, "token_us"),
        real(row, "router_us_per_request"), real(row, "requests"), 100 * real(row, "fill"),
        real(row, "looks_per_request"));
    fflush(stdout);
}

struct line {
    const char *key, *name;
};

// Over the number of requests that wait: a line for each of the keys.
static void report_over_queue(struct report *report, const json_t *rows, const char *title, const char *y_title,
                              const struct line *lines, int n_lines)
{
    double x[BENCH_COUNTS_MAX], y[3][BENCH_COUNTS_MAX];
    struct report_series series[3];
    int n = (int)json_array_size(rows);
    for (int l = 0; l < n_lines; l++) {
        for (int i = 0; i < n; i++) {
            const json_t *row = json_array_get(rows, (size_t)i);
            x[i] = real(row, "queue");
            y[l][i] = real(row, lines[l].key);
        }
        series[l] = (struct report_series){lines[l].name, x, y[l], n};
    }
    report_lines(report, &(struct report_chart){title, "requests waiting", y_title, true, true, series, n_lines});
}

static void write_report(struct report *report, const json_t *rows)
{
    static const struct line packing[] = {{"pack_ms", "best fit"}, {"first_fit_ms", "first fit"}};
    static const struct line core[] = {
        {"router_us_per_request", "everything"}, {"submit_us", "to take it in"}, {"token_us", "to pass on a token"}};
    static const struct line bins[] = {{"hand_out_ms_mean", "mean"}, {"hand_out_ms_max", "most"}};
    static const char *const columns[] = {"queue=Waiting",
                                          "capacity=Bin",
                                          "pack_ms=Packed in ms",
                                          "first_fit_ms=first fit",
                                          "bins=Bins",
                                          "first_fit_bins=first fit",
                                          "bins_by_sum=By their sum",
                                          "lower_bound=By any packing",
                                          "samples=Batches judged",
                                          "samples_proven=proven",
                                          "samples_best_fit_worse=best fit worse",
                                          "requests=Ended",
                                          "submit_us=Taken in, us",
                                          "hand_out_ms_mean=Handed out, ms",
                                          "hand_out_ms_max=most",
                                          "token_us=Token, us",
                                          "router_us_per_request=Request, us",
                                          "looks_per_request=Looks a request",
                                          "fill=Fill"};
    report_paragraph(
        report,
        "Prompts drawn from %s with a fixed seed; packing is the middle of %lld rounds. %lld simulated "
        "groups of %lld sequences and %lld KV blocks (0: enough), prefix cache %s, all prompts alike in %lld "
        "tokens at the beginning, %lld tokens an answer, urgent after %lld ms; times of the core are CPU time "
        "of its thread.",
        o.lengths, (long long)o.rounds, (long long)o.workers, (long long)o.max_seqs, (long long)o.kv_blocks,
        o.prefix_cache ? "on" : "off", (long long)o.shared_head, (long long)o.output_tokens, (long long)o.max_wait_ms);
    report_over_queue(report, rows, "Time to pack the queue", "ms", packing, 2);
    report_over_queue(report, rows, "CPU time of the core for a request", "us", core, 3);
    report_over_queue(report, rows, "CPU time to hand out a bin", "ms", bins, 2);
    report_table(report, rows, columns, sizeof columns / sizeof columns[0]);
}

// ---- the command ----------------------------------------------------------------------------------------------------

static enum status measure(const struct prompts *prompts, int n, json_t *rows)
{
    struct queue q = queue_draw(prompts, n);
    json_t *row = measure_packing(&q);
    struct dispatch_result r;
    enum status status = simulate(&q, &r);
    free(q.length);
    json_array_append_new(rows, row);
    if (status != STATUS_OK) return status;
    if (isatty(STDERR_FILENO)) progress_draw(&q.progress, r.requests, n, true, "%d of %d requests", r.requests, n);
    json_t *more = json_pack("{s:i,s:f,s:f,s:f,s:f,s:f,s:f,s:I,s:f}", "requests", r.requests, "submit_us", r.submit_us,
                             "hand_out_ms_mean", r.hand_out_ms, "hand_out_ms_max", r.hand_out_ms_max, "token_us",
                             r.token_us, "router_us_per_request", r.request_us, "looks_per_request", r.looks,
                             "bins_handed_out", (json_int_t)r.bins, "fill", r.fill);
    json_object_update(row, more);
    json_decref(more);
    if (!o.json) print_row(row);
    return STATUS_OK;
}

static int by_number(const void *a, const void *b)
{
    return *(const int *)a - *(const int *)b;
}

int bench_router(int argc, char **argv)
{
    options_main(options,
                 "Usage: forepack bench router --lengths F [--queue 10000,100000] [options]\n"
                 "Time to pack a queue, bins against what is needed at least, and the router's CPU time for a request.",
                 argc, argv, NULL);
    struct bench_counts queues;
    struct prompts prompts = {.n = 0};
    struct report *report = NULL;
    json_t *rows = json_array();
    enum status status =
        o.lengths ? STATUS_OK : status_fail(STATUS_INVALID, "--lengths F is required: a length in tokens each line");
    if (status == STATUS_OK) status = bench_counts_parse("queue", o.queue, 1, 10000000, &queues);
    if (status == STATUS_OK) status = prompts_read_lengths(o.lengths, 0, &prompts);
    if (status == STATUS_OK && o.report) status = report_open(o.report, "forepack bench router", &report);
    if (status == STATUS_OK) status = warm_up(&prompts);
    if (status == STATUS_OK) qsort(queues.count, (size_t)queues.n, sizeof *queues.count, by_number);
    for (int i = 0; status == STATUS_OK && i < queues.n; i++)
        status = measure(&prompts, queues.count[i], rows);
    if (status == STATUS_OK && o.json) bench_print_json(rows);
    if (status == STATUS_OK && report) write_report(report, rows);
    enum status written = report_close(report);
    if (status == STATUS_OK) status = written;
    int code = status == STATUS_OK ? 0 : report_failure(status);
    prompts_free(&prompts);
    json_decref(rows);
    options_free(options);
    return code;
}
