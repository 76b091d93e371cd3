// SPDX-License-Identifier: Apache-2.0
// forepack bench serve: what clients of a running cluster see under load. A level is one load: a rate of arrivals, so
// many requests at once, or a trace as it was recorded; every level is a row.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/resource.h>

#include "base/clock.h"
#include "base/mem.h"
#include "bench/arrivals.h"
#include "bench/commands/bench.h"
#include "bench/commands/load_generator.h"
#include "bench/random.h"
#include "bench/report.h"
#include "bench/trace.h"
#include "cli/remote.h"
#include "cli/request_rows.h"

static struct {
    char *server, *prompts, *trace, *prompt_tokens, *qps, *arrivals, *concurrency, *report;
    int64_t requests, warm_up, load_seed, ttft_limit_ms;
    double duration, time_scale, length_scale, timeout, hold_share;
    bool search, json;
} o;

// clang-format off
static const struct option options[] = {
    {.name = "-What is asked"},
    {.name = "server", .type = OPTION_STRING, .value = &o.server, .default_text = SERVER_DEFAULT,
     .help = "host:port of the router"},
    {.name = "prompts", .type = OPTION_STRING, .value = &o.prompts,
     .help = "JSON Lines as of forepack batch, from the first row on, again and again"},
    {.name = "trace", .type = OPTION_STRING, .value = &o.trace,
     .help = "CSV with arrival_ms, prompt_tokens, output_tokens and perhaps prefix_blocks: random tokens of these lengths"},
    {.name = "prompt-tokens", .type = OPTION_STRING, .value = &o.prompt_tokens, .unit = "tokens",
     .help = "random tokens of these lengths by turns, apart by commas; --max-tokens of output"},
    {.name = "length-scale", .type = OPTION_REAL, .value = &o.length_scale, .default_text = "1", .min = 1e-6, .max = 1000,
     .help = "with --trace: prompts and outputs so many times as long"},
    {.name = "-When"},
    {.name = "qps", .type = OPTION_STRING, .value = &o.qps, .unit = "requests/s",
     .help = "open loop: these rates, one after another; with --trace without it: as recorded"},
    {.name = "arrivals", .type = OPTION_CHOICE, .value = &o.arrivals, .default_text = "poisson",
     .choices = "poisson|constant", .help = "gaps between the requests of --qps"},
    {.name = "concurrency", .type = OPTION_STRING, .value = &o.concurrency, .unit = "requests",
     .help = "closed loop instead: so many at once, each followed by the next; several apart by commas"},
    {.name = "time-scale", .type = OPTION_REAL, .value = &o.time_scale, .default_text = "1", .min = 1e-6, .max = 1e6,
     .help = "with --trace: arrivals so many times as far apart; 0.5 is twice the rate"},
    {.name = "requests", .type = OPTION_INT, .value = &o.requests, .default_text = "0", .max = 10000000,
     .help = "of a level at most; 0 is 100, all of a trace, or what --duration holds"},
    {.name = "duration", .type = OPTION_REAL, .value = &o.duration, .default_text = "0", .max = 1e6, .unit = "s",
     .help = "of a level's arrivals; 0 is as long as its requests take"},
    {.name = "warm-up", .type = OPTION_INT, .value = &o.warm_up, .default_text = "4", .max = 100000, .unit = "requests",
     .help = "sent before the first level, one at a time, not counted"},
    {.name = "load-seed", .type = OPTION_INT, .value = &o.load_seed, .default_text = "1", .help = "of arrivals and random tokens"},
    {.name = "-What counts as held"},
    {.name = "timeout", .type = OPTION_REAL, .value = &o.timeout, .default_text = "60", .max = 1e6, .unit = "s",
     .help = "an answer not complete by then, from when it was due, is given up and failed; 0 is never"},
    {.name = "ttft-limit-ms", .type = OPTION_INT, .value = &o.ttft_limit_ms, .default_text = "0", .max = 1e9, .unit = "ms",
     .help = "a good answer's first token comes within this; 0 is no limit"},
    {.name = "hold-share", .type = OPTION_REAL, .value = &o.hold_share, .default_text = "0.95", .min = 0.01, .max = 1,
     .help = "a level is held when this share of its answers is good"},
    {.name = "search", .type = OPTION_BOOL, .value = &o.search,
     .help = "look for the highest rate that is held, from the first of --qps on, to within 10 %"},
    {.name = "-Results"},
    {.name = "report", .type = OPTION_STRING, .value = &o.report, .help = "write a page with plots to this file, too"},
    {.name = "json", .type = OPTION_BOOL, .value = &o.json, .help = "print a JSON object"},
    REQUEST_OPTION_ROWS,
    {0},
};
// clang-format on

enum { REQUESTS_DEFAULT = 100, WARM_UP_TOKENS = 8, SEARCH_LEVELS_MAX = 20, CURVE_POINTS = 101 };
static const double search_step = 1.1, search_least_qps = 1e-3;

struct level {
    double qps;      // 0: none
    int concurrency; // 0: open loop
    bool replay;     // the trace's own times
    int number;      // from 1, makes its random tokens its own; 0: the warm-up
};

// What one level's latencies look like, for the plots.
struct curve {
    char *name;
    double ttft[CURVE_POINTS], itl[CURVE_POINTS];
};

struct serve {
    struct request_spec defaults;
    struct request_row *prompts;
    int n_prompts;
    struct trace trace;
    struct bench_counts lengths;
    int vocab_size, context_tokens;
    int clipped; // prompts or outputs cut to the context, so far
    char run_name[20];
    double qps[BENCH_COUNTS_MAX];
    int n_qps;
    struct bench_counts concurrency;
    struct curve *curves;
    int n_levels, curves_capacity;
    json_t *rows;
};

// ---- what is asked ----

static void clip(struct serve *s, const struct level *level, int *prompt, int *output)
{
    int before = *prompt + *output;
    if (*output >= s->context_tokens) *output = s->context_tokens - 1;
    if (*prompt + *output > s->context_tokens) *prompt = s->context_tokens - *output;
    s->clipped += level->number && *prompt + *output < before;
}

// Request i of a level, without an id; what it points to is borrowed, its token_ids may be `ids`.
static void fill_spec(struct serve *s, const struct level *level, int i, int32_t *ids, struct request_spec *spec)
{
    *spec = s->prompts ? s->prompts[i % s->n_prompts].spec : s->defaults;
    if (s->prompts) return;
    spec->sampling.ignore_eos = true;
    int n;
    if (s->trace.n_rows) {
        const struct trace_row *row = &s->trace.rows[i % s->trace.n_rows];
        int output = (int)fmin(fmax(1, round(row->output_tokens * o.length_scale)), s->context_tokens);
        if (s->defaults.sampling.max_tokens && output > s->defaults.sampling.max_tokens)
            output = s->defaults.sampling.max_tokens;
        n = (int)fmin(fmax(1, ceil(row->prompt_tokens * o.length_scale)), 1e9);
        clip(s, level, &n, &output);
        // The warm-up's tokens are others: it must not fill a prefix cache for what is measured.
        trace_prompt(&s->trace, i % s->trace.n_rows, o.length_scale, (uint64_t)o.load_seed + !level->number,
                     s->vocab_size, n, ids, &n);
        spec->sampling.max_tokens = output;
    } else {
        n = s->lengths.count[i % s->lengths.n];
        int output = spec->sampling.max_tokens ? spec->sampling.max_tokens : 1;
        clip(s, level, &n, &output);
        spec->sampling.max_tokens = output;
        struct random_source random = random_stream((uint64_t)o.load_seed, (uint64_t)level->number << 32 | (uint64_t)i);
        for (int t = 0; t < n; t++)
            ids[t] = random_below(&random, s->vocab_size);
    }
    spec->token_ids = ids;
    spec->n_token_ids = n;
}

static struct rpc_bytes *pack_all(struct serve *s, const struct level *level, int n, const char *run)
{
    struct rpc_bytes *messages = mem_alloc_array((size_t)n, sizeof *messages);
    int32_t *ids = mem_alloc_array((size_t)s->context_tokens, sizeof *ids);
    for (int i = 0; i < n; i++) {
        struct request_spec spec;
        fill_spec(s, level, i, ids, &spec);
        if (!level->number && spec.sampling.max_tokens > WARM_UP_TOKENS) spec.sampling.max_tokens = WARM_UP_TOKENS;
        spec.id = load_id(run, i);
        messages[i] = request_spec_pack(&spec);
        free(spec.id);
    }
    free(ids);
    return messages;
}

// ---- when ----

// How many requests a level has.
static int count_requests(const struct serve *s, const struct level *level)
{
    double n = o.requests       ? (double)o.requests
               : level->replay  ? s->trace.n_rows
               : o.duration > 0 ? 1e7
                                : REQUESTS_DEFAULT;
    if (level->replay) {
        n = fmin(n, s->trace.n_rows);
        for (int i = 0; o.duration > 0 && i < n; i++)
            if (s->trace.rows[i].arrival_ms * o.time_scale > o.duration * 1000) n = i;
    } else if (level->qps > 0 && o.duration > 0) {
        n = fmin(n, ceil(level->qps * o.duration));
    }
    return n < 1 ? 1 : (int)n;
}

static int64_t *schedule(const struct serve *s, const struct level *level, int n)
{
    if (level->concurrency) return NULL;
    int64_t *due_us = mem_alloc_array((size_t)n, sizeof *due_us);
    if (!level->replay) {
        bool constant = strcmp(o.arrivals, "constant") == 0;
        arrivals_make(constant ? ARRIVALS_CONSTANT : ARRIVALS_POISSON, level->qps, (uint64_t)o.load_seed, n, due_us);
        return due_us;
    }
    for (int i = 0; i < n; i++)
        due_us[i] = llround(s->trace.rows[i].arrival_ms * o.time_scale * 1000);
    return due_us;
}

static char *level_name(const struct level *level)
{
    if (level->replay) return mem_string("trace");
    return level->concurrency ? mem_format("%d at once", level->concurrency) : mem_format("%.4g/s", level->qps);
}

// ---- what came of it ----

static void add_quantiles(json_t *row, const char *name, struct samples *samples)
{
    struct quantiles q = samples_quantiles(samples);
    const struct {
        const char *name;
        double value;
    } all[] = {{"mean", q.mean}, {"p50", q.p50}, {"p90", q.p90}, {"p99", q.p99}, {"max", q.max}};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        char *key = mem_format("%s_ms_%s", name, all[i].name);
        json_object_set_new(row, key, bench_number(all[i].value));
        free(key);
    }
}

// Why an answer failed: a name of gRPC's codes, or that it was given up.
static const char *failure_name(const struct load_record *record)
{
    static const char *const codes[] = {
        "OK",        "CANCELLED",      "UNKNOWN",           "INVALID_ARGUMENT",   "DEADLINE_EXCEEDED",
        "NOT_FOUND", "ALREADY_EXISTS", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION",
        "ABORTED",   "OUT_OF_RANGE",   "UNIMPLEMENTED",     "INTERNAL",           "UNAVAILABLE",
        "DATA_LOSS", "UNAUTHENTICATED"};
    if (record->end == LOAD_TIMEOUT) return "timeout";
    int n = sizeof codes / sizeof codes[0];
    return record->code >= 0 && record->code < n ? codes[record->code] : codes[2];
}

// The latencies of the answers that came, and the sums of a level.
struct tally {
    struct samples ttft, tpot, e2e, lag;
    long long prompt, scored, kept, cached, output;
    int complete, good;
    json_t *failures; // name -> count
};

static void count(struct tally *t, const struct load_record *r)
{
    if (r->sent_us >= 0) samples_add(&t->lag, (double)(r->sent_us - r->due_us) / 1000);
    t->output += r->tokens;
    if (r->end != LOAD_COMPLETE) {
        const char *name = failure_name(r);
        json_object_set_new(t->failures, name,
                            json_integer(json_integer_value(json_object_get(t->failures, name)) + 1));
        return;
    }
    double ttft = (double)(r->first_us - r->due_us) / 1000;
    samples_add(&t->ttft, ttft);
    samples_add(&t->e2e, (double)(r->done_us - r->due_us) / 1000);
    if (r->tokens > 1) samples_add(&t->tpot, (double)(r->last_us - r->first_us) / 1000 / (r->tokens - 1));
    t->prompt += r->prompt_tokens;
    t->scored += r->scored_tokens;
    t->kept += r->kept_tokens;
    t->cached += r->cached_tokens;
    t->complete++;
    t->good += !o.ttft_limit_ms || ttft <= (double)o.ttft_limit_ms;
}

static double cpu_seconds(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}

static json_t *row_of(struct tally *t, const struct level *level, struct load_result *result, double cpu)
{
    char *name = level_name(level);
    double share = (double)t->good / result->n;
    json_t *row = json_pack("{s:s,s:o,s:o,s:i,s:i,s:i,s:O}", "load", name, "qps",
                            level->qps > 0 ? json_real(level->qps) : json_null(), "concurrency",
                            level->concurrency ? json_integer(level->concurrency) : json_null(), "requests", result->n,
                            "completed", t->complete, "failed", result->n - t->complete, "failures", t->failures);
    free(name);
    json_object_set_new(row, "seconds", json_real(result->seconds));
    json_object_set_new(row, "good_share", json_real(share));
    json_object_set_new(row, "held", json_boolean(share >= o.hold_share));
    json_object_set_new(row, "requests_per_s", json_real(t->complete / result->seconds));
    json_object_set_new(row, "good_per_s", json_real(t->good / result->seconds));
    json_object_set_new(row, "prompt_tokens_per_s", json_real((double)t->prompt / result->seconds));
    json_object_set_new(row, "output_tokens_per_s", json_real((double)t->output / result->seconds));
    json_object_set_new(row, "prompt_tokens", json_integer(t->prompt));
    json_object_set_new(row, "scored_tokens", json_integer(t->scored));
    json_object_set_new(row, "kept_tokens", json_integer(t->kept));
    json_object_set_new(row, "cached_tokens", json_integer(t->cached));
    json_object_set_new(row, "output_tokens", json_integer(t->output));
    add_quantiles(row, "ttft", &t->ttft);
    add_quantiles(row, "itl", &result->itl_ms);
    add_quantiles(row, "tpot", &t->tpot);
    add_quantiles(row, "e2e", &t->e2e);
    json_object_set_new(row, "send_lag_ms_p99", bench_number(samples_percentile(&t->lag, 99)));
    json_object_set_new(row, "client_cpu_share", json_real(cpu / result->seconds));
    return row;
}

static void add_curve(struct serve *s, const struct level *level, struct tally *t, struct load_result *result)
{
    MEM_GROW(s->curves, s->n_levels, s->curves_capacity);
    struct curve *curve = &s->curves[s->n_levels++];
    curve->name = level_name(level);
    for (int i = 0; i < CURVE_POINTS; i++) {
        double percent = 100.0 * i / (CURVE_POINTS - 1);
        curve->ttft[i] = samples_percentile(&t->ttft, percent);
        curve->itl[i] = samples_percentile(&result->itl_ms, percent);
    }
}

static double number_of(const json_t *row, const char *key)
{
    const json_t *value = json_object_get(row, key);
    return json_is_number(value) ? json_number_value(value) : NAN;
}

static void print_heading(void)
{
    if (o.json) return;
    printf("%-12s %8s %6s | %-26s | %-26s | %8s | %-17s | %7s %8s %8s | %6s\n", "", "", "", "TTFT ms",
           "between tokens ms", "TPOT ms", "whole answer ms", "", "tokens/s", "", "");
    printf("%-12s %8s %6s | %8s %8s %8s | %8s %8s %8s | %8s | %8s %8s | %7s %8s %8s | %6s\n", "load", "requests",
           "failed", "p50", "p90", "p99", "p50", "p90", "p99", "p50", "p50", "p99", "req/s", "in", "out", "good");
}

static void print_row(const json_t *row)
{
    if (o.json) return;
    printf("%-12s %8.0f %6.0f | %8.1f %8.1f %8.1f | %8.2f %8.2f %8.2f | %8.2f | %8.0f %8.0f | %7.2f %8.0f %8.0f | "
           "%5.1f%%\n",
           json_string_value(json_object_get(row, "load")), number_of(row, "requests"), number_of(row, "failed"),
           number_of(row, "ttft_ms_p50"), number_of(row, "ttft_ms_p90"), number_of(row, "ttft_ms_p99"),
           number_of(row, "itl_ms_p50"), number_of(row, "itl_ms_p90"), number_of(row, "itl_ms_p99"),
           number_of(row, "tpot_ms_p50"), number_of(row, "e2e_ms_p50"), number_of(row, "e2e_ms_p99"),
           number_of(row, "requests_per_s"), number_of(row, "prompt_tokens_per_s"),
           number_of(row, "output_tokens_per_s"), 100 * number_of(row, "good_share"));
    const char *name;
    json_t *n;
    json_object_foreach(json_object_get(row, "failures"), name, n)
        printf("  %lld failed: %s\n", (long long)json_integer_value(n), name);
    fflush(stdout);
}

// ---- levels ----

static enum status run_load(struct serve *s, const struct level *level, int n, bool quiet, struct load_result *result)
{
    char *run = mem_format("%s-%d", s->run_name, level->number), *label = level_name(level);
    int64_t *due_us = schedule(s, level, n);
    struct rpc_bytes *messages = pack_all(s, level, n, run);
    const struct load load = {
        .server = o.server,
        .n = n,
        .messages = messages,
        .run = run,
        .due_us = due_us,
        .concurrency = level->concurrency,
        .timeout_us = llround(o.timeout * 1e6),
        .label = quiet ? NULL : label,
    };
    enum status status = load_run(&load, result);
    for (int i = 0; i < n; i++)
        rpc_bytes_free(&messages[i]);
    free(messages);
    free(due_us);
    free(label);
    free(run);
    return status;
}

// One row; *held_p tells whether the level was held.
static enum status run_level(struct serve *s, struct level level, bool *held_p)
{
    level.number = s->n_levels + 1;
    struct load_result result;
    double cpu = cpu_seconds();
    enum status status = run_load(s, &level, count_requests(s, &level), false, &result);
    if (status == STATUS_OK) {
        struct tally tally = {.failures = json_object()};
        for (int i = 0; i < result.n; i++)
            count(&tally, &result.records[i]);
        if (*result.error) fprintf(stderr, "the first that failed: %s\n", result.error);
        json_t *row = row_of(&tally, &level, &result, cpu_seconds() - cpu);
        json_array_append_new(s->rows, row);
        add_curve(s, &level, &tally, &result);
        print_row(row);
        *held_p = json_is_true(json_object_get(row, "held"));
        json_decref(tally.failures);
        samples_free(&tally.ttft);
        samples_free(&tally.tpot);
        samples_free(&tally.e2e);
        samples_free(&tally.lag);
    }
    load_result_free(&result);
    return status;
}

// Caches of the machine and pages of the weights: what the first requests pay for.
static enum status warm_up(struct serve *s)
{
    if (!o.warm_up) return STATUS_OK;
    const struct level level = {.concurrency = 1};
    struct load_result result;
    enum status status = run_load(s, &level, (int)o.warm_up, true, &result);
    if (status == STATUS_OK && result.records[0].end != LOAD_COMPLETE)
        status = status_fail(STATUS_UNAVAILABLE, "%s does not answer: %s", o.server,
                             *result.error ? result.error : failure_name(&result.records[0]));
    load_result_free(&result);
    return status;
}

// Doubles or halves the rate until one is held and one is not, then narrows the gap.
static enum status search(struct serve *s)
{
    double held = 0, missed = INFINITY, qps = s->qps[0];
    for (int i = 0; i < SEARCH_LEVELS_MAX && missed > held * search_step && qps >= search_least_qps; i++) {
        bool is_held;
        enum status status = run_level(s, (struct level){.qps = qps}, &is_held);
        if (status != STATUS_OK) return status;
        if (is_held)
            held = qps;
        else
            missed = qps;
        qps = isinf(missed) ? 2 * held : held > 0 ? sqrt(held * missed) : missed / 2;
    }
    return STATUS_OK;
}

static enum status run_levels(struct serve *s)
{
    enum status status = warm_up(s);
    bool held;
    if (status == STATUS_OK) print_heading();
    if (status == STATUS_OK && o.search) return search(s);
    for (int i = 0; i < s->n_qps && status == STATUS_OK; i++)
        status = run_level(s, (struct level){.qps = s->qps[i]}, &held);
    for (int i = 0; i < s->concurrency.n && status == STATUS_OK; i++)
        status = run_level(s, (struct level){.concurrency = s->concurrency.count[i]}, &held);
    if (status == STATUS_OK && !s->n_qps && !s->concurrency.n)
        status = run_level(s, (struct level){.replay = true}, &held);
    return status;
}

// The highest rate that was held and below which none was missed; NAN: none.
static double highest_qps(const struct serve *s)
{
    double highest = NAN, missed = INFINITY;
    size_t i;
    json_t *row;
    json_array_foreach(s->rows, i, row)
    {
        if (!json_is_true(json_object_get(row, "held"))) missed = fmin(missed, number_of(row, "qps"));
    }
    json_array_foreach(s->rows, i, row)
    {
        double qps = number_of(row, "qps");
        if (json_is_true(json_object_get(row, "held")) && qps < missed) highest = fmax(highest, qps);
    }
    return highest;
}

// ---- the page ----

static void report_curves(struct report *report, const struct serve *s, const char *title, size_t offset)
{
    double percent[CURVE_POINTS];
    for (int i = 0; i < CURVE_POINTS; i++)
        percent[i] = 100.0 * i / (CURVE_POINTS - 1);
    struct report_series *series = mem_alloc_array((size_t)s->n_levels, sizeof *series);
    for (int l = 0; l < s->n_levels; l++)
        series[l] =
            (struct report_series){s->curves[l].name, percent,
                                   (const double *)(const void *)((const char *)&s->curves[l] + offset), CURVE_POINTS};
    report_lines(report, &(struct report_chart){.title = title,
                                                .x_title = "percentile",
                                                .y_title = "ms",
                                                .log_y = true,
                                                .series = series,
                                                .n_series = s->n_levels});
    free(series);
}

static int by_qps(const void *left, const void *right)
{
    double a = number_of(*(json_t *const *)left, "qps"), b = number_of(*(json_t *const *)right, "qps");
    return (a > b) - (a < b);
}

static void report_over_rate(struct report *report, const struct serve *s)
{
    static const char *const keys[] = {"ttft_ms_p50", "ttft_ms_p90", "ttft_ms_p99"};
    static const char *const names[] = {"p50", "p90", "p99"};
    int n = (int)json_array_size(s->rows);
    json_t **rows = mem_alloc_array((size_t)n, sizeof(json_t *));
    double *values = mem_alloc_array((size_t)n * 5, sizeof *values); // rates, three percentiles, good answers
    for (int i = 0; i < n; i++)
        rows[i] = json_array_get(s->rows, (size_t)i);
    qsort(rows, (size_t)n, sizeof(json_t *), by_qps);
    struct report_series series[3];
    for (int i = 0; i < n; i++) {
        values[i] = number_of(rows[i], "qps");
        for (int k = 0; k < 3; k++)
            values[(k + 1) * n + i] = number_of(rows[i], keys[k]);
        values[4 * n + i] = number_of(rows[i], "good_per_s");
    }
    for (int k = 0; k < 3; k++)
        series[k] = (struct report_series){names[k], values, values + (k + 1) * n, n};
    report_lines(report, &(struct report_chart){.title = "Time to the first token over the rate of arrivals",
                                                .x_title = "requests/s",
                                                .y_title = "ms",
                                                .log_y = true,
                                                .series = series,
                                                .n_series = 3});
    const struct report_series good = {"good answers/s", values, values + 4 * n, n};
    report_lines(report, &(struct report_chart){.title = "Good answers over the rate of arrivals",
                                                .x_title = "requests/s",
                                                .y_title = "answers/s",
                                                .series = &good,
                                                .n_series = 1});
    free(values);
    free(rows);
}

static void write_report(struct report *report, const struct serve *s)
{
    static const char *const columns[] = {"load=Load",
                                          "requests=Requests",
                                          "failed=Failed",
                                          "ttft_ms_p50=TTFT ms p50",
                                          "ttft_ms_p90=p90",
                                          "ttft_ms_p99=p99",
                                          "itl_ms_p50=Between tokens ms p50",
                                          "itl_ms_p90=p90",
                                          "itl_ms_p99=p99",
                                          "tpot_ms_p50=TPOT ms p50",
                                          "e2e_ms_p50=Whole answer ms p50",
                                          "e2e_ms_p99=p99",
                                          "requests_per_s=Answers/s",
                                          "prompt_tokens_per_s=Prompt tokens/s",
                                          "output_tokens_per_s=Output tokens/s",
                                          "good_share=Good share"};
    const char *source = o.prompts ? o.prompts : o.trace ? o.trace : o.prompt_tokens;
    report_paragraph(report, "%s, %s. Latencies count from when a request was due.", o.server, source);
    if (!isnan(highest_qps(s))) report_paragraph(report, "Highest rate held: %.4g requests/s.", highest_qps(s));
    report_table(report, s->rows, columns, sizeof columns / sizeof columns[0]);
    if (s->n_levels > 1 && (s->n_qps || o.search)) report_over_rate(report, s);
    report_curves(report, s, "Time to the first token by percentile", offsetof(struct curve, ttft));
    report_curves(report, s, "Time between tokens by percentile", offsetof(struct curve, itl));
}

// ---- the command ----

static enum status check_sources(void)
{
    if (!!o.prompts + !!o.trace + !!o.prompt_tokens != 1)
        return status_fail(STATUS_INVALID, "give exactly one of --prompts F, --trace F and --prompt-tokens N");
    if (o.qps && o.concurrency) return status_fail(STATUS_INVALID, "give one of --qps and --concurrency");
    if (!o.qps && !o.concurrency && !o.trace)
        return status_fail(STATUS_INVALID, "give --qps or --concurrency (only a trace has times of its own)");
    if (o.search && !o.qps) return status_fail(STATUS_INVALID, "--search: give --qps, the rate to begin with");
    return STATUS_OK;
}

static enum status configure(struct serve *s)
{
    enum status status = check_sources();
    if (status == STATUS_OK) status = request_spec_from_flags(options, &s->defaults);
    if (status == STATUS_OK && o.qps)
        status = bench_reals_parse("qps", o.qps, search_least_qps, 1e6, s->qps, &s->n_qps);
    if (status == STATUS_OK && o.concurrency)
        status = bench_counts_parse("concurrency", o.concurrency, 1, 1000000, &s->concurrency);
    if (status == STATUS_OK && o.prompt_tokens)
        status = bench_counts_parse("prompt-tokens", o.prompt_tokens, 1, 100000000, &s->lengths);
    if (status == STATUS_OK && o.prompts)
        status = request_rows_read(o.prompts, &s->defaults, &s->prompts, &s->n_prompts);
    if (status == STATUS_OK && o.trace) status = trace_read(o.trace, &s->trace);
    return status;
}

static enum status ask_model(struct serve *s)
{
    Forepack__V1__GetModelInfoRequest request = FOREPACK__V1__GET_MODEL_INFO_REQUEST__INIT;
    ProtobufCMessage *answer;
    enum status status = remote_call(o.server, "/forepack.v1.Inference/GetModelInfo", &request.base,
                                     &forepack__v1__model_info__descriptor, &answer);
    if (status != STATUS_OK) return status;
    const Forepack__V1__ModelInfo *m = (const void *)answer;
    s->vocab_size = (int)m->vocab_size;
    s->context_tokens = (int)m->context_tokens;
    protobuf_c_message_free_unpacked(answer, NULL);
    if (s->vocab_size < 1 || s->context_tokens < 2)
        return status_fail(STATUS_DATA, "%s tells of a model of %d tokens and a context of %d", o.server, s->vocab_size,
                           s->context_tokens);
    return STATUS_OK;
}

static void print_result(const struct serve *s)
{
    double highest = highest_qps(s);
    if (o.json) {
        json_t *object = json_pack("{s:o,s:f,s:I,s:f,s:i,s:O}", "highest_qps", bench_number(highest), "hold_share",
                                   o.hold_share, "ttft_limit_ms", (json_int_t)o.ttft_limit_ms, "timeout_s", o.timeout,
                                   "clipped", s->clipped, "levels", s->rows);
        json_dumpf(object, stdout, JSON_INDENT(1) | JSON_REAL_PRECISION(6));
        putchar('\n');
        json_decref(object);
        return;
    }
    if (!isnan(highest)) printf("highest rate held: %.4g requests/s\n", highest);
    if (s->clipped)
        printf("%d prompts or outputs were cut to the context of %d tokens\n", s->clipped, s->context_tokens);
}

static void free_serve(struct serve *s)
{
    for (int i = 0; i < s->n_levels; i++)
        free(s->curves[i].name);
    free(s->curves);
    if (s->prompts) request_rows_free(s->prompts, s->n_prompts);
    request_spec_free(&s->defaults);
    trace_free(&s->trace);
    json_decref(s->rows);
}

int bench_serve(int argc, char **argv)
{
    options_main(options,
                 "Usage: forepack bench serve --server H:P (--prompts F.jsonl | --trace F.csv | --prompt-tokens N)\n"
                 "                            (--qps 1,2,4 [--search] | --concurrency N) [options]\n"
                 "What clients of a running cluster see under load.",
                 argc, argv, NULL);
    struct serve s = {.rows = json_array()};
    struct report *report = NULL;
    uint64_t random;
    if (getrandom(&random, sizeof random, 0) != sizeof random) random = (uint64_t)clock_now_us();
    snprintf(s.run_name, sizeof s.run_name, "%016llx", (unsigned long long)random);
    enum status status = configure(&s);
    if (status == STATUS_OK && o.report) status = report_open(o.report, "forepack bench serve", &report);
    rpc_init();
    if (status == STATUS_OK) status = ask_model(&s);
    if (status == STATUS_OK) status = run_levels(&s);
    rpc_shutdown();
    if (status == STATUS_OK) print_result(&s);
    if (status == STATUS_OK && report) write_report(report, &s);
    if (report) {
        enum status written = report_close(report);
        if (status == STATUS_OK) status = written;
    }
    int code = status == STATUS_OK ? 0 : report_failure(status);
    free_serve(&s);
    options_free(options);
    return code;
}
