// SPDX-License-Identifier: Apache-2.0
// forepack bench prepack: the same prompts prefilled under every policy of packing and padding (bench/prepack.h), turn
// by turn in one run, so that all of them share the machine's moods. Every policy must choose its first tokens by the
// same logits, bit for bit.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/options.h"
#include "bench/commands/bench.h"
#include "bench/memory.h"
#include "bench/prepack.h"
#include "bench/report.h"
#include "cli/progress.h"
#include "cli/request.h"

static struct {
    char *model, *shape, *load, *backend, *dtype, *prompts, *lengths, *batch_size, *policies, *report;
    int64_t limit, threads, token_budget, rounds, memory_mb;
    bool json;
} o;

// clang-format off
static const struct option options[] = {
    {.name = "-Model"},
    BENCH_MODEL_OPTION_ROWS(o),
    {.name = "threads", .type = OPTION_INT, .value = &o.threads, .default_text = "0", .max = 4096,
     .help = "compute threads; 0 is all the process may use"},
    {.name = "-Prompts"},
    {.name = "prompts", .type = OPTION_STRING, .value = &o.prompts,
     .help = "JSON Lines with a text \"prompt\" or \"token_ids\" each; texts need --model"},
    {.name = "lengths", .type = OPTION_STRING, .value = &o.lengths,
     .help = "instead of --prompts: a length in tokens each line, for prompts of random tokens"},
    {.name = "limit", .type = OPTION_INT, .value = &o.limit, .default_text = "256", .max = 1e6, .unit = "prompts",
     .help = "take the first of them; 0 is all"},
    {.name = "-What is run"},
    {.name = "batch-size", .type = OPTION_STRING, .value = &o.batch_size, .default_text = "16", .unit = "prompts",
     .help = "prompts that arrive together; several numbers are apart by commas"},
    {.name = "policies", .type = OPTION_STRING, .value = &o.policies,
     .default_text = "padded,length-ordered,batch,dataset,none", .help = "which to compare, apart by commas"},
    {.name = "max-num-batched-tokens", .type = OPTION_INT, .value = &o.token_budget, .default_text = "2048", .min = 1,
     .max = 1048576, .unit = "tokens", .help = "capacity of a bin, unless the longest prompt is longer"},
    {.name = "memory-mb", .type = OPTION_INT, .value = &o.memory_mb, .default_text = "2048", .min = 1, .max = 1e7,
     .unit = "MiB", .help = "tell the largest batch whose KV and activations, as counted, fit into so much"},
    {.name = "-How"},
    {.name = "rounds", .type = OPTION_INT, .value = &o.rounds, .default_text = "1", .min = 1, .max = ROUNDS_MAX,
     .help = "times that all prompts are run"},
    {.name = "report", .type = OPTION_STRING, .value = &o.report, .help = "write an HTML page with plots to this file"},
    {.name = "json", .type = OPTION_BOOL, .value = &o.json, .help = "print a JSON list"},
    {0},
};
// clang-format on

enum { PADDED_ROWS_MAX = 1 << 24 };

struct bench {
    struct prompts prompts, full_prompts; // as they are; as full bins cut them
    struct model_config config;
    struct bench_counts batches;
    bool wanted[PREPACK_POLICIES];
    struct prepack_run *runs; // each policy at each batch size; once dataset, none and full bins, which know no batches
    int n_runs;
    struct prepack_need need; // the most of any run
    struct prepack_memory memory;
    bool exact; // the backend computes a row the same whatever its company
    struct report *report;
    json_t *rows;
};

// ---- runs -----------------------------------------------------------------------------------------------------------

static bool knows_batches(enum prepack_policy policy)
{
    return policy != PREPACK_DATASET && policy != PREPACK_NONE && policy != PREPACK_FULL_BINS;
}

static struct prepack_run *find_run(const struct bench *b, enum prepack_policy policy, int batch_size)
{
    for (int i = 0; i < b->n_runs; i++) {
        const struct prepack_plan *plan = &b->runs[i].plan;
        if (plan->policy == policy && (!knows_batches(policy) || plan->batch_size == batch_size)) return &b->runs[i];
    }
    return NULL;
}

static struct prepack_need need_of(const struct bench *b, const struct prepack_run *run)
{
    return prepack_plan_need(&run->plan, run->prompts->length, &b->memory);
}

static void add_run(struct bench *b, const struct prepack_plan *plan, const struct prompts *prompts)
{
    struct prepack_run *run = &b->runs[b->n_runs++];
    prepack_run_init(run, plan, prompts, (int)o.rounds);
    struct prepack_need need = need_of(b, run);
    if (need.rows > b->need.rows) b->need.rows = need.rows;
    if (need.prompts > b->need.prompts) b->need.prompts = need.prompts;
    if (need.kv_blocks > b->need.kv_blocks) b->need.kv_blocks = need.kv_blocks;
}

static void plan_runs(struct bench *b)
{
    b->runs = mem_alloc_array((size_t)b->batches.n * PREPACK_POLICIES + 1, sizeof *b->runs);
    for (int s = 0; s < b->batches.n; s++)
        for (enum prepack_policy policy = 0; policy < PREPACK_POLICIES; policy++) {
            if (!b->wanted[policy] || find_run(b, policy, b->batches.count[s])) continue;
            struct prepack_plan plan =
                prepack_plan_make(policy, b->prompts.length, b->prompts.n, b->batches.count[s], (int)o.token_budget);
            add_run(b, &plan, &b->prompts);
        }
    const struct prepack_run *dataset = find_run(b, PREPACK_DATASET, 0);
    if (!dataset) return;
    struct prepack_plan full = prepack_plan_full_bins(&b->prompts, dataset->plan.capacity, &b->full_prompts);
    add_run(b, &full, &b->full_prompts);
}

// The one that is least far, so that all run through the same stretch of time.
static struct prepack_run *next_run(const struct bench *b)
{
    struct prepack_run *next = NULL;
    for (int i = 0; i < b->n_runs; i++) {
        struct prepack_run *run = &b->runs[i];
        if (run->rounds_done == o.rounds) continue;
        if (!next ||
            (double)run->rows_done / (double)run->plan.rows < (double)next->rows_done / (double)next->plan.rows)
            next = run;
    }
    return next;
}

// The group with the most KV blocks once, uncounted: every page of the cache has been touched then.
static enum status warm_up(struct bench *b, struct passes *passes)
{
    const struct prepack_run *most = b->runs;
    while (need_of(b, most).kv_blocks < b->need.kv_blocks)
        most++;
    int group = 0;
    while (prepack_group_need(&most->plan, most->prompts->length, group, &b->memory).kv_blocks < b->need.kv_blocks)
        group++;
    struct prepack_run run;
    prepack_run_init(&run, &most->plan, most->prompts, 1);
    while (run.plan.passes[run.next_pass].group != group)
        run.next_pass++;
    enum status status = prepack_run_group(&run, passes, b->config.vocab_size);
    run.plan = (struct prepack_plan){0}; // the other's
    prepack_run_free(&run);
    return status;
}

static enum status run_all(struct bench *b, struct passes *passes)
{
    int64_t total = 0, done = 0;
    for (int i = 0; i < b->n_runs; i++)
        total += b->runs[i].plan.rows * o.rounds;
    struct progress progress = {0};
    enum status status = warm_up(b, passes);
    for (struct prepack_run *run; status == STATUS_OK && (run = next_run(b));) {
        int64_t before = run->rows_done;
        progress_draw(&progress, done, total, false, "%lld of %lld rows, %s", (long long)done, (long long)total,
                      prepack_policy_name(run->plan.policy));
        status = prepack_run_group(run, passes, b->config.vocab_size);
        done += run->rows_done - before;
    }
    if (status == STATUS_OK && isatty(STDERR_FILENO))
        progress_draw(&progress, done, total, true, "%lld rows", (long long)done);
    return status;
}

// Prompts whose first token was chosen otherwise than by the first run.
static int count_others(const struct bench *b, const struct prepack_run *run)
{
    int n = 0;
    for (int p = 0; p < b->prompts.n; p++)
        n += run->digest[p] != b->runs[0].digest[p];
    return n;
}

static enum status check_same_tokens(const struct bench *b)
{
    for (int i = 1; i < b->n_runs && b->exact; i++)
        for (int p = 0; p < b->prompts.n && b->runs[i].prompts == &b->prompts; p++)
            if (b->runs[i].digest[p] != b->runs[0].digest[p])
                return status_fail(STATUS_INTERNAL, "prompt %d: other logits under '%s' than under '%s'", p + 1,
                                   prepack_policy_name(b->runs[i].plan.policy),
                                   prepack_policy_name(b->runs[0].plan.policy));
    return STATUS_OK;
}

// ---- telling --------------------------------------------------------------------------------------------------------

// Seconds of each arrival batch of `batch_size`: from another run's batches where it knows none.
static void batch_times(const struct prepack_run *run, int batch_size, double *mean_p, double *deviation_p)
{
    int n = run->n_batches * run->rounds_done;
    double scale = (double)batch_size / run->plan.batch_size, sum = 0, squares = 0;
    for (int i = 0; i < n; i++)
        sum += run->batch_s[i];
    for (int i = 0; i < n; i++)
        squares += (run->batch_s[i] - sum / n) * (run->batch_s[i] - sum / n);
    *mean_p = scale * sum / n;
    // Sums of `scale` batches, were they independent.
    *deviation_p = n > 1 ? sqrt(scale * squares / (n - 1)) : NAN;
}

static double mean_of(const double *values, int n, int rounds)
{
    double sum = 0;
    for (int i = 0; i < n; i++)
        sum += values[i];
    return sum / n / rounds;
}

static double us_per_token(const struct prepack_run *run)
{
    return 1e6 * run->total_s / (double)run->prompts->tokens / (double)o.rounds;
}

// Of two policies with the same batches: the mean over them of how much more memory the one needs than the other, and
// of the longest prompt over the mean, which is what padding wastes.
static void compare_memory(const struct bench *b, const struct prepack_run *more, const struct prepack_run *less,
                           double *ratio_p, double *lengths_p)
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

static json_t *row_of(const struct bench *b, const struct prepack_run *run, int batch_size)
{
    const struct prepack_plan *plan = &run->plan;
    const struct prepack_run *padded = find_run(b, PREPACK_PADDED, batch_size);
    struct prepack_need need = need_of(b, run);
    double mean, deviation, tokens = (double)b->prompts.tokens;
    batch_times(run, batch_size, &mean, &deviation);
    json_t *row =
        json_pack("{s:s,s:i,s:i,s:I,s:I,s:i,s:i}", "policy", prepack_policy_name(plan->policy), "batch_size",
                  batch_size, "prompts", b->prompts.n, "tokens", (json_int_t)b->prompts.tokens, "rows",
                  (json_int_t)plan->rows, "passes", plan->n_passes, "bins", plan->capacity ? plan->n_passes : 0);
    json_object_set_new(row, "other_first_tokens", json_integer(count_others(b, run)));
    json_object_set_new(row, "pad_fraction", json_real(1 - tokens / (double)plan->rows));
    json_object_set_new(row, "prefill_ms_mean", json_real(1000 * mean));
    json_object_set_new(row, "prefill_ms_std", bench_number(1000 * deviation));
    json_object_set_new(row, "ttft_ms_mean", json_real(1000 * mean_of(run->ttft_s, b->prompts.n, (int)o.rounds)));
    json_object_set_new(row, "ttft_ms_mean_queued",
                        json_real(1000 * mean_of(run->waited_ttft_s, b->prompts.n, (int)o.rounds)));
    json_object_set_new(row, "us_per_token", json_real(us_per_token(run)));
    json_object_set_new(row, "gflops", json_real(work_gflop(&run->work) / run->total_s));
    json_object_set_new(row, "pack_us", json_real(plan->pack_us));
    json_object_set_new(row, "peak_kv_mb", json_real(need.kv_bytes / 1e6));
    json_object_set_new(row, "peak_activation_mb", json_real(need.pass_bytes / 1e6));
    json_object_set_new(row, "peak_mb", json_real((need.kv_bytes + need.pass_bytes) / 1e6));
    if (padded) {
        json_object_set_new(row, "padded_time_ratio", json_real(padded->total_s / run->total_s));
        json_object_set_new(row, "padded_rows_ratio", json_real((double)padded->plan.rows / (double)plan->rows));
    }
    if (knows_batches(plan->policy)) {
        int largest = prepack_largest_batch(plan->policy, &b->prompts, (int)o.token_budget,
                                            (double)o.memory_mb * 1048576, &b->memory);
        json_object_set_new(row, "largest_batch", json_integer(largest));
        json_object_set_new(row, "memory_mib", json_integer(o.memory_mb));
    }
    if (plan->policy == PREPACK_BATCH && padded) {
        double more, lengths;
        compare_memory(b, padded, run, &more, &lengths);
        json_object_set_new(row, "padded_memory_ratio", json_real(more));
        json_object_set_new(row, "longest_over_mean", json_real(lengths));
    }
    if (plan->capacity) json_object_set_new(row, "capacity", json_integer(plan->capacity));
    if (plan->policy == PREPACK_DATASET) {
        const struct prepack_run *full = find_run(b, PREPACK_FULL_BINS, batch_size);
        json_object_set_new(row, "full_bin_us_per_token", json_real(us_per_token(full)));
        json_object_set_new(row, "over_full_bin", json_real(us_per_token(run) / us_per_token(full)));
        const struct prepack_run *ordered = find_run(b, PREPACK_LENGTH_ORDERED, batch_size);
        if (ordered) json_object_set_new(row, "over_length_ordered", json_real(run->total_s / ordered->total_s));
    }
    json_object_set_new(row, "peak_rss_mb", json_real(memory_peak_mb(getpid())));
    return row;
}

static double real(const json_t *row, const char *key)
{
    const json_t *value = json_object_get(row, key);
    return json_is_number(value) ? json_number_value(value) : NAN;
}

static const json_t *find_row(const struct bench *b, enum prepack_policy policy, int batch_size)
{
    size_t i;
    const json_t *row;
    json_array_foreach(b->rows, i, row)
    {
        const char *name = json_string_value(json_object_get(row, "policy"));
        if (real(row, "batch_size") == batch_size && strcmp(name, prepack_policy_name(policy)) == 0) return row;
    }
    return NULL;
}

static void print_table(const struct bench *b)
{
    printf("%-14s %5s %10s %9s %10s %10s %9s %9s %6s %6s %8s %8s %8s %7s\n", "policy", "batch", "prefill ms", "+-",
           "TTFT ms", "queued", "us/token", "rows", "pad %", "passes", "KV MB", "act. MB", "padded/", "largest");
    size_t i;
    const json_t *row;
    json_array_foreach(b->rows, i, row)
    {
        printf("%-14s %5.0f %10.2f %9.2f %10.2f %10.2f %9.1f %9.0f %6.1f %6.0f %8.1f %8.1f %8.2f %7.0f\n",
               json_string_value(json_object_get(row, "policy")), real(row, "batch_size"), real(row, "prefill_ms_mean"),
               real(row, "prefill_ms_std"), real(row, "ttft_ms_mean"), real(row, "ttft_ms_mean_queued"),
               real(row, "us_per_token"), real(row, "rows"), 100 * real(row, "pad_fraction"), real(row, "passes"),
               real(row, "peak_kv_mb"), real(row, "peak_activation_mb"), real(row, "padded_time_ratio"),
               real(row, "largest_batch"));
    }
    printf("\nprefill ms: of as many prompts as a batch has; TTFT ms: from when its batch (or bin) begins; queued: "
           "from when all prompts were there\n"
           "KV, act.: the most that a batch needs, counted; padded/: time of padded over this; largest: batch in %lld "
           "MiB of KV and activations\n",
           (long long)o.memory_mb);
    const json_t *dataset = find_row(b, PREPACK_DATASET, b->batches.count[0]);
    if (dataset)
        printf("a token of dataset takes %.3f of the time that one of a full bin takes, %.1f us\n",
               real(dataset, "over_full_bin"), real(dataset, "full_bin_us_per_token"));
}

static void write_report(struct bench *b)
{
    struct report *r = b->report;
    report_paragraph(r,
                     "%s, %s weights%s; %d prompts of %s, %lld tokens, the longest %d; bins of %lld tokens, %lld "
                     "round%s. %s",
                     o.model ? o.model : o.shape, o.dtype, o.shape || strcmp(o.load, "dummy") == 0 ? " made up" : "",
                     b->prompts.n, o.prompts ? o.prompts : o.lengths, (long long)b->prompts.tokens,
                     (int)b->prompts.longest, (long long)o.token_budget, (long long)o.rounds, o.rounds > 1 ? "s" : "",
                     b->exact ? "Every policy chose each prompt's first token by the same logits, bit for bit."
                              : "Logits may differ by rounding between policies.");
    const char *groups[BENCH_COUNTS_MAX], *names[PREPACK_POLICIES];
    double x[BENCH_COUNTS_MAX], speedup[PREPACK_POLICIES][BENCH_COUNTS_MAX], padding[BENCH_COUNTS_MAX];
    double memory[PREPACK_POLICIES * BENCH_COUNTS_MAX];
    struct report_series series[PREPACK_POLICIES + 1];
    int n = b->batches.n, n_policies = 0, n_series = 0;
    char label[BENCH_COUNTS_MAX][16];
    for (int s = 0; s < n; s++) {
        snprintf(label[s], sizeof label[s], "%d", b->batches.count[s]);
        groups[s] = label[s];
        x[s] = b->batches.count[s];
    }
    for (enum prepack_policy policy = 0; policy < PREPACK_POLICIES; policy++) {
        if (!b->wanted[policy]) continue;
        names[n_policies] = prepack_policy_name(policy);
        for (int s = 0; s < n; s++) {
            const json_t *row = find_row(b, policy, b->batches.count[s]);
            speedup[n_policies][s] = real(row, "padded_time_ratio");
            if (policy == PREPACK_PADDED) padding[s] = real(row, "rows") / real(row, "tokens");
            memory[n_policies * n + s] = real(row, "peak_mb");
        }
        if (policy != PREPACK_PADDED)
            series[n_series++] = (struct report_series){names[n_policies], x, speedup[n_policies], n};
        n_policies++;
    }
    if (b->wanted[PREPACK_PADDED]) {
        series[n_series++] = (struct report_series){"padding avoided", x, padding, n};
        report_lines(r, &(struct report_chart){"How many times faster than padded", "batch size", "times", true, false,
                                               series, n_series});
    }
    report_bars(r, &(struct report_bars){"Peak memory, KV and activations (counted), by batch size", "MB", groups, n,
                                         names, n_policies, memory});
    static const char *const columns[] = {"policy=Policy",
                                          "batch_size=Batch",
                                          "prefill_ms_mean=Prefill ms",
                                          "prefill_ms_std=+-",
                                          "ttft_ms_mean=TTFT ms",
                                          "ttft_ms_mean_queued=TTFT ms, queued",
                                          "us_per_token=us per token",
                                          "rows=Rows",
                                          "pad_fraction=Padding",
                                          "passes=Passes",
                                          "peak_kv_mb=KV MB",
                                          "peak_activation_mb=Activations MB",
                                          "padded_time_ratio=Padded over this",
                                          "padded_memory_ratio=Memory, padded over this",
                                          "longest_over_mean=Longest over mean",
                                          "largest_batch=Largest batch",
                                          "full_bin_us_per_token=Full bin, us per token",
                                          "over_full_bin=Over full bin"};
    report_table(r, b->rows, columns, sizeof columns / sizeof columns[0]);
}

// ---- the model ------------------------------------------------------------------------------------------------------

static enum status parse_policies(struct bench *b)
{
    for (const char *at = o.policies;;) {
        size_t length = strcspn(at, ",");
        enum prepack_policy policy = 0;
        while (policy < PREPACK_POLICIES &&
               (strlen(prepack_policy_name(policy)) != length || strncmp(prepack_policy_name(policy), at, length) != 0))
            policy++;
        if (policy == PREPACK_POLICIES)
            return status_fail(STATUS_INVALID,
                               "--policies '%s': must be of padded, length-ordered, batch, dataset, none, apart by "
                               "commas",
                               o.policies);
        b->wanted[policy] = true;
        if (!at[length]) return STATUS_OK;
        at += length + 1;
    }
}

static enum status configure(struct bench *b)
{
    if (!o.model == !o.shape) return status_fail(STATUS_INVALID, "give exactly one of --model DIR and --shape FILE");
    if (!o.prompts == !o.lengths)
        return status_fail(STATUS_INVALID, "give exactly one of --prompts F.jsonl and --lengths F");
    if (o.prompts && !o.model)
        return status_fail(STATUS_INVALID, "--prompts needs the tokenizer of --model DIR: with --shape use --lengths");
    enum status status = parse_policies(b);
    if (status == STATUS_OK) status = bench_counts_parse("batch-size", o.batch_size, 1, 65536, &b->batches);
    if (status == STATUS_OK) status = model_config_read(o.model ? o.model : o.shape, &b->config);
    if (status == STATUS_OK)
        status = o.prompts ? prompts_read_texts(o.prompts, o.model, (int)o.limit, &b->prompts)
                           : prompts_read_lengths(o.lengths, (int)o.limit, &b->prompts);
    if (status != STATUS_OK) return status;
    if (o.lengths) prompts_make_up(&b->prompts, b->config.vocab_size);
    for (int s = 0; s < b->batches.n; s++)
        if ((int64_t)b->batches.count[s] * b->prompts.longest > PADDED_ROWS_MAX)
            return status_fail(STATUS_INVALID, "--batch-size %d: with prompts of %d tokens that is more than %d rows",
                               b->batches.count[s], (int)b->prompts.longest, (int)PADDED_ROWS_MAX);
    status = prompts_check(&b->prompts, b->config.max_context, b->config.vocab_size);
    if (status == STATUS_OK && o.report) status = report_open(o.report, "forepack bench prepack", &b->report);
    if (status == STATUS_OK) plan_runs(b);
    return status;
}

static enum status run_engine(struct bench *b)
{
    const struct passes_limits limits = {b->need.rows, b->need.prompts, b->prompts.longest, b->need.kv_blocks};
    const struct model_options model = {.dir = o.model ? o.model : o.shape,
                                        .dummy = o.shape || strcmp(o.load, "dummy") == 0,
                                        .backend = o.backend,
                                        .dtype = o.dtype,
                                        .threads = (int)o.threads,
                                        .max_rows = limits.rows,
                                        .max_seqs = limits.seqs,
                                        .max_logit_rows = limits.seqs,
                                        .max_context = limits.context,
                                        .n_kv_blocks = limits.kv_blocks};
    struct comm *comm;
    struct engine *engine;
    enum status status = comm_open_self(&comm);
    if (status != STATUS_OK) return status;
    status = engine_open(&model, comm, &engine);
    if (status == STATUS_OK) {
        const struct model *m = engine_model(engine);
        b->memory = prepack_memory_of(m);
        b->exact = model_capabilities(m)->exact_rows;
        double weight_bytes = (double)dtype_size_bytes(model_dtype(m));
        struct work_model work = work_model_of(&b->config, weight_bytes, b->memory.block_bytes / KV_BLOCK_TOKENS);
        struct passes *passes = passes_create(engine, &limits, &work);
        engine_set_step_timeout(engine, 0); // a padded pass of a large model may take minutes
        status = run_all(b, passes);
        passes_free(passes);
        engine_close(engine);
    }
    comm->ops->close(comm);
    return status;
}

int bench_prepack(int argc, char **argv)
{
    options_main(options,
                 "Usage: forepack bench prepack --model DIR|--shape FILE --prompts F.jsonl|--lengths F [options]\n"
                 "Prefill of the same prompts with and without padding, in batches and packed over all of them.\n"
                 "With dataset, bins that are exactly full are run too, to tell what its tokens cost over theirs.",
                 argc, argv, NULL);
    struct bench b = {.rows = json_array()};
    enum status status = configure(&b);
    if (status == STATUS_OK) status = run_engine(&b);
    if (status == STATUS_OK) status = check_same_tokens(&b);
    for (int s = 0; s < b.batches.n && status == STATUS_OK; s++)
        for (enum prepack_policy policy = 0; policy < PREPACK_POLICIES; policy++) {
            const struct prepack_run *run = find_run(&b, policy, b.batches.count[s]);
            if (run) json_array_append_new(b.rows, row_of(&b, run, b.batches.count[s]));
        }
    if (status == STATUS_OK && o.json) bench_print_json(b.rows);
    if (status == STATUS_OK && !o.json) print_table(&b);
    if (status == STATUS_OK && b.report) write_report(&b);
    enum status written = report_close(b.report);
    if (status == STATUS_OK) status = written;
    int code = status == STATUS_OK ? 0 : report_failure(status);
    for (int i = 0; i < b.n_runs; i++)
        prepack_run_free(&b.runs[i]);
    free(b.runs);
    prompts_free(&b.prompts);
    prompts_free(&b.full_prompts);
    json_decref(b.rows);
    options_free(options);
    return code;
}
