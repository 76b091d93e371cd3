// SPDX-License-Identifier: Apache-2.0
// forepack bench prefill-quality: measures how many right answers pruning costs and how much time it saves. A main
// model and a speculator run in this process, with the code of a cluster's nodes.
#include "bench/commands/quality.h"

#include <stdlib.h>
#include <string.h>

#include "cli/request.h"
#include "lib/base/mem.h"

static struct quality_flags o;

// clang-format off
static const struct option options[] = {
    {.name = "task", .type = OPTION_CHOICE, .value = &o.task, .default_text = "needle", .choices = TASK_NAMES "|all|ruler|" RULER_NAMES "|ttft",
     .help = "right answers in one class of documents; all: the first six; ruler: the other thirteen; ttft: time to first "
             "token with random weights"},
    {.name = "form", .type = OPTION_CHOICE, .value = &o.form, .default_text = "plain", .choices = "plain|chat",
     .help = "answers: plain prompts, or ChatML prompts, whose instructions and last turn are not pinned; RULER's are plain"},
    {.name = "passages", .type = OPTION_STRING, .value = &o.passages, .placeholder = "FILE",
     .help = "qa_1, qa_2: SQuAD's or HotpotQA's JSON file, in place of passages that this command writes"},
    {.name = "-Models"},
    {.name = "main", .type = OPTION_STRING, .value = &o.main, .default_text = "deploy/demo-model/main",
     .help = "answers: directory of the main model"},
    {.name = "spec", .type = OPTION_STRING, .value = &o.spec, .default_text = "deploy/demo-model/speculator",
     .help = "answers: directory of the speculator's model"},
    {.name = "shape", .type = OPTION_STRING, .value = &o.shape, .default_text = "bench/shapes/llama-3.2-1b.json",
     .help = "ttft: config.json of the main model"},
    {.name = "spec-shape", .type = OPTION_STRING, .value = &o.spec_shape, .default_text = "bench/shapes/llama-110m.json",
     .help = "ttft: config.json of the speculator's model"},
    {.name = "backend", .type = OPTION_CHOICE, .value = &o.backend, .default_text = "auto", .choices = MODEL_BACKENDS,
     .help = "auto is cuda if there is a GPU, else cpu"},
    {.name = "dtype", .type = OPTION_CHOICE, .value = &o.dtype, .default_text = "auto",
     .choices = MODEL_DTYPES, .help = "type of both models' weights; auto: as in the checkpoint"},
    {.name = "threads", .type = OPTION_INT, .value = &o.threads, .default_text = "0", .max = 4096,
     .help = "compute threads; 0 is every core the process may use"},
    {.name = "max-num-batched-tokens", .type = OPTION_INT, .value = &o.token_budget, .default_text = "2048", .min = 1,
     .max = 1048576, .unit = "tokens", .help = "rows of one pass"},
    {.name = "max-num-seqs", .type = OPTION_INT, .value = &o.max_seqs, .default_text = "32", .min = 1, .max = 4096,
     .help = "answers: sequences of one pass; changes no result"},
    {.name = "-Prompts and selection"},
    {.name = "prompt-tokens", .type = OPTION_STRING, .value = &o.prompt_tokens, .default_text = "256,512,1024,2048,4000",
     .unit = "tokens", .help = "prompt lengths, comma-separated"},
    {.name = "batch", .type = OPTION_STRING, .value = &o.batches, .default_text = "1",
     .help = "ttft: numbers of prompts that arrive together, comma-separated"},
    {.name = "max-batch-tokens", .type = OPTION_INT, .value = &o.max_batch_tokens, .default_text = "32768", .min = 1, .max = 1e8,
     .unit = "tokens", .help = "ttft: skip batches whose prompts are longer than this together"},
    {.name = "policies", .type = OPTION_STRING, .value = &o.policies, .default_text = "importance,oracle,random,positional",
     .help = "answers: the ranking policies of tokens, comma-separated: importance by the speculator, an oracle (the main "
             "model while it answers the whole prompt), bm25 (the words of the last paragraph), perplexity (tokens that the "
             "speculator's model predicts worst), random, positional (first and last tokens), first, last"},
    {.name = "keep-rates", .type = OPTION_STRING, .value = &o.keep_rates, .default_text = "0.7,0.5,0.3,0.1,0.05",
     .help = "keep rates, comma-separated; compared with all tokens kept"},
    {.name = "quality", .type = OPTION_STRING, .value = &o.qualities,
     .help = "answers: also measure the keep rates that the speculator's calibration chooses for these qualities: "
             "shares of the answers that are right with the whole prompt, comma-separated"},
    {.name = "look-aheads", .type = OPTION_STRING, .value = &o.look_aheads, .default_text = "8", .unit = "steps",
     .help = "look-ahead tokens from 1 to 64, comma-separated"},
    {.name = "chunk-tokens", .type = OPTION_STRING, .value = &o.chunk_tokens, .default_text = "auto,32,0", .unit = "tokens",
     .help = "chunk sizes, comma-separated; auto is spans, 0 is single tokens; policies without a model use the first size"},
    {.name = "pool-window", .type = OPTION_INT, .value = &o.pool_window, .default_text = "13", .min = 1, .max = 1023,
     .unit = "tokens", .help = "smoothing window: odd width of the average along the prompt"},
    {.name = "tail-tokens", .type = OPTION_INT, .value = &o.tail_tokens, .default_text = "128", .max = 1e9, .unit = "tokens",
     .help = "tail window: last tokens kept beyond the budget, at most a quarter of the prompt"},
    {.name = "paper-exact", .type = OPTION_BOOL, .value = &o.paper_exact,
     .help = "only the paper's selection: no tail window and no pinned token"},
    {.name = "positions", .type = OPTION_CHOICE, .value = &o.positions, .default_text = "restored",
     .choices = "restored|contiguous",
     .help = "answers: positions of kept tokens: those of the whole prompt, or one after another"},
    {.name = "-Measurement and output"},
    {.name = "time", .type = OPTION_BOOL, .value = &o.time,
     .help = "answers: compute prompts one after another and also report their mean TTFT (ttft_ms)"},
    {.name = "documents", .type = OPTION_INT, .value = &o.documents, .default_text = "100", .min = 1, .max = 1000000,
     .help = "answers: documents of each class and length"},
    {.name = "first", .type = OPTION_INT, .value = &o.first, .default_text = "0", .max = 1000000000,
     .help = "answers: number of the first document, to measure a large set in parts"},
    {.name = "seed", .type = OPTION_INT, .value = &o.seed, .default_text = "1", .max = TASK_EVALUATION_SEED_MAX,
     .help = "answers: seed of the documents and of the random policy"},
    {.name = "rounds", .type = OPTION_INT, .value = &o.rounds, .default_text = "3", .min = 1, .max = 1000,
     .help = "ttft: number of rounds; the median is reported"},
    {.name = "report", .type = OPTION_STRING, .value = &o.report, .help = "also write an HTML page with plots to this file"},
    {.name = "json", .type = OPTION_BOOL, .value = &o.json, .help = "print a JSON list"},
    {0},
};
// clang-format on

// ---- the command ----------------------------------------------------------------------------------------------------

static bool task_is_ttft(void)
{
    return strcmp(o.task, "ttft") == 0;
}

static bool task_is_ruler(void)
{
    enum ruler_task task;
    return strcmp(o.task, "ruler") == 0 || ruler_parse(o.task, &task);
}

static enum status quality_check_flags(const struct quality *q)
{
    const int least = task_is_ttft() ? 1 : task_is_ruler() ? RULER_TOKENS_MIN : TASK_TOKENS_MIN;
    for (int i = 0; i < q->lengths.n; i++)
        if (q->lengths.count[i] < least)
            return status_fail(STATUS_INVALID, "--prompt-tokens %d: must be %d or more", q->lengths.count[i], least);
    if (task_is_ruler() && strcmp(o.form, "plain") != 0)
        return status_fail(STATUS_INVALID, "--form %s: RULER's tasks have the plain form", o.form);
    if (o.pool_window % 2 == 0)
        return status_fail(STATUS_INVALID, "--pool-window %lld: must be odd", (long long)o.pool_window);
    return STATUS_OK;
}

static enum status policies_parse(const char *text, bool policy[QUALITY_POLICIES])
{
    for (const char *at = text;; at++) {
        size_t size = strcspn(at, ",");
        int p = 0;
        while (p < QUALITY_POLICIES &&
               (strlen(quality_policy_name(p)) != size || strncmp(quality_policy_name(p), at, size) != 0))
            p++;
        if (p == QUALITY_POLICIES)
            return status_fail(STATUS_INVALID,
                               "--policies '%s': must be importance, oracle, bm25, perplexity, random, positional, "
                               "first and last, comma-separated",
                               text);
        policy[p] = true;
        at += size;
        if (!*at) return STATUS_OK;
    }
}

static int counts_max(const struct count_list *counts)
{
    int max = 0;
    for (int i = 0; i < counts->n; i++)
        max = counts->count[i] > max ? counts->count[i] : max;
    return max;
}

// Returns the entries that the KV cache needs for the largest batch of the ttft task.
static int largest_batch(const struct quality *q)
{
    int64_t largest = 0;
    for (int i = 0; i < q->lengths.n; i++)
        for (int k = 0; k < q->batches.n; k++) {
            int64_t prompts = q->batches.count[k], tokens = prompts * q->lengths.count[i];
            int64_t answers = prompts * (KV_BLOCK_TOKENS + counts_max(&q->look_aheads));
            if (tokens <= q->flags->max_batch_tokens && tokens + answers > largest) largest = tokens + answers;
        }
    return (int)largest;
}

static enum status quality_configure(struct quality *q)
{
    enum status status = count_list_parse("prompt-tokens", o.prompt_tokens, 1, 10000000, &q->lengths);
    if (status == STATUS_OK) status = count_list_parse("batch", o.batches, 1, 1024, &q->batches);
    if (status == STATUS_OK)
        status = count_list_parse("look-aheads", o.look_aheads, 1, LOOK_AHEAD_MAX, &q->look_aheads);
    if (status == STATUS_OK) status = count_list_or_auto_parse("chunk-tokens", o.chunk_tokens, 0, 1000000, &q->chunks);
    if (status == STATUS_OK)
        status = real_list_parse("keep-rates", o.keep_rates, 1e-6, 1, q->keep_rates, &q->n_keep_rates);
    if (status == STATUS_OK && o.qualities)
        status = real_list_parse("quality", o.qualities, 1e-6, 1, q->qualities, &q->n_qualities);
    if (status == STATUS_OK) status = policies_parse(o.policies, q->policy);
    return status == STATUS_OK ? quality_check_flags(q) : status;
}

// Reads the speculator's calibration. If there is none, the contract keeps every token.
static enum status quality_read_calibration(struct quality *q)
{
    struct calibration calibration;
    enum status status = calibration_read(o.spec, &calibration);
    if (status == STATUS_NOT_FOUND) return STATUS_OK;
    if (status == STATUS_OK) q->calibration = mem_copy(&calibration, sizeof calibration);
    return status;
}

static enum status quality_open_pair(struct quality *q)
{
    const bool ttft = task_is_ttft();
    const struct model_pair_options pair = {
        .main = ttft ? o.shape : o.main,
        .spec = ttft ? o.spec_shape : o.spec,
        .dummy = ttft,
        .backend = o.backend,
        .dtype = o.dtype,
        .threads = (int)o.threads,
        .token_budget = (int)o.token_budget,
        .max_seqs = ttft ? counts_max(&q->batches) : (int)o.max_seqs,
        .kv_tokens = ttft ? largest_batch(q) : 0,
        .max_prompt = counts_max(&q->lengths),
        .max_output = ttft              ? 1
                      : task_is_ruler() ? RULER_ANSWER_TOKENS_MAX
                                        : TASK_ANSWER_TOKENS,
        .look_ahead = counts_max(&q->look_aheads),
    };
    if (o.passages) TRY(ruler_passages_read(o.passages, &q->passages));
    TRY(model_pair_open(&pair, &q->pair));
    if (ttft) return STATUS_OK;
    if (q->n_qualities) TRY(quality_read_calibration(q));
    TRY(tokenizer_open(o.main, &q->tokenizer));
    q->sentences = sentence_table_create(q->tokenizer);
    return STATUS_OK;
}

int bench_quality(int argc, char **argv)
{
    options_main(options,
                 "Usage: forepack bench prefill-quality [--task TASK|all|ruler|ttft] [options]\n"
                 "Right answers or time to first token, by keep rate.",
                 argc, argv, NULL);
    struct quality q = {.flags = &o, .rows = json_array()};
    struct report *report = NULL;
    bool ttft = task_is_ttft();
    enum status status = quality_configure(&q);
    if (status == STATUS_OK && o.report) status = report_open(o.report, "forepack bench prefill-quality", &report);
    if (status == STATUS_OK) status = quality_open_pair(&q);
    if (status == STATUS_OK) status = ttft ? quality_run_ttft(&q) : quality_run_tasks(&q);
    if (status == STATUS_OK && o.json) bench_print_json(q.rows);
    if (status == STATUS_OK && report) (ttft ? quality_report_ttft : quality_report_tasks)(report, &q);
    if (report) {
        enum status written = report_close(report);
        if (status == STATUS_OK) status = written;
    }
    int code = status == STATUS_OK ? 0 : report_failure(status);
    quality_ranks_close(&q);
    model_pair_close(q.pair);
    free(q.calibration);
    tokenizer_free(q.tokenizer);
    ruler_passages_free(q.passages);
    json_decref(q.rows);
    options_free(options);
    return code;
}
