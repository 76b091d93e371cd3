// SPDX-License-Identifier: Apache-2.0
// forepack bench prefill-quality: the answers that pruning prompt tokens costs and the time that it saves. Both tasks
// run a main model and a speculator in this process, one prompt at a time, with the code of a cluster's nodes.
#include "bench/commands/quality.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "bench/tasks.h"
#include "cli/request.h"

static struct quality_flags o;

// clang-format off
static const struct option options[] = {
    {.name = "task", .type = OPTION_CHOICE, .value = &o.task, .default_text = "needle", .choices = "needle|ttft",
     .help = "needle: right answers of the demo models; ttft: time to first token with random weights"},
    {.name = "-Models"},
    {.name = "main", .type = OPTION_STRING, .value = &o.main, .default_text = "deploy/demo-model/main",
     .help = "needle: directory of the main model"},
    {.name = "spec", .type = OPTION_STRING, .value = &o.spec, .default_text = "deploy/demo-model/speculator",
     .help = "needle: directory of the speculator's model"},
    {.name = "shape", .type = OPTION_STRING, .value = &o.shape, .default_text = "bench/shapes/llama-3.2-1b.json",
     .help = "ttft: config.json of the main model"},
    {.name = "spec-shape", .type = OPTION_STRING, .value = &o.spec_shape, .default_text = "bench/shapes/llama-110m.json",
     .help = "ttft: config.json of the speculator's model"},
    {.name = "backend", .type = OPTION_CHOICE, .value = &o.backend, .default_text = "auto", .choices = MODEL_BACKENDS,
     .help = "auto is cuda if there is a GPU, else cpu"},
    {.name = "dtype", .type = OPTION_CHOICE, .value = &o.dtype, .default_text = "auto",
     .choices = MODEL_DTYPES, .help = "type of both models' weights; auto is the checkpoint's"},
    {.name = "threads", .type = OPTION_INT, .value = &o.threads, .default_text = "0", .max = 4096,
     .help = "compute threads; 0 is every core the process may use"},
    {.name = "max-num-batched-tokens", .type = OPTION_INT, .value = &o.token_budget, .default_text = "2048", .min = 1,
     .max = 1048576, .unit = "tokens", .help = "rows of one pass"},
    {.name = "-Prompts and selection"},
    {.name = "prompt-tokens", .type = OPTION_STRING, .value = &o.prompt_tokens, .default_text = "256,512,1024,2048,4080",
     .unit = "tokens", .help = "prompt lengths, comma-separated"},
    {.name = "keep-rates", .type = OPTION_STRING, .value = &o.keep_rates, .default_text = "0.7,0.5,0.3,0.1,0.05",
     .help = "keep rates, comma-separated; compared with everything kept"},
    {.name = "look-aheads", .type = OPTION_STRING, .value = &o.look_aheads, .default_text = "8,1", .unit = "steps",
     .help = "look-ahead tokens from 1 to 64, comma-separated"},
    {.name = "chunk-tokens", .type = OPTION_STRING, .value = &o.chunk_tokens, .default_text = "auto,32,0", .unit = "tokens",
     .help = "chunk sizes, comma-separated; auto is spans, 0 is single tokens. Methods without a model use the first one"},
    {.name = "pool-window", .type = OPTION_INT, .value = &o.pool_window, .default_text = "13", .min = 1, .max = 1023,
     .unit = "tokens", .help = "smoothing window: odd width of the average along the prompt"},
    {.name = "tail-tokens", .type = OPTION_INT, .value = &o.tail_tokens, .default_text = "128", .max = 1e9, .unit = "tokens",
     .help = "tail window: last tokens kept beyond the budget, at most a quarter of the prompt"},
    {.name = "paper-exact", .type = OPTION_BOOL, .value = &o.paper_exact,
     .help = "only the paper's selection: no tail window and no pinned token"},
    {.name = "-Measurement and output"},
    {.name = "documents", .type = OPTION_INT, .value = &o.documents, .default_text = "100", .min = 1, .max = 1000000,
     .help = "needle: documents of each length"},
    {.name = "seed", .type = OPTION_INT, .value = &o.seed, .default_text = "1", .help = "seed of documents and of the random method"},
    {.name = "rounds", .type = OPTION_INT, .value = &o.rounds, .default_text = "3", .min = 1, .max = 1000,
     .help = "ttft: number of rounds; the median is reported"},
    {.name = "report", .type = OPTION_STRING, .value = &o.report, .help = "also write an HTML page with plots to this file"},
    {.name = "json", .type = OPTION_BOOL, .value = &o.json, .help = "print a JSON list"},
    {0},
};
// clang-format on

// ---- selection ------------------------------------------------------------------------------------------------------

int quality_tail_tokens(const struct quality *q, int n)
{
    return prefill_tail_tokens((int)q->flags->tail_tokens, n);
}

enum status quality_score(struct quality *q, int look_ahead, int64_t *score_us_p)
{
    struct prefill prefill;
    prefill_defaults(&prefill);
    prefill.look_ahead = look_ahead;
    prefill.pool_window = (int)q->flags->pool_window;
    return model_pair_score(q->pair, q->tokens, q->n, &prefill, q->importance, score_us_p);
}

int quality_select(const struct quality *q, int chunk_tokens, double keep_rate, bool keep_first,
                   struct token_range **kept_p)
{
    const struct prefill prefill = {
        .keep_rate = keep_rate, .chunk_tokens = chunk_tokens, .paper_exact = q->flags->paper_exact};
    struct select_policy policy = select_policy_of(&prefill);
    uint8_t *ends = mem_alloc((size_t)q->n);
    sentence_ends(&q->sentences, q->tokens, q->n, ends);
    policy.keep_first = keep_first;
    policy.tail_tokens = quality_tail_tokens(q, q->n);
    policy.ends = q->sentences.n ? ends : NULL;
    int n_kept = select_kept(q->importance, q->n, &policy, kept_p);
    free(ends);
    return n_kept;
}

int quality_kept_tokens(const struct token_range *kept, int n_kept)
{
    int n = 0;
    for (int r = 0; r < n_kept; r++)
        n += kept[r].last - kept[r].first + 1;
    return n;
}

// ---- the command ----------------------------------------------------------------------------------------------------

static enum status quality_check_flags(const struct quality *q, bool needle)
{
    for (int i = 0; i < q->lengths.n; i++)
        if (needle && q->lengths.count[i] < TASK_TOKENS_MIN)
            return status_fail(STATUS_INVALID, "--prompt-tokens %d: must be %d or more", q->lengths.count[i],
                               TASK_TOKENS_MIN);
    if (o.pool_window % 2 == 0)
        return status_fail(STATUS_INVALID, "--pool-window %lld: must be odd", (long long)o.pool_window);
    return STATUS_OK;
}

static int counts_max(const struct bench_counts *counts)
{
    int max = 0;
    for (int i = 0; i < counts->n; i++)
        max = counts->count[i] > max ? counts->count[i] : max;
    return max;
}

static enum status quality_configure(struct quality *q, bool needle)
{
    enum status status = bench_counts_parse("prompt-tokens", o.prompt_tokens, 1, 10000000, &q->lengths);
    if (status == STATUS_OK)
        status = bench_counts_parse("look-aheads", o.look_aheads, 1, LOOK_AHEAD_MAX, &q->look_aheads);
    if (status == STATUS_OK)
        status = bench_counts_or_auto_parse("chunk-tokens", o.chunk_tokens, 0, 1000000, &q->chunks);
    if (status == STATUS_OK)
        status = bench_reals_parse("keep-rates", o.keep_rates, 1e-6, 1, q->keep_rates, &q->n_keep_rates);
    return status == STATUS_OK ? quality_check_flags(q, needle) : status;
}

static enum status quality_open_pair(struct quality *q, bool needle)
{
    const struct model_pair_options pair = {
        .main = needle ? o.main : o.shape,
        .spec = needle ? o.spec : o.spec_shape,
        .dummy = !needle,
        .backend = o.backend,
        .dtype = o.dtype,
        .threads = (int)o.threads,
        .token_budget = (int)o.token_budget,
        .max_prompt = counts_max(&q->lengths),
        .max_output = QUALITY_ANSWER_TOKENS,
        .look_ahead = counts_max(&q->look_aheads),
    };
    enum status status = model_pair_open(&pair, &q->pair);
    if (status == STATUS_OK && needle) status = tokenizer_open(o.main, &q->tokenizer);
    if (status == STATUS_OK && needle) q->sentences = sentence_table_create(q->tokenizer);
    q->importance = mem_alloc_array((size_t)pair.max_prompt, sizeof *q->importance);
    return status;
}

int bench_quality(int argc, char **argv)
{
    options_main(options,
                 "Usage: forepack bench prefill-quality [--task needle|ttft] [options]\n"
                 "Right answers and time to first token, by keep rate.",
                 argc, argv, NULL);
    struct quality q = {.flags = &o, .rows = json_array()};
    struct report *report = NULL;
    bool needle = strcmp(o.task, "needle") == 0;
    enum status status = quality_configure(&q, needle);
    if (status == STATUS_OK && o.report) status = report_open(o.report, "forepack bench prefill-quality", &report);
    if (status == STATUS_OK) status = quality_open_pair(&q, needle);
    if (status == STATUS_OK) status = needle ? quality_run_needle(&q) : quality_run_ttft(&q);
    if (status == STATUS_OK && o.json) bench_print_json(q.rows);
    if (status == STATUS_OK && report) (needle ? quality_report_needle : quality_report_ttft)(report, &q);
    if (report) {
        enum status written = report_close(report);
        if (status == STATUS_OK) status = written;
    }
    int code = status == STATUS_OK ? 0 : report_failure(status);
    model_pair_close(q.pair);
    sentence_table_free(&q.sentences);
    tokenizer_free(q.tokenizer);
    free(q.tokens);
    free(q.importance);
    json_decref(q.rows);
    options_free(options);
    return code;
}
