// SPDX-License-Identifier: Apache-2.0
// forepack bench router: what scheduling costs. Time to pack a queue and how near the packing is to what any packing
// needs, and the CPU time of the router's core for a request, with simulated worker groups (bench/dispatch.h).
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/options.h"
#include "bench/dispatch.h"
#include "bench/pack_exact.h"
#include "bench/prompts.h"
#include "cli/bench.h"
#include "cli/request.h"
#include "router/pack.h"

static struct {
    char *queue, *lengths;
    int64_t capacity, workers, max_seqs, output_tokens, rounds;
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
    {.name = "max-seqs", .type = OPTION_INT, .value = &o.max_seqs, .default_text = "256", .min = 1, .max = 65536,
     .unit = "sequences", .help = "that a group runs at once"},
    {.name = "output-tokens", .type = OPTION_INT, .value = &o.output_tokens, .default_text = "8", .min = 1, .max = 1e6,
     .unit = "tokens", .help = "of each answer"},
    {.name = "-How"},
    {.name = "rounds", .type = OPTION_INT, .value = &o.rounds, .default_text = "5", .min = 1, .max = ROUNDS_MAX,
     .help = "times that the queue is packed; the middle time is told"},
    {.name = "seconds", .type = OPTION_REAL, .value = &o.seconds, .default_text = "10", .min = 0.001, .max = 86400,
     .unit = "s", .help = "simulate no longer than this; figures are then of the requests that ended"},
    {.name = "json", .type = OPTION_BOOL, .value = &o.json, .help = "print a JSON list"},
    {0},
};
// clang-format on

enum { SAMPLE = 32, SAMPLES_MAX = 100, SAMPLE_NODES = 1000000 };

// A queue of so many prompts, drawn from the file's.
static int32_t *draw_queue(const struct prompts *prompts, int n)
{
    int32_t *length = mem_alloc_array((size_t)n, sizeof *length);
    uint64_t state = 1;
    for (int i = 0; i < n; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        length[i] = prompts->length[(state >> 33) % (uint64_t)prompts->n];
    }
    return length;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

// Milliseconds of the middle round.
static double time_packing(const int32_t *length, int n, int32_t capacity, enum pack_rule rule, int32_t *bin_of,
                           int *bins_p)
{
    double ms[ROUNDS_MAX];
    for (int r = 0; r < o.rounds; r++) {
        int64_t from_us = clock_now_us();
        *bins_p = pack_items(length, n, capacity, rule, bin_of);
        ms[r] = (double)(clock_now_us() - from_us) / 1e3;
    }
    qsort(ms, (size_t)o.rounds, sizeof *ms, compare);
    return ms[o.rounds / 2];
}

// Batches of the queue into bins of their longest prompt: how many have a packing that is proven the best, and for how
// many best fit takes a bin more than the best that was found.
static void judge(json_t *row, const int32_t *length, int n)
{
    int samples = 0, proven = 0, worse = 0;
    for (int first = 0; first + SAMPLE <= n && samples < SAMPLES_MAX; first += SAMPLE, samples++) {
        int32_t bin_of[SAMPLE], longest = 0;
        for (int i = first; i < first + SAMPLE; i++)
            if (length[i] > longest) longest = length[i];
        int lower, best = pack_exact(length + first, SAMPLE, longest, SAMPLE_NODES, bin_of, &lower);
        proven += best == lower;
        worse += pack_items(length + first, SAMPLE, longest, PACK_BEST_FIT, bin_of) > best;
    }
    json_object_set_new(row, "samples", json_integer(samples));
    json_object_set_new(row, "samples_proven", json_integer(proven));
    json_object_set_new(row, "samples_best_fit_worse", json_integer(worse));
}

static enum status measure(const struct prompts *prompts, int n, json_t *rows)
{
    int32_t *length = draw_queue(prompts, n), *bin_of = mem_alloc_array((size_t)n, sizeof *bin_of);
    int32_t capacity = prompts->longest > o.capacity ? prompts->longest : (int32_t)o.capacity;
    int64_t tokens = 0;
    for (int i = 0; i < n; i++)
        tokens += length[i];
    int best_bins = 0, first_bins = 0;
    double best_ms = time_packing(length, n, capacity, PACK_BEST_FIT, bin_of, &best_bins);
    double first_ms = time_packing(length, n, capacity, PACK_FIRST_FIT, bin_of, &first_bins);
    json_int_t full = (tokens + capacity - 1) / capacity;
    json_t *row = json_pack("{s:i,s:i,s:I,s:f,s:i,s:f,s:i,s:I,s:i,s:f}", "queue", n, "capacity", (int)capacity,
                            "tokens", (json_int_t)tokens, "pack_ms", best_ms, "bins", best_bins, "first_fit_ms",
                            first_ms, "first_fit_bins", first_bins, "bins_by_sum", full, "lower_bound",
                            pack_lower_bound(length, n, capacity), "bins_over_sum", (double)best_bins / (double)full);
    judge(row, length, n);
    const struct dispatch_options dispatch = {.length = length,
                                              .n = n,
                                              .token_budget = (int)capacity,
                                              .max_seqs = (int)o.max_seqs,
                                              .workers = (int)o.workers,
                                              .output_tokens = (int)o.output_tokens,
                                              .seconds = o.seconds};
    struct dispatch_result r;
    enum status status = dispatch_run(&dispatch, &r);
    free(length);
    free(bin_of);
    json_array_append_new(rows, row);
    if (status != STATUS_OK) return status;
    json_t *more =
        json_pack("{s:i,s:f,s:f,s:f,s:f,s:f,s:I,s:f}", "requests", r.requests, "submit_us", r.submit_us,
                  "hand_out_ms_mean", r.hand_out_ms, "hand_out_ms_max", r.hand_out_ms_max, "token_us", r.token_us,
                  "router_us_per_request", r.request_us, "bins_handed_out", (json_int_t)r.bins, "fill", r.fill);
    json_object_update(row, more);
    json_decref(more);
    if (o.json) return STATUS_OK;
    printf(
        "%9d waiting, bins of %d: packed in %.2f ms (first fit %.2f) into %d bins; at least %lld by their sum, %d by "
        "any packing\n",
        n, (int)capacity, best_ms, first_ms, best_bins, (long long)full,
        (int)json_integer_value(json_object_get(row, "lower_bound")));
    printf("          batches of %d in bins of their longest: best fit takes one more than the best for %lld of %lld\n",
           (int)SAMPLE, (long long)json_integer_value(json_object_get(row, "samples_best_fit_worse")),
           (long long)json_integer_value(json_object_get(row, "samples")));
    printf("          CPU of the core: %.2f us to take in a request, %.3f ms to hand out a bin (most %.3f), %.2f us a "
           "token; %.1f us a request in all (%d ended, bins %.1f %% full)\n",
           r.submit_us, r.hand_out_ms, r.hand_out_ms_max, r.token_us, r.request_us, r.requests, 100 * r.fill);
    return STATUS_OK;
}

int bench_router(int argc, char **argv)
{
    options_main(options,
                 "Usage: forepack bench router --lengths F [--queue 10000,100000] [options]\n"
                 "Time to pack a queue, bins against what is needed at least, and the router's CPU time for a request.",
                 argc, argv, NULL);
    struct bench_counts queues;
    struct prompts prompts = {.n = 0};
    json_t *rows = json_array();
    enum status status =
        o.lengths ? STATUS_OK : status_fail(STATUS_INVALID, "--lengths F is required: a length in tokens each line");
    if (status == STATUS_OK) status = bench_counts_parse("queue", o.queue, 1, 10000000, &queues);
    if (status == STATUS_OK) status = prompts_read_lengths(o.lengths, 0, &prompts);
    for (int i = 0; status == STATUS_OK && i < queues.n; i++)
        status = measure(&prompts, queues.count[i], rows);
    if (status == STATUS_OK && o.json) bench_print_json(rows);
    int code = status == STATUS_OK ? 0 : report_failure(status);
    prompts_free(&prompts);
    json_decref(rows);
    options_free(options);
    return code;
}
