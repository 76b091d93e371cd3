// SPDX-License-Identifier: Apache-2.0
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include "bench/commands/serve.h"
#include "bench/report.h"
#include "bench/throughput_share.h"
#include "lib/base/mem.h"

// ---- rows -----------------------------------------------------------------------------------------------------------

const char *serve_failure_name(const struct load_record *record)
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

// Latencies of the complete answers of a level, and sums over the level.
struct serve_tally {
    int64_t ttft_limit_ms;
    struct samples ttft, tpot, e2e, lag;
    long long prompt, scored, kept, cached, output;
    int complete, good;
    json_t *failures; // name -> count
};

static void tally_add(struct serve_tally *t, const struct load_record *r)
{
    if (r->sent_us >= 0) samples_add(&t->lag, (double)(r->sent_us - r->due_us) / 1000);
    t->output += r->tokens;
    if (r->end != LOAD_COMPLETE) {
        const char *name = serve_failure_name(r);
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
    t->good += !t->ttft_limit_ms || ttft <= (double)t->ttft_limit_ms;
}

// Returns the throughput of an open loop as a share of its arrival rate.
static double open_loop_share(const struct load_result *result)
{
    double *due_s = mem_alloc_array((size_t)result->n, sizeof *due_s),
           *e2e_s = mem_alloc_array((size_t)result->n, sizeof *e2e_s);
    for (int i = 0; i < result->n; i++) {
        const struct load_record *r = &result->records[i];
        due_s[i] = (double)r->due_us / 1e6;
        e2e_s[i] = r->end == LOAD_COMPLETE ? (double)(r->done_us - r->due_us) / 1e6 : NAN;
    }
    const double share = throughput_share(due_s, e2e_s, result->n);
    free(due_s);
    free(e2e_s);
    return share;
}

static json_t *serve_make_row(const struct serve *s, struct serve_tally *t, const struct serve_level *level,
                              struct load_result *result, double cpu_s)
{
    char *name = serve_level_name(level);
    double share = (double)t->good / result->n;
    json_t *row = json_pack("{s:s,s:o,s:o,s:i,s:i,s:i,s:O}", "load", name, "qps",
                            level->qps > 0 ? json_real(level->qps) : json_null(), "concurrency",
                            level->concurrency ? json_integer(level->concurrency) : json_null(), "requests", result->n,
                            "completed", t->complete, "failed", result->n - t->complete, "failures", t->failures);
    json_object_set_new(row, "resumed", json_integer(result->resumed));
    free(name);
    json_object_set_new(row, "seconds", json_real(result->seconds));
    json_object_set_new(row, "good_share", json_real(share));
    const bool is_open = !level->concurrency;
    const double kept = is_open ? open_loop_share(result) : NAN;
    const bool keeps_up = !is_open || kept >= s->flags->hold_throughput;
    json_object_set_new(row, "throughput_share", bench_number(kept));
    json_object_set_new(row, "held", json_boolean(share >= s->flags->hold_share && keeps_up));
    json_object_set_new(row, "requests_per_s", json_real(t->complete / result->seconds));
    json_object_set_new(row, "good_per_s", json_real(t->good / result->seconds));
    json_object_set_new(row, "prompt_tokens_per_s", json_real((double)t->prompt / result->seconds));
    json_object_set_new(row, "output_tokens_per_s", json_real((double)t->output / result->seconds));
    json_object_set_new(row, "prompt_tokens", json_integer(t->prompt));
    json_object_set_new(row, "scored_tokens", json_integer(t->scored));
    json_object_set_new(row, "kept_tokens", json_integer(t->kept));
    json_object_set_new(row, "cached_tokens", json_integer(t->cached));
    json_object_set_new(row, "output_tokens", json_integer(t->output));
    bench_row_add_quantiles(row, "ttft", &t->ttft);
    bench_row_add_quantiles(row, "itl", &result->itl_ms);
    bench_row_add_quantiles(row, "tpot", &t->tpot);
    bench_row_add_quantiles(row, "e2e", &t->e2e);
    json_object_set_new(row, "send_lag_ms_p99", bench_number(samples_percentile(&t->lag, 99)));
    json_object_set_new(row, "client_cpu_share", json_real(cpu_s / result->seconds));
    return row;
}

static void serve_add_curve(struct serve *s, const struct serve_level *level, struct serve_tally *t,
                            struct load_result *result)
{
    MEM_GROW(s->curves, s->n_levels, s->curves_capacity);
    struct serve_curve *curve = &s->curves[s->n_levels++];
    curve->name = serve_level_name(level);
    for (int i = 0; i < SERVE_CURVE_POINTS; i++) {
        double percent = 100.0 * i / (SERVE_CURVE_POINTS - 1);
        curve->ttft[i] = samples_percentile(&t->ttft, percent);
        curve->itl[i] = samples_percentile(&result->itl_ms, percent);
    }
}

void serve_print_heading(const struct serve *s)
{
    if (s->flags->json) return;
    printf("%-12s %8s %6s | %-26s | %-26s | %8s | %-17s | %7s %8s %8s | %6s\n", "", "", "", "TTFT ms", "ITL ms",
           "TPOT ms", "end to end ms", "", "tokens/s", "", "");
    printf("%-12s %8s %6s | %8s %8s %8s | %8s %8s %8s | %8s | %8s %8s | %7s %8s %8s | %6s\n", "load", "requests",
           "failed", "p50", "p90", "p99", "p50", "p90", "p99", "p50", "p50", "p99", "req/s", "in", "out", "good");
}

static void serve_print_row(const struct serve *s, const json_t *row)
{
    if (s->flags->json) return;
    printf("%-12s %8.0f %6.0f | %8.1f %8.1f %8.1f | %8.2f %8.2f %8.2f | %8.2f | %8.0f %8.0f | %7.2f %8.0f %8.0f | "
           "%5.1f%%\n",
           json_string_value(json_object_get(row, "load")), bench_row_number(row, "requests"),
           bench_row_number(row, "failed"), bench_row_number(row, "ttft_ms_p50"), bench_row_number(row, "ttft_ms_p90"),
           bench_row_number(row, "ttft_ms_p99"), bench_row_number(row, "itl_ms_p50"),
           bench_row_number(row, "itl_ms_p90"), bench_row_number(row, "itl_ms_p99"),
           bench_row_number(row, "tpot_ms_p50"), bench_row_number(row, "e2e_ms_p50"),
           bench_row_number(row, "e2e_ms_p99"), bench_row_number(row, "requests_per_s"),
           bench_row_number(row, "prompt_tokens_per_s"), bench_row_number(row, "output_tokens_per_s"),
           100 * bench_row_number(row, "good_share"));
    const char *name;
    json_t *n;
    json_object_foreach(json_object_get(row, "failures"), name, n)
        printf("  %lld failed: %s\n", (long long)json_integer_value(n), name);
    const double kept = bench_row_number(row, "throughput_share");
    if (kept < s->flags->hold_throughput)
        printf("  not held: answers end at %.1f %% of the arrival rate\n", 100 * kept);
    fflush(stdout);
}

// Returns the highest held rate with no missed rate below it, or NAN.
static double serve_highest_qps(const struct serve *s)
{
    double highest = NAN, missed = INFINITY;
    size_t i;
    json_t *row;
    json_array_foreach(s->rows, i, row)
    {
        if (!json_is_true(json_object_get(row, "held"))) missed = fmin(missed, bench_row_number(row, "qps"));
    }
    json_array_foreach(s->rows, i, row)
    {
        double qps = bench_row_number(row, "qps");
        if (json_is_true(json_object_get(row, "held")) && qps < missed) highest = fmax(highest, qps);
    }
    return highest;
}

bool serve_add_level(struct serve *s, const struct serve_level *level, struct load_result *result, double cpu_s)
{
    struct serve_tally tally = {.ttft_limit_ms = s->flags->ttft_limit_ms, .failures = json_object()};
    for (int i = 0; i < result->n; i++)
        tally_add(&tally, &result->records[i]);
    json_t *row = serve_make_row(s, &tally, level, result, cpu_s);
    json_array_append_new(s->rows, row);
    serve_add_curve(s, level, &tally, result);
    serve_print_row(s, row);
    json_decref(tally.failures);
    samples_free(&tally.ttft);
    samples_free(&tally.tpot);
    samples_free(&tally.e2e);
    samples_free(&tally.lag);
    return json_is_true(json_object_get(row, "held"));
}

void serve_print_result(const struct serve *s)
{
    double highest = serve_highest_qps(s);
    if (s->flags->json) {
        json_t *object = json_pack("{s:o,s:f,s:I,s:f,s:i,s:O}", "highest_qps", bench_number(highest), "hold_share",
                                   s->flags->hold_share, "ttft_limit_ms", (json_int_t)s->flags->ttft_limit_ms,
                                   "timeout_s", s->flags->timeout, "clipped", s->clipped, "levels", s->rows);
        json_dumpf(object, stdout, JSON_INDENT(1) | JSON_REAL_PRECISION(6));
        putchar('\n');
        json_decref(object);
        return;
    }
    if (!isnan(highest))
        printf("highest rate held: %.4g requests/s\n", highest);
    else if (s->n_qps)
        printf("no rate was held\n");
    if (s->clipped) printf("%d requests were cut to the context of %d tokens\n", s->clipped, s->context_tokens);
}

// ---- the page -------------------------------------------------------------------------------------------------------

static void serve_report_curves(struct report *report, const struct serve *s, const char *title, size_t offset)
{
    double percent[SERVE_CURVE_POINTS];
    for (int i = 0; i < SERVE_CURVE_POINTS; i++)
        percent[i] = 100.0 * i / (SERVE_CURVE_POINTS - 1);
    struct report_series *series = mem_alloc_array((size_t)s->n_levels, sizeof *series);
    for (int l = 0; l < s->n_levels; l++)
        series[l] = (struct report_series){s->curves[l].name, percent,
                                           (const double *)(const void *)((const char *)&s->curves[l] + offset),
                                           SERVE_CURVE_POINTS};
    report_lines(report, &(struct report_chart){.title = title,
                                                .x_title = "percentile",
                                                .y_title = "ms",
                                                .log_y = true,
                                                .series = series,
                                                .n_series = s->n_levels});
    free(series);
}

static int row_compare_qps(const void *left, const void *right)
{
    double a = bench_row_number(*(json_t *const *)left, "qps"), b = bench_row_number(*(json_t *const *)right, "qps");
    return (a > b) - (a < b);
}

static void serve_report_over_rate(struct report *report, const struct serve *s)
{
    static const char *const keys[] = {"ttft_ms_p50", "ttft_ms_p90", "ttft_ms_p99"};
    static const char *const names[] = {"p50", "p90", "p99"};
    int n = (int)json_array_size(s->rows);
    json_t **rows = mem_alloc_array((size_t)n, sizeof(json_t *));
    double *values = mem_alloc_array((size_t)n * 5, sizeof *values); // rates, three percentiles, good answers
    for (int i = 0; i < n; i++)
        rows[i] = json_array_get(s->rows, (size_t)i);
    qsort(rows, (size_t)n, sizeof(json_t *), row_compare_qps);
    struct report_series series[3];
    for (int i = 0; i < n; i++) {
        values[i] = bench_row_number(rows[i], "qps");
        for (int k = 0; k < 3; k++)
            values[(k + 1) * n + i] = bench_row_number(rows[i], keys[k]);
        values[4 * n + i] = bench_row_number(rows[i], "good_per_s");
    }
    for (int k = 0; k < 3; k++)
        series[k] = (struct report_series){names[k], values, values + (k + 1) * n, n};
    report_lines(report, &(struct report_chart){.title = "TTFT by arrival rate",
                                                .x_title = "requests/s",
                                                .y_title = "ms",
                                                .log_y = true,
                                                .series = series,
                                                .n_series = 3});
    const struct report_series good = {"good answers/s", values, values + 4 * n, n};
    report_lines(report, &(struct report_chart){.title = "Good answers by arrival rate",
                                                .x_title = "requests/s",
                                                .y_title = "answers/s",
                                                .series = &good,
                                                .n_series = 1});
    free(values);
    free(rows);
}

void serve_write_report(struct report *report, const struct serve *s)
{
    static const char *const columns[] = {"load=Load",
                                          "requests=Requests",
                                          "failed=Failed",
                                          "ttft_ms_p50=TTFT ms p50",
                                          "ttft_ms_p90=p90",
                                          "ttft_ms_p99=p99",
                                          "itl_ms_p50=ITL ms p50",
                                          "itl_ms_p90=p90",
                                          "itl_ms_p99=p99",
                                          "tpot_ms_p50=TPOT ms p50",
                                          "e2e_ms_p50=End to end ms p50",
                                          "e2e_ms_p99=p99",
                                          "requests_per_s=Answers/s",
                                          "prompt_tokens_per_s=Prompt tokens/s",
                                          "output_tokens_per_s=Output tokens/s",
                                          "good_share=Good share"};
    const char *source = s->flags->prompts ? s->flags->prompts
                         : s->flags->trace ? s->flags->trace
                                           : s->flags->prompt_tokens;
    report_paragraph(report, "Server %s, requests of %s. Latencies count from the arrival time of a request.",
                     s->flags->remote.server, source);
    if (!isnan(serve_highest_qps(s)))
        report_paragraph(report, "Highest rate held: %.4g requests/s.", serve_highest_qps(s));
    report_table(report, s->rows, columns, sizeof columns / sizeof columns[0]);
    if (s->n_levels > 1 && (s->n_qps || s->flags->search)) serve_report_over_rate(report, s);
    serve_report_curves(report, s, "TTFT by percentile", offsetof(struct serve_curve, ttft));
    serve_report_curves(report, s, "ITL by percentile", offsetof(struct serve_curve, itl));
}
