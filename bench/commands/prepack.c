// SPDX-License-Identifier: Apache-2.0
// forepack bench prepack: prefills the same prompts under every policy of packing and padding (bench/prepack.h). The
// policies advance together in one run, so that changes of the machine's speed affect all of them. On an exact backend,
// all policies must give the same logits, bit for bit.
#include "bench/commands/prepack.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/progress.h"
#include "cli/request.h"
#include "lib/base/mem.h"
#include "lib/base/options.h"

static struct prepack_flags o;

// clang-format off
static const struct option options[] = {
    {.name = "-Model"},
    BENCH_MODEL_OPTION_ROWS(o),
    {.name = "threads", .type = OPTION_INT, .value = &o.threads, .default_text = "0", .max = 4096,
     .help = "compute threads; 0 is every core the process may use"},
    {.name = "-Prompts"},
    {.name = "prompts", .type = OPTION_STRING, .value = &o.prompts,
     .help = "JSON Lines with \"prompt\" (a text, needs --model) or \"token_ids\""},
    {.name = "lengths", .type = OPTION_STRING, .value = &o.lengths,
     .help = "instead of --prompts: a file with one length in tokens per line, for random prompts"},
    {.name = "limit", .type = OPTION_INT, .value = &o.limit, .default_text = "256", .max = 1e6, .unit = "prompts",
     .help = "number of prompts to use; 0 is all"},
    {.name = "-Measurements"},
    {.name = "batch-size", .type = OPTION_STRING, .value = &o.batch_size, .default_text = "16", .unit = "prompts",
     .help = "prompts of an arrival batch; sizes are comma-separated"},
    {.name = "policies", .type = OPTION_STRING, .value = &o.policies,
     .default_text = "padded,length-ordered,batch,dataset,none", .help = "policies to compare, comma-separated"},
    {.name = "max-num-batched-tokens", .type = OPTION_INT, .value = &o.token_budget, .default_text = "2048", .min = 1,
     .max = 1048576, .unit = "tokens", .help = "bin capacity; raised to the longest prompt"},
    {.name = "memory-mib", .type = OPTION_INT, .value = &o.memory_mib, .default_text = "2048", .min = 1, .max = 1e7,
     .unit = "MiB", .help = "compute, without a run, the largest batch whose KV cache and activations fit this memory"},
    {.name = "-Timing and output"},
    {.name = "rounds", .type = OPTION_INT, .value = &o.rounds, .default_text = "1", .min = 1, .max = ROUNDS_MAX,
     .help = "times that every policy runs all prompts"},
    {.name = "report", .type = OPTION_STRING, .value = &o.report, .help = "also write an HTML page with plots to this file"},
    {.name = "json", .type = OPTION_BOOL, .value = &o.json, .help = "print a JSON list"},
    {0},
};
// clang-format on

enum { PADDED_ROWS_MAX = 1 << 24 };

// ---- runs -----------------------------------------------------------------------------------------------------------

static void prepack_add_run(struct prepack_bench *b, const struct prepack_plan *plan, const struct prompts *prompts)
{
    struct prepack_run *run = &b->runs[b->n_runs++];
    prepack_run_init(run, plan, prompts, (int)o.rounds);
    struct prepack_need need = prepack_run_need(b, run);
    if (need.rows > b->need.rows) b->need.rows = need.rows;
    if (need.prompts > b->need.prompts) b->need.prompts = need.prompts;
    if (need.kv_blocks > b->need.kv_blocks) b->need.kv_blocks = need.kv_blocks;
}

static void prepack_plan_runs(struct prepack_bench *b)
{
    b->runs = mem_alloc_array((size_t)b->batches.n * PREPACK_POLICIES + 1, sizeof *b->runs);
    for (int s = 0; s < b->batches.n; s++)
        for (enum prepack_policy policy = 0; policy < PREPACK_POLICIES; policy++) {
            if (!b->wanted[policy] || prepack_find_run(b, policy, b->batches.count[s])) continue;
            struct prepack_plan plan =
                prepack_plan_make(policy, b->prompts.length, b->prompts.n, b->batches.count[s], (int)o.token_budget);
            prepack_add_run(b, &plan, &b->prompts);
        }
    const struct prepack_run *dataset = prepack_find_run(b, PREPACK_DATASET, 0);
    if (!dataset) return;
    struct prepack_plan full = prepack_plan_full_bins(&b->prompts, dataset->plan.capacity, &b->full_prompts);
    prepack_add_run(b, &full, &b->full_prompts);
}

// Returns the run with the least progress, so that all runs advance together.
static struct prepack_run *prepack_next_run(const struct prepack_bench *b)
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

// Runs the group with the most KV blocks once, uncounted, to touch every page of the KV cache.
static enum status prepack_warm_up(struct prepack_bench *b, struct passes *passes)
{
    const struct prepack_run *largest = b->runs;
    while (prepack_run_need(b, largest).kv_blocks < b->need.kv_blocks)
        largest++;
    int group = 0;
    while (prepack_group_need(&largest->plan, largest->prompts->length, group, &b->memory).kv_blocks <
           b->need.kv_blocks)
        group++;
    struct prepack_run run;
    prepack_run_init(&run, &largest->plan, largest->prompts, 1);
    while (run.plan.passes[run.next_pass].group != group)
        run.next_pass++;
    enum status status = prepack_run_group(&run, passes, b->config.vocab_size);
    run.plan = (struct prepack_plan){0}; // owned by the other run
    prepack_run_free(&run);
    return status;
}

static enum status prepack_run_all(struct prepack_bench *b, struct passes *passes)
{
    int64_t total = 0, done = 0;
    for (int i = 0; i < b->n_runs; i++)
        total += b->runs[i].plan.rows * o.rounds;
    struct progress progress = {0};
    enum status status = prepack_warm_up(b, passes);
    for (struct prepack_run *run; status == STATUS_OK && (run = prepack_next_run(b));) {
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

// Checks that on an exact backend all policies gave every prompt the same logits.
static enum status prepack_check_digests(const struct prepack_bench *b)
{
    for (int i = 1; i < b->n_runs && b->exact; i++)
        for (int p = 0; p < b->prompts.n && b->runs[i].prompts == &b->prompts; p++)
            if (b->runs[i].digest[p] != b->runs[0].digest[p])
                return status_fail(STATUS_INTERNAL, "prompt %d: its logits under policy %s differ from those under %s",
                                   p + 1, prepack_policy_name(b->runs[i].plan.policy),
                                   prepack_policy_name(b->runs[0].plan.policy));
    return STATUS_OK;
}

// ---- the command ----------------------------------------------------------------------------------------------------

static enum status prepack_parse_policies(struct prepack_bench *b)
{
    for (const char *at = o.policies;;) {
        size_t length = strcspn(at, ",");
        enum prepack_policy policy = 0;
        while (policy < PREPACK_POLICIES &&
               (strlen(prepack_policy_name(policy)) != length || strncmp(prepack_policy_name(policy), at, length) != 0))
            policy++;
        if (policy == PREPACK_POLICIES)
            return status_fail(STATUS_INVALID,
                               "--policies '%s': must be some of padded, length-ordered, batch, dataset, none, "
                               "comma-separated",
                               o.policies);
        b->wanted[policy] = true;
        if (!at[length]) return STATUS_OK;
        at += length + 1;
    }
}

static enum status prepack_configure(struct prepack_bench *b)
{
    if (!o.model == !o.shape) return status_fail(STATUS_INVALID, "give exactly one of --model DIR and --shape FILE");
    if (!o.prompts == !o.lengths)
        return status_fail(STATUS_INVALID, "give exactly one of --prompts F.jsonl and --lengths F");
    if (o.prompts && !o.model)
        return status_fail(STATUS_INVALID, "--prompts needs the tokenizer of --model DIR: with --shape use --lengths");
    enum status status = prepack_parse_policies(b);
    if (status == STATUS_OK) status = count_list_parse("batch-size", o.batch_size, 1, 65536, &b->batches);
    if (status == STATUS_OK) status = model_config_read(o.model ? o.model : o.shape, &b->config);
    if (status == STATUS_OK)
        status = o.prompts ? prompts_read_texts(o.prompts, o.model, (int)o.limit, &b->prompts)
                           : prompts_read_lengths(o.lengths, (int)o.limit, &b->prompts);
    if (status != STATUS_OK) return status;
    if (o.lengths) prompts_make_up(&b->prompts, b->config.vocab_size);
    for (int s = 0; s < b->batches.n; s++)
        if ((int64_t)b->batches.count[s] * b->prompts.longest > PADDED_ROWS_MAX)
            return status_fail(STATUS_INVALID, "--batch-size %d: padded to %d tokens each, these are more than %d rows",
                               b->batches.count[s], (int)b->prompts.longest, (int)PADDED_ROWS_MAX);
    status = prompts_check(&b->prompts, b->config.max_context, b->config.vocab_size);
    if (status == STATUS_OK && o.report) status = report_open(o.report, "forepack bench prepack", &b->report);
    if (status == STATUS_OK) prepack_plan_runs(b);
    return status;
}

static enum status prepack_run_engine(struct prepack_bench *b)
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
        double weight_bytes = bench_weight_bytes(dtype_name(model_dtype(m)));
        struct work_model work = work_model_of(&b->config, weight_bytes, b->memory.block_bytes / KV_BLOCK_TOKENS);
        struct passes *passes = passes_create(engine, &limits, &work);
        engine_set_step_timeout(engine, 0); // a padded pass of a large model may take minutes
        status = prepack_run_all(b, passes);
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
                 "Time, TTFT and memory of prefilling the same prompts under each packing policy.\n"
                 "With the policy dataset, completely full bins run too, as a reference.",
                 argc, argv, NULL);
    struct prepack_bench b = {.flags = &o, .rows = json_array()};
    enum status status = prepack_configure(&b);
    if (status == STATUS_OK) status = prepack_run_engine(&b);
    if (status == STATUS_OK) status = prepack_check_digests(&b);
    if (status == STATUS_OK) prepack_add_rows(&b);
    if (status == STATUS_OK && o.json) bench_print_json(b.rows);
    if (status == STATUS_OK && !o.json) prepack_print_table(&b);
    if (status == STATUS_OK && b.report) prepack_write_report(&b);
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
