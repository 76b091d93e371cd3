// SPDX-License-Identifier: Apache-2.0
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "bench/commands/prepack.h"
#include "bench/memory.h"

// ---- rows -----------------------------------------------------------------------------------------------------------

// Returns mean and deviation of the seconds of an arrival batch. If the policy does not depend on the batch size, the
// run may have another size, and its result is scaled to `batch_size`.
static void run_batch_times(const struct prepack_run *run, int batch_size, double *mean_p, double *deviation_p)
{
    int n = run->n_batches * run->rounds_done;
    double scale = (double)batch_size / run->plan.batch_size, sum = 0, squares = 0;
    for (int i = 0; i < n; i++)
        sum += run->batch_s[i];
    for (int i = 0; i < n; i++)
        squares += (run->batch_s[i] - sum / n) * (run->batch_s[i] - sum / n);
    *mean_p = scale * sum / n;
    // The deviation of a sum of `scale` independent batches.
    *deviation_p = n > 1 ? sqrt(scale * squares / (n - 1)) : NAN;
}

static double values_mean(const double *values, int n, int rounds)
{
    double sum = 0;
    for (int i = 0; i < n; i++)
        sum += values[i];
    return sum / n / rounds;
}

static double run_us_per_token(const struct prepack_bench *b, const struct prepack_run *run)
{
    return 1e6 * run->total_s / (double)run->prompts->tokens / (double)b->flags->rounds;
}

// Compares the memory of two policies with the same batches. Both results are means over the batches. *ratio_p: memory
// of `more` over memory of `less`. *lengths_p: longest prompt over mean prompt, the factor that padding adds.
static void prepack_compare_memory(const struct prepack_bench *b, const struct prepack_run *more,
                                   const struct prepack_run *less, double *ratio_p, double *lengths_p)
{
    double ratios = 0, lengths = 0;
    const int32_t *length = b->prompts.length;
    for (int g = 0; g < more->n_batches; g++) {
        struct prepack_need x = prepack_group_need(&more->plan, length, g, &b->memory);
        struct prepack_need y = prepack_group_need(&less->plan, length, g, &b->memory);
        ratios += (x.kv_bytes + x.pass_bytes) / (y.kv_bytes + y.pass_bytes);
        int longest = 0, n = 0;
        int64_t sum = 0;
        for (int i = g * more->plan.batch_size; i < b->prompts.n && n < more->plan.batch_size; i++, n++) {
            if (length[i] > longest) longest = length[i];
            sum += length[i];
        }
        lengths += longest / ((double)sum / n);
    }
    *ratio_p = ratios / more->n_batches;
    *lengths_p = lengths / more->n_batches;
}

// Counts the prompts whose first token or logits differ from the first run.
static int count_other_first_tokens(const struct prepack_bench *b, const struct prepack_run *run)
{
    int n = 0;
    for (int p = 0; p < b->prompts.n; p++)
        n += run->digest[p] != b->runs[0].digest[p];
    return n;
}

static void row_add_padded_ratios(json_t *row, const struct prepack_bench *b, const struct prepack_run *run,
                                  int batch_size)
{
    const struct prepack_run *padded = prepack_find_run(b, PREPACK_PADDED, batch_size);
    if (!padded) return;
    json_object_set_new(row, "padded_time_ratio", json_real(padded->total_s / run->total_s));
    json_object_set_new(row, "padded_rows_ratio", json_real((double)padded->plan.rows / (double)run->plan.rows));
    if (run->plan.policy != PREPACK_BATCH) return;
    double more, lengths;
    prepack_compare_memory(b, padded, run, &more, &lengths);
    json_object_set_new(row, "padded_memory_ratio", json_real(more));
    json_object_set_new(row, "longest_over_mean", json_real(lengths));
}

static void row_add_dataset_ratios(json_t *row, const struct prepack_bench *b, const struct prepack_run *run,
                                   int batch_size)
{
    const struct prepack_run *full = prepack_find_run(b, PREPACK_FULL_BINS, batch_size);
    json_object_set_new(row, "full_bin_us_per_token", json_real(run_us_per_token(b, full)));
    json_object_set_new(row, "over_full_bin", json_real(run_us_per_token(b, run) / run_us_per_token(b, full)));
    const struct prepack_run *ordered = prepack_find_run(b, PREPACK_LENGTH_ORDERED, batch_size);
    if (ordered) json_object_set_new(row, "over_length_ordered", json_real(run->total_s / ordered->total_s));
}

static json_t *prepack_make_row(const struct prepack_bench *b, const struct prepack_run *run, int batch_size)
{
    const struct prepack_plan *plan = &run->plan;
    struct prepack_need need = prepack_run_need(b, run);
    double mean, deviation, tokens = (double)b->prompts.tokens;
    run_batch_times(run, batch_size, &mean, &deviation);
    json_t *row =
        json_pack("{s:s,s:i,s:i,s:I,s:I,s:i,s:i}", "policy", prepack_policy_name(plan->policy), "batch_size",
                  batch_size, "prompts", b->prompts.n, "tokens", (json_int_t)b->prompts.tokens, "rows",
                  (json_int_t)plan->rows, "passes", plan->n_passes, "bins", plan->capacity ? plan->n_passes : 0);
    json_object_set_new(row, "other_first_tokens", json_integer(count_other_first_tokens(b, run)));
    json_object_set_new(row, "pad_fraction", json_real(1 - tokens / (double)plan->rows));
    json_object_set_new(row, "prefill_ms_mean", json_real(1000 * mean));
    json_object_set_new(row, "prefill_ms_std", bench_number(1000 * deviation));
    json_object_set_new(row, "ttft_ms_mean",
                        json_real(1000 * values_mean(run->ttft_s, b->prompts.n, (int)b->flags->rounds)));
    json_object_set_new(row, "ttft_ms_mean_queued",
                        json_real(1000 * values_mean(run->waited_ttft_s, b->prompts.n, (int)b->flags->rounds)));
    json_object_set_new(row, "us_per_token", json_real(run_us_per_token(b, run)));
    json_object_set_new(row, "gflops", json_real(work_gflop(&run->work) / run->total_s));
    json_object_set_new(row, "pack_us", json_real(plan->pack_us));
    json_object_set_new(row, "peak_kv_mb", json_real(need.kv_bytes / 1e6));
    json_object_set_new(row, "peak_activation_mb", json_real(need.pass_bytes / 1e6));
    json_object_set_new(row, "peak_mb", json_real((need.kv_bytes + need.pass_bytes) / 1e6));
    if (prepack_uses_batches(plan->policy)) {
        int largest = prepack_largest_batch(plan->policy, &b->prompts, (int)b->flags->token_budget,
                                            (double)b->flags->memory_mib * 1048576, &b->memory);
        json_object_set_new(row, "largest_batch", json_integer(largest));
        json_object_set_new(row, "memory_mib", json_integer(b->flags->memory_mib));
    }
    if (plan->capacity) json_object_set_new(row, "capacity", json_integer(plan->capacity));
    row_add_padded_ratios(row, b, run, batch_size);
    if (plan->policy == PREPACK_DATASET) row_add_dataset_ratios(row, b, run, batch_size);
    json_object_set_new(row, "peak_rss_mb", json_real(memory_peak_mb(getpid())));
    return row;
}

void prepack_add_rows(struct prepack_bench *b)
{
    for (int s = 0; s < b->batches.n; s++)
        for (enum prepack_policy policy = 0; policy < PREPACK_POLICIES; policy++) {
            const struct prepack_run *run = prepack_find_run(b, policy, b->batches.count[s]);
            if (run) json_array_append_new(b->rows, prepack_make_row(b, run, b->batches.count[s]));
        }
}

// ---- table and page -------------------------------------------------------------------------------------------------

static const json_t *prepack_find_row(const struct prepack_bench *b, enum prepack_policy policy, int batch_size)
{
    size_t i;
    const json_t *row;
    json_array_foreach(b->rows, i, row)
    {
        const char *name = json_string_value(json_object_get(row, "policy"));
        if (bench_row_number(row, "batch_size") == batch_size && strcmp(name, prepack_policy_name(policy)) == 0)
            return row;
    }
    return NULL;
}

void prepack_print_table(const struct prepack_bench *b)
{
    printf("%-14s %5s %10s %9s %10s %10s %9s %9s %6s %6s %8s %8s %8s %7s\n", "policy", "batch", "prefill ms", "std",
           "TTFT ms", "queued", "us/token", "rows", "pad %", "passes", "KV MB", "act. MB", "speed-up", "largest");
    size_t i;
    const json_t *row;
    json_array_foreach(b->rows, i, row)
    {
        printf("%-14s %5.0f %10.2f %9.2f %10.2f %10.2f %9.1f %9.0f %6.1f %6.0f %8.1f %8.1f %8.2f %7.0f\n",
               json_string_value(json_object_get(row, "policy")), bench_row_number(row, "batch_size"),
               bench_row_number(row, "prefill_ms_mean"), bench_row_number(row, "prefill_ms_std"),
               bench_row_number(row, "ttft_ms_mean"), bench_row_number(row, "ttft_ms_mean_queued"),
               bench_row_number(row, "us_per_token"), bench_row_number(row, "rows"),
               100 * bench_row_number(row, "pad_fraction"), bench_row_number(row, "passes"),
               bench_row_number(row, "peak_kv_mb"), bench_row_number(row, "peak_activation_mb"),
               bench_row_number(row, "padded_time_ratio"), bench_row_number(row, "largest_batch"));
    }
    printf(
        "\nprefill ms: mean and standard deviation over batches; TTFT ms: from the start of the prompt's batch or bin; "
        "queued: TTFT from the start of the run\n"
        "KV, act.: computed memory of the largest batch; speed-up: time of padded over time of the policy; largest: "
        "most prompts in one batch within %lld MiB of KV and activations\n",
        (long long)b->flags->memory_mib);
    const json_t *dataset = prepack_find_row(b, PREPACK_DATASET, b->batches.count[0]);
    if (dataset)
        printf("dataset: time per token is %.3f times that of completely full bins (%.1f us)\n",
               bench_row_number(dataset, "over_full_bin"), bench_row_number(dataset, "full_bin_us_per_token"));
}

static void prepack_report_plots(struct report *r, const struct prepack_bench *b)
{
    const char *groups[NUMBER_LIST_MAX], *names[PREPACK_POLICIES];
    double x[NUMBER_LIST_MAX], speedup[PREPACK_POLICIES][NUMBER_LIST_MAX], padding[NUMBER_LIST_MAX];
    double memory[PREPACK_POLICIES * NUMBER_LIST_MAX];
    struct report_series series[PREPACK_POLICIES + 1];
    int n = b->batches.n, n_policies = 0, n_series = 0;
    char label[NUMBER_LIST_MAX][16];
    for (int s = 0; s < n; s++) {
        snprintf(label[s], sizeof label[s], "%d", b->batches.count[s]);
        groups[s] = label[s];
        x[s] = b->batches.count[s];
    }
    for (enum prepack_policy policy = 0; policy < PREPACK_POLICIES; policy++) {
        if (!b->wanted[policy]) continue;
        names[n_policies] = prepack_policy_name(policy);
        for (int s = 0; s < n; s++) {
            const json_t *row = prepack_find_row(b, policy, b->batches.count[s]);
            speedup[n_policies][s] = bench_row_number(row, "padded_time_ratio");
            if (policy == PREPACK_PADDED) padding[s] = bench_row_number(row, "rows") / bench_row_number(row, "tokens");
            memory[n_policies * n + s] = bench_row_number(row, "peak_mb");
        }
        if (policy != PREPACK_PADDED)
            series[n_series++] = (struct report_series){names[n_policies], x, speedup[n_policies], n};
        n_policies++;
    }
    if (b->wanted[PREPACK_PADDED]) {
        series[n_series++] = (struct report_series){"rows of padded over tokens", x, padding, n};
        report_lines(
            r, &(struct report_chart){"Speed-up over padded", "batch size", "speed-up", true, false, series, n_series});
    }
    report_bars(r, &(struct report_bars){"Peak memory of KV and activations (computed), by batch size", "MB", groups, n,
                                         names, n_policies, memory});
}

void prepack_write_report(struct prepack_bench *b)
{
    struct report *r = b->report;
    report_paragraph(r,
                     "%s, %s weights%s; %d prompts of %s, %lld tokens, the longest %d; bins of %lld tokens, %lld "
                     "round%s. %s",
                     b->flags->model ? b->flags->model : b->flags->shape, b->flags->dtype,
                     b->flags->shape || strcmp(b->flags->load, "dummy") == 0 ? " of random values" : "", b->prompts.n,
                     b->flags->prompts ? b->flags->prompts : b->flags->lengths, (long long)b->prompts.tokens,
                     (int)b->prompts.longest, (long long)b->flags->token_budget, (long long)b->flags->rounds,
                     b->flags->rounds > 1 ? "s" : "",
                     b->exact ? "All policies gave the same logits for each prompt, bit for bit."
                              : "Logits of the policies may differ by rounding.");
    prepack_report_plots(r, b);
    static const char *const columns[] = {"policy=Policy",
                                          "batch_size=Batch",
                                          "prefill_ms_mean=Prefill ms",
                                          "prefill_ms_std=std",
                                          "ttft_ms_mean=TTFT ms",
                                          "ttft_ms_mean_queued=TTFT ms, queued",
                                          "us_per_token=us per token",
                                          "rows=Rows",
                                          "pad_fraction=Padding",
                                          "passes=Passes",
                                          "peak_kv_mb=KV MB",
                                          "peak_activation_mb=Activations MB",
                                          "padded_time_ratio=Speed-up over padded",
                                          "padded_memory_ratio=Memory of padded over this",
                                          "longest_over_mean=Longest over mean",
                                          "largest_batch=Largest batch",
                                          "full_bin_us_per_token=Full bins, us per token",
                                          "over_full_bin=Time over full bins"};
    report_table(r, b->rows, columns, sizeof columns / sizeof columns[0]);
}
