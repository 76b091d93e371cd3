// SPDX-License-Identifier: Apache-2.0
// forepack bench engine: measures prefill, packed prefill, decode and scoring of one model by calling engine_forward
// directly. Runs in one process or as a tensor-parallel group, which is this program under mpirun. Figures are of the
// whole group.
#include "bench/commands/engine.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/request.h"
#include "engine/block_manager.h"
#include "engine/model/stages.h"
#include "lib/base/clock.h"
#include "lib/base/mem.h"
#include "lib/base/options.h"
#include "lib/base/program_path.h"

static struct engine_flags o;

// clang-format off
static const struct option options[] = {
    {.name = "-Model"},
    BENCH_MODEL_OPTION_ROWS(o),
    {.name = "kv-cache-dtype", .type = OPTION_CHOICE, .value = &o.kv_dtype, .default_text = "auto",
     .choices = MODEL_KV_DTYPES, .help = "type of the KV cache; auto is f32 with f32 weights, else bf16"},
    {.name = "tp", .type = OPTION_INT, .value = &o.tp, .default_text = "1", .min = 1, .max = 64, .unit = "ranks",
     .help = "tensor-parallel ranks, started with mpirun on this machine"},
    {.name = "pp", .type = OPTION_INT, .value = &o.pp, .default_text = "1", .min = 1, .max = MODEL_STAGES_MAX,
     .unit = "stages", .help = "pipeline stages, each of --tp ranks"},
    {.name = "pp-layers", .type = OPTION_STRING, .placeholder = "LIST", .value = &o.stage_layers,
     .help = "numbers of layers of the stages; default: as equal as the head allows"},
    {.name = "threads", .type = OPTION_INT, .value = &o.threads, .default_text = "0", .max = 4096,
     .help = "compute threads of each rank; 0 is the cores divided by the ranks"},
    {.name = "allreduce-dtype", .type = OPTION_CHOICE, .value = &o.allreduce_dtype, .default_text = "auto",
     .choices = MODEL_ALLREDUCE_DTYPES, .help = "on several GPUs, the type in which they add their partial sums; auto is bf16"},
    {.name = "fp8-fast-accum", .type = OPTION_BOOL, .value = &o.fp8_fast_accum,
     .help = "on GPUs, add products of FP8 numbers faster and with about 14 bits instead of 24"},
    {.name = "-Measurements"},
    {.name = "prompt-tokens", .type = OPTION_STRING, .value = &o.prompt_tokens, .default_text = "128,512,2048",
     .unit = "tokens", .help = "prefill prompts of these lengths, comma-separated; 0 is no prefill"},
    {.name = "more-tokens", .type = OPTION_INT, .value = &o.more_tokens, .default_text = "0", .max = 1e6, .unit = "tokens",
     .help = "also compute this many tokens after each cached prompt; 0 is none"},
    {.name = "batch", .type = OPTION_STRING, .value = &o.batch, .default_text = "1,8,32", .unit = "sequences",
     .help = "batch sizes, comma-separated; several prompts are prefilled only if one pass holds them"},
    {.name = "decode-tokens", .type = OPTION_INT, .value = &o.decode_tokens, .default_text = "64", .max = 1e6,
     .unit = "tokens", .help = "tokens that each sequence decodes; 0 is no decode"},
    {.name = "context", .type = OPTION_INT, .value = &o.context, .default_text = "128", .min = 1, .max = 1e7,
     .unit = "tokens", .help = "cached tokens of each sequence before it decodes"},
    {.name = "max-num-batched-tokens", .type = OPTION_INT, .value = &o.token_budget, .default_text = "4096", .min = 1,
     .max = 1048576, .unit = "tokens", .help = "rows of one pass; a longer prompt is cut into chunks"},
    {.name = "score", .type = OPTION_BOOL, .value = &o.score,
     .help = "also score each prompt as a speculator does (look-ahead 8), compared with its prefill and 7 decode steps"},
    {.name = "draft-tokens", .type = OPTION_INT, .value = &o.draft_tokens, .default_text = "0", .max = LOOK_AHEAD_MAX,
     .unit = "tokens", .help = "also decode with drafts of this many tokens, compared with decoding without; 0 is no drafts"},
    {.name = "draft-acceptance", .type = OPTION_REAL, .value = &o.draft_acceptance, .default_text = "0.7", .max = 1,
     .help = "share of the draft tokens that are right"},
    {.name = "-Timing and output"},
    {.name = "rounds", .type = OPTION_INT, .value = &o.rounds, .default_text = "3", .min = 1, .max = ROUNDS_MAX,
     .help = "number of rounds; the median is reported"},
    BENCH_TIMING_OPTION_ROWS(o),
    {.name = "json", .type = OPTION_BOOL, .value = &o.json, .help = "print a JSON list"},
    {0},
};
// clang-format on

// ---- memory ---------------------------------------------------------------------------------------------------------

static void limit_raise(int *limit, int64_t value)
{
    if (value > *limit) *limit = (int)value;
}

// Raises the limits to `batch` sequences of `entries` KV entries each, prefilled together up to the token budget.
static enum status engine_raise_limits(struct engine_bench *b, int64_t batch, int64_t entries, const char *flag)
{
    if (entries > b->config.max_context)
        return status_fail(STATUS_INVALID, "--%s: a sequence has %lld KV entries, but the model's context is %d", flag,
                           (long long)entries, b->config.max_context);
    int64_t blocks = batch * kv_blocks_for((int)entries), rows = batch * entries;
    if (blocks > 100000000)
        return status_fail(STATUS_INVALID, "--%s: %lld KV blocks are too many", flag, (long long)blocks);
    struct passes_limits *l = &b->limits;
    limit_raise(&l->rows, rows < o.token_budget ? rows : o.token_budget);
    limit_raise(&l->rows, batch); // a decode pass has one row per sequence, for any budget
    limit_raise(&l->seqs, batch);
    limit_raise(&l->context, entries);
    limit_raise(&l->kv_blocks, blocks);
    return STATUS_OK;
}

// Raises the limits for draft tokens. Verifying a draft needs additional rows, and one more entry for the first token
// of the prefill.
static enum status engine_raise_draft_limits(struct engine_bench *b, int64_t batch)
{
    limit_raise(&b->limits.rows, batch * (1 + o.draft_tokens));
    return engine_raise_limits(b, batch, o.context + o.decode_tokens + 1, "context and --decode-tokens");
}

static enum status engine_plan(struct engine_bench *b)
{
    enum status status = STATUS_OK;
    for (int i = 0; i < b->batches.n; i++) {
        for (int t = 0; t < b->prompts.n && status == STATUS_OK; t++)
            if (engine_prefills(b, b->batches.count[i], b->prompts.count[t]))
                status = engine_raise_limits(b, b->batches.count[i], b->prompts.count[t], "prompt-tokens");
        if (o.decode_tokens && status == STATUS_OK)
            status =
                engine_raise_limits(b, b->batches.count[i], o.context + o.decode_tokens, "context and --decode-tokens");
        if (o.draft_tokens && status == STATUS_OK) status = engine_raise_draft_limits(b, b->batches.count[i]);
    }
    for (int t = 0; o.more_tokens && t < b->prompts.n && status == STATUS_OK; t++)
        status = engine_raise_limits(b, 1, b->prompts.count[t] + o.more_tokens, "prompt-tokens and --more-tokens");
    for (int t = 0; o.score && t < b->prompts.n && status == STATUS_OK; t++)
        status = engine_raise_limits(b, 1, engine_score_entries(b, b->prompts.count[t]), "score");
    if (status == STATUS_OK && !b->limits.rows)
        status = status_fail(STATUS_INVALID, "nothing to run: give --prompt-tokens or --decode-tokens");
    return status;
}

static enum status engine_configure(struct engine_bench *b)
{
    if (!o.model == !o.shape) return status_fail(STATUS_INVALID, "give exactly one of --model DIR and --shape FILE");
    if (o.more_tokens > o.token_budget)
        return status_fail(STATUS_INVALID, "--more-tokens %lld: more than --max-num-batched-tokens %lld",
                           (long long)o.more_tokens, (long long)o.token_budget);
    if (o.draft_tokens && !o.decode_tokens)
        return status_fail(STATUS_INVALID, "--draft-tokens %d: give --decode-tokens, too", (int)o.draft_tokens);
    b->path = o.model ? o.model : o.shape;
    b->dummy = o.shape || strcmp(o.load, "dummy") == 0;
    enum status status = STATUS_OK;
    if (strcmp(o.prompt_tokens, "0") != 0)
        status = count_list_parse("prompt-tokens", o.prompt_tokens, 1, 10000000, &b->prompts);
    if (status == STATUS_OK) status = count_list_parse("batch", o.batch, 1, 65536, &b->batches);
    if (status == STATUS_OK) status = model_config_read(b->path, &b->config);
    if (status == STATUS_OK) status = stages_parse(o.stage_layers, (int)o.pp, NULL);
    return status == STATUS_OK ? engine_plan(b) : status;
}

// ---- run ------------------------------------------------------------------------------------------------------------

// Replaces this process by mpirun, which starts this program with the same arguments once per rank.
static enum status engine_exec_ranks(int argc, char **argv)
{
    char *program = program_path("forepack-bench"), ranks[16];
    snprintf(ranks, sizeof ranks, "%d", (int)(o.tp * o.pp));
    char *start[] = {"mpirun", "-n", ranks, "--oversubscribe", "--bind-to", "none", program};
    enum { N_START = sizeof start / sizeof start[0] };
    char **all = mem_alloc_array((size_t)(N_START + argc + 1), sizeof *all);
    memcpy(all, start, sizeof start);
    memcpy(all + N_START, argv, (size_t)argc * sizeof *all);
    setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 0);
    setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 0);
    execvp(all[0], all);
    enum status status = status_fail(STATUS_INTERNAL, "mpirun: %s", strerror(errno));
    free(all);
    free(program);
    return status;
}

// Returns how many times the KV cache of the leader's rank is in the whole group.
static double engine_kv_shares(const struct engine_bench *b)
{
    int layers[MODEL_STAGES_MAX];
    // cannot fail: the model is open
    if (stages_divide(&b->config, o.stage_layers, (int)o.pp, layers) != STATUS_OK) return b->ranks;
    return (double)o.tp * b->config.n_layers / layers[o.pp - 1];
}

// Sets up the leader's measurements once the model is open, and runs them.
static enum status engine_lead(struct engine_bench *b)
{
    struct model *m = engine_model(b->engine);
    b->dtype = dtype_name(model_dtype(m));
    b->kv_dtype = dtype_name(model_kv_dtype(m));
    double entries = (double)model_kv_blocks(m) * KV_BLOCK_TOKENS;
    double entry_bytes = (double)model_kv_bytes(m) / entries * engine_kv_shares(b);
    struct work_model work = work_model_of(&b->config, bench_weight_bytes(b->dtype), entry_bytes);
    b->passes = passes_create(b->engine, &b->limits, &work);
    b->megabytes_at_open = engine_peak_rss_mb(b);
    struct probe *device = o.probe_ms ? probe_open_device(m, b->ranks, (int)o.probe_ms) : NULL;
    if (device) {
        probe_close(b->probe);
        b->probe = device;
    }
    engine_set_step_timeout(b->engine, 0); // a long chunk of a large model may take minutes
    enum status status = engine_measure_all(b);
    passes_free(b->passes);
    return status;
}

// Gathers the process ids of all ranks. The leader sums up their memory.
static enum status engine_gather_pids(struct engine_bench *b, struct comm *comm)
{
    // The collective carries floats. A process id is at most 2^22, which a float holds exactly.
    float pid = (float)getpid(), *pids = mem_alloc_array((size_t)comm->size, sizeof *pids);
    b->pids = mem_alloc_array((size_t)comm->size, sizeof *b->pids);
    enum status status = comm->ops->gather(comm, &pid, 1, pids);
    for (int r = 0; r < comm->size; r++)
        b->pids[r] = (pid_t)pids[r];
    free(pids);
    return status;
}

// Runs on every rank: the leader measures, and the followers run its passes.
static enum status engine_run_rank(struct engine_bench *b, struct comm *comm)
{
    const struct model_options model = {
        .dir = b->path,
        .dummy = b->dummy,
        .backend = o.backend,
        .dtype = o.dtype,
        .kv_dtype = o.kv_dtype,
        .threads = (int)o.threads,
        .max_rows = b->limits.rows,
        .max_seqs = b->limits.seqs,
        .max_logit_rows = b->limits.seqs * (1 + (int)o.draft_tokens),
        .max_context = b->limits.context,
        .n_kv_blocks = b->limits.kv_blocks,
        .allreduce_dtype = o.allreduce_dtype,
        .fp8_fast_accum = o.fp8_fast_accum,
        .stages = (int)o.pp,
        .stage_layers = o.stage_layers,
    };
    if (comm->size != b->ranks)
        return status_fail(STATUS_INVALID, "--tp %d --pp %d, but mpirun started %d ranks: let --tp and --pp start them",
                           (int)o.tp, (int)o.pp, comm->size);
    int64_t from_us = clock_now_us();
    enum status status = engine_open(&model, comm, &b->engine);
    if (status != STATUS_OK) return status;
    b->open_seconds = (double)(clock_now_us() - from_us) / 1e6;
    status = engine_gather_pids(b, comm);
    if (status == STATUS_OK) status = comm->rank == 0 ? engine_lead(b) : engine_follow(b->engine);
    if (status != STATUS_OK && comm->size > 1) {
        if (*status_message()) fprintf(stderr, "%s\n", status_message());
        group_abort(comm, status_exit_code(status)); // the other ranks wait for a pass that will not come
    }
    engine_close(b->engine);
    free(b->pids);
    return status;
}

int bench_engine(int argc, char **argv)
{
    options_main(
        options,
        "Usage: forepack bench engine --model DIR|--shape FILE [--dtype bf16|f32|int8] [--tp N] [--threads N]\n"
        "Tokens per second of prefill and decode, compared with the machine probe of the same seconds.",
        argc, argv, NULL);
    struct engine_bench b = {.flags = &o, .rows = json_array()};
    struct comm *comm = NULL;
    enum status status = engine_configure(&b);
    if (status == STATUS_OK && o.tp * o.pp > 1 && !getenv("OMPI_COMM_WORLD_SIZE"))
        status = engine_exec_ranks(argc, argv);
    b.ranks = (int)(o.tp * o.pp);
    b.threads = group_threads((int)o.threads) * b.ranks;
    // The probe is opened before MPI starts and before memory is allocated; see probe.h.
    if (status == STATUS_OK && o.probe_ms && group_rank_hint() == 0)
        status = probe_open(b.threads, (int)o.probe_ms, &b.probe);
    if (status == STATUS_OK) status = group_open(&argc, &argv, atoi(GROUP_LIMIT_S), &comm);
    if (status == STATUS_OK) status = engine_run_rank(&b, comm);
    if (status == STATUS_OK && comm->rank == 0 && o.json) bench_print_json(b.rows);
    int code = status == STATUS_OK ? 0 : *status_message() ? report_failure(status) : status_exit_code(status);
    if (comm) group_close(comm);
    probe_close(b.probe);
    json_decref(b.rows);
    options_free(options);
    return code;
}
