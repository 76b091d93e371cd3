// SPDX-License-Identifier: Apache-2.0
// forepack bench engine: prefill, packed prefill, decode and scoring of one model on engine_forward directly, by one
// process or by a group of ranks (this program again, under mpirun). Figures are of the whole group.
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/options.h"
#include "bench/commands/bench.h"
#include "bench/memory.h"
#include "bench/passes.h"
#include "cli/request.h"
#include "engine/block_manager.h"
#include "speculator/scorer.h"

static struct {
    char *model, *shape, *load, *backend, *dtype, *kv_dtype, *prompt_tokens, *batch;
    int64_t tp, threads, decode_tokens, context, token_budget, rounds, probe_ms, min_ms;
    bool score, json;
} o;

// clang-format off
static const struct option options[] = {
    {.name = "-Model"},
    BENCH_MODEL_OPTION_ROWS(o),
    {.name = "kv-cache-dtype", .type = OPTION_CHOICE, .value = &o.kv_dtype, .default_text = "auto",
     .choices = MODEL_KV_DTYPES, .help = "type of the KV cache; auto is f32 with f32 weights, else bf16"},
    {.name = "tp", .type = OPTION_INT, .value = &o.tp, .default_text = "1", .min = 1, .max = 64, .unit = "ranks",
     .help = "tensor-parallel ranks, started with mpirun on this machine"},
    {.name = "threads", .type = OPTION_INT, .value = &o.threads, .default_text = "0", .max = 4096,
     .help = "compute threads of each rank; 0 is its share of the cores"},
    {.name = "-What is run"},
    {.name = "prompt-tokens", .type = OPTION_STRING, .value = &o.prompt_tokens, .default_text = "128,512,2048",
     .unit = "tokens", .help = "prefill prompts of each of these lengths; 0 is no prefill"},
    {.name = "batch", .type = OPTION_STRING, .value = &o.batch, .default_text = "1,8,32", .unit = "sequences",
     .help = "with so many at once; more than one prompt only where all fit into one pass"},
    {.name = "decode-tokens", .type = OPTION_INT, .value = &o.decode_tokens, .default_text = "64", .max = 1e6,
     .unit = "tokens", .help = "decode so many for each sequence of a batch; 0 is no decode"},
    {.name = "context", .type = OPTION_INT, .value = &o.context, .default_text = "128", .min = 1, .max = 1e7,
     .unit = "tokens", .help = "of each sequence before it decodes"},
    {.name = "max-num-batched-tokens", .type = OPTION_INT, .value = &o.token_budget, .default_text = "4096", .min = 1,
     .max = 1048576, .unit = "tokens", .help = "rows of one pass; a longer prompt is cut into chunks"},
    {.name = "score", .type = OPTION_BOOL, .value = &o.score,
     .help = "also score each prompt as a speculator does (look-ahead 8), against its prefill and 7 decode steps"},
    {.name = "-How"},
    {.name = "rounds", .type = OPTION_INT, .value = &o.rounds, .default_text = "3", .min = 1, .max = ROUNDS_MAX,
     .help = "of which the middle one is told"},
    {.name = "min-ms", .type = OPTION_INT, .value = &o.min_ms, .default_text = "300", .max = 1e6, .unit = "ms",
     .help = "a round repeats what takes less"},
    {.name = "probe-ms", .type = OPTION_INT, .value = &o.probe_ms, .default_text = "500", .max = 1e6, .unit = "ms",
     .help = "length of each half (arithmetic, memory) of a reading of what the chip can do, around each round; 0 is none"},
    {.name = "json", .type = OPTION_BOOL, .value = &o.json, .help = "print a JSON list"},
    {0},
};
// clang-format on

enum { LOOK_AHEAD = 8 };

struct bench {
    struct bench_counts prompts, batches; // no prefill: prompts.n is 0
    const char *path;
    bool dummy;
    struct model_config config;
    struct passes_limits limits; // what the model is opened for

    int ranks, threads; // threads of all ranks together
    pid_t *pids;        // [ranks]
    const char *dtype;  // computed with
    const char *kv_dtype;
    double megabytes_at_open, open_seconds;
    struct probe *probe;
    struct engine *engine;
    struct passes *passes;
    json_t *rows;
};

// ---- what is run ----------------------------------------------------------------------------------------------------

// One row of the table.
struct run {
    struct bench *bench;
    const char *phase; // "prefill", "decode", "score"
    int batch, tokens, context;
    struct work work; // of the last run
};

static void note_work(struct contender *self, struct run *run, const struct work *work)
{
    run->work = *work;
    self->gflop = work_gflop(work);
    self->gbytes = work->gbytes;
}

static enum status run_prefill(struct contender *self, double *seconds_p)
{
    struct run *run = self->context;
    struct work work = {0};
    *seconds_p = 0;
    enum status status = passes_prefill(run->bench->passes, 0, run->batch, run->tokens, &work, seconds_p);
    note_work(self, run, &work);
    return status;
}

static enum status run_decode(struct contender *self, double *seconds_p)
{
    struct run *run = self->context;
    struct work work = {0};
    *seconds_p = 0;
    enum status status = passes_decode(run->bench->passes, run->batch, run->context, run->tokens, &work, seconds_p);
    note_work(self, run, &work);
    return status;
}

// ---- scoring --------------------------------------------------------------------------------------------------------

struct scoring {
    struct run run;
    struct scorer *scorer;
    int32_t *tokens; // [run.tokens]
    bool done;
    int steps;
    char error[160];
};

static enum status forward(void *context, const struct ragged_batch *batch, struct forward_result *result)
{
    return engine_forward(context, batch, result);
}

static void on_scored(void *context, const struct score_result *result)
{
    struct scoring *s = context;
    s->done = true;
    s->steps = result->error ? 0 : result->steps;
    snprintf(s->error, sizeof s->error, "%s", result->error ? result->error : "");
}

static enum status run_score(struct contender *self, double *seconds_p)
{
    struct scoring *s = self->context;
    struct score_item item = {.request = 1, .tokens = s->tokens, .n = s->run.tokens};
    prefill_defaults(&item.prefill);
    item.prefill.look_ahead = LOOK_AHEAD;
    s->done = false;
    int64_t from_us = clock_now_us();
    scorer_add(s->scorer, &item);
    enum status status = STATUS_OK;
    while (!s->done && status == STATUS_OK)
        status = scorer_step(s->scorer);
    *seconds_p = (double)(clock_now_us() - from_us) / 1e6;
    if (status == STATUS_OK && !s->steps) status = status_fail(STATUS_INTERNAL, "scoring: %s", s->error);
    return status;
}

// The same passes without looking: what scoring cannot do without. An EOS may have cut the look-ahead short.
static enum status run_unscored(struct contender *self, double *seconds_p)
{
    struct scoring *s = self->context;
    struct passes *p = s->run.bench->passes;
    struct work work = {0};
    *seconds_p = 0;
    enum status status = passes_prefill(p, 0, 1, s->run.tokens, &work, seconds_p);
    if (status == STATUS_OK) status = passes_decode(p, 1, s->run.tokens, s->steps - 1, &work, seconds_p);
    note_work(self, &s->run, &work);
    return status;
}

// ---- telling --------------------------------------------------------------------------------------------------------

static double peak_rss_mb(const struct bench *b)
{
    double sum = 0;
    for (int r = 0; r < b->ranks; r++)
        sum += memory_peak_mb(b->pids[r]);
    return sum;
}

static void print_heading(const struct bench *b)
{
    if (o.json) return;
    struct work_model shape = work_model_of(&b->config, 1, 0);
    double weights = shape.layer_weights + shape.head_weights * (b->config.tied_embeddings ? 1 : 2);
    printf("%s: %.0f million weights%s in %s, %d rank%s, %d threads in all; opened in %.1f s, %.0f MB then\n", b->path,
           weights / 1e6, b->dummy ? " made up" : "", b->dtype, b->ranks, b->ranks > 1 ? "s" : "", b->threads,
           b->open_seconds, b->megabytes_at_open);
    printf("share: of the time that the chip would need by the probe's rates, for arithmetic (c) or memory (m)\n\n");
    printf("%-8s %5s %7s %8s %10s %7s %10s %9s %9s %7s %7s %7s %8s\n", "phase", "batch", "tokens", "context",
           "tokens/s", "+-", "ms", "GFLOP/s", "peak", "GB/s", "DRAM", "share", "RSS MB");
    fflush(stdout);
}

static void print_row(const struct run *run, const struct measurement *m, const struct rounds_readings *readings,
                      const struct contender *c, double rss)
{
    if (o.json) return;
    double tokens = (double)run->batch * run->tokens;
    printf("%-8s %5d %7d %8d %10.1f %6.1f%% %10.2f %9.1f %9.1f %7.1f %7.1f %5.1f%%%s %8.0f\n", run->phase, run->batch,
           run->tokens, run->context, tokens / m->seconds, 100 * m->spread, 1000 * m->seconds, c->gflop / m->seconds,
           readings->mean.gflops, c->gbytes / m->seconds, readings->mean.gbytes_per_s, 100 * m->share,
           m->memory_bound ? "m" : "c", rss);
    fflush(stdout);
}

static json_t *add_row(struct bench *b, const struct run *run, const struct measurement *m,
                       const struct rounds_readings *readings, const struct contender *c)
{
    double rss = peak_rss_mb(b), tokens = (double)run->batch * run->tokens;
    print_row(run, m, readings, c, rss);
    json_t *row = json_pack("{s:s,s:i,s:i,s:i,s:f,s:f,s:f,s:f,s:f,s:f,s:i}", "phase", run->phase, "tokens", run->tokens,
                            "batch", run->batch, "context", run->context, "tokens_per_s", tokens / m->seconds, "ms",
                            1000 * m->seconds, "spread", m->spread, "gflops", c->gflop / m->seconds, "gbytes_per_s",
                            c->gbytes / m->seconds, "peak_rss_mb", rss, "rounds", (int)o.rounds);
    json_object_set_new(row, "linear_gflop", json_real(run->work.linear_gflop));
    json_object_set_new(row, "attention_gflop", json_real(run->work.attention_gflop));
    json_object_set_new(row, "gbytes", json_real(run->work.gbytes));
    json_object_set_new(row, "share", bench_number(m->share));
    json_object_set_new(row, "limit",
                        json_string(isnan(m->share)   ? "unknown"
                                    : m->memory_bound ? "memory"
                                                      : "compute"));
    json_object_set_new(row, "backend", json_string(model_backend(engine_model(b->engine))));
    json_object_set_new(row, "dtype", json_string(b->dtype));
    json_object_set_new(row, "kv_dtype", json_string(b->kv_dtype));
    json_object_set_new(row, "ranks", json_integer(b->ranks));
    json_object_set_new(row, "threads", json_integer(b->threads));
    json_object_set_new(row, "open_s", json_real(b->open_seconds));
    bench_add_readings(row, readings);
    json_array_append_new(b->rows, row);
    return row;
}

// ---- the rows -------------------------------------------------------------------------------------------------------

static struct rounds rounds_of(const struct bench *b)
{
    return (struct rounds){b->probe, bench_probe_type(b->dtype), (int)o.rounds, (int)o.min_ms};
}

static enum status measure(struct bench *b, struct run *run, enum status (*fn)(struct contender *, double *))
{
    struct contender contender = {.run = fn, .context = run};
    struct measurement measurement;
    struct rounds_readings readings;
    struct rounds rounds = rounds_of(b);
    enum status status = rounds_run(&rounds, &contender, 1, &measurement, &readings);
    if (status == STATUS_OK) add_row(b, run, &measurement, &readings, &contender);
    return status;
}

// A single prompt always; several where one pass holds them.
static bool is_prefilled(int batch, int tokens)
{
    return batch == 1 || (int64_t)batch * tokens <= o.token_budget;
}

static enum status measure_prefill(struct bench *b)
{
    for (int t = 0; t < b->prompts.n; t++)
        for (int i = 0; i < b->batches.n; i++) {
            struct run run = {
                .bench = b, .phase = "prefill", .batch = b->batches.count[i], .tokens = b->prompts.count[t]};
            if (!is_prefilled(run.batch, run.tokens)) {
                fprintf(stderr, "no prefill of %d x %d tokens: over the --max-num-batched-tokens of %lld\n", run.batch,
                        run.tokens, (long long)o.token_budget);
                continue;
            }
            passes_set_entries(b->passes, run.tokens);
            enum status status = measure(b, &run, run_prefill);
            if (status != STATUS_OK) return status;
        }
    return STATUS_OK;
}

// Sequences are prefilled for the first batch that needs them; decoding leaves what it started from as it was.
static enum status measure_decode(struct bench *b)
{
    if (!o.decode_tokens) return STATUS_OK;
    int filled = 0;
    passes_set_entries(b->passes, (int)(o.context + o.decode_tokens));
    for (int i = 0; i < b->batches.n; i++) {
        struct run run = {.bench = b,
                          .phase = "decode",
                          .batch = b->batches.count[i],
                          .tokens = (int)o.decode_tokens,
                          .context = (int)o.context};
        enum status status = STATUS_OK;
        if (run.batch > filled) {
            status = passes_prefill(b->passes, filled, run.batch - filled, run.context, NULL, NULL);
            filled = run.batch;
        }
        if (status == STATUS_OK) status = measure(b, &run, run_decode);
        if (status != STATUS_OK) return status;
    }
    return STATUS_OK;
}

// Of a prompt and what it looks ahead: fewer steps where the context ends, as in a speculator.
static int64_t score_entries(const struct bench *b, int tokens)
{
    int64_t entries = (int64_t)tokens + LOOK_AHEAD;
    return tokens <= b->config.max_context && entries > b->config.max_context ? b->config.max_context : entries;
}

static enum status measure_score(struct bench *b, int tokens)
{
    const struct scorer_model model = {.config = &b->config,
                                       .token_budget = b->limits.rows,
                                       .max_seqs = b->limits.seqs,
                                       .context_tokens = b->limits.context,
                                       .kv_blocks = b->limits.kv_blocks,
                                       .samples = model_samples(engine_model(b->engine)),
                                       .forward = forward,
                                       .context = b->engine};
    struct scoring s = {.run = {.bench = b, .phase = "score", .batch = 1, .tokens = tokens}};
    s.scorer = scorer_create(&model, on_scored, &s);
    s.tokens = mem_alloc_array((size_t)tokens, sizeof *s.tokens);
    passes_tokens(s.tokens, tokens, b->config.vocab_size);
    passes_set_entries(b->passes, (int)score_entries(b, tokens));
    struct contender contenders[2] = {{.run = run_score, .context = &s}, {.run = run_unscored, .context = &s}};
    struct measurement measurements[2];
    struct rounds_readings readings;
    struct rounds rounds = rounds_of(b);
    enum status status = rounds_run(&rounds, contenders, 2, measurements, &readings);
    if (status == STATUS_OK) {
        const struct measurement *scored = &measurements[0], *plain = &measurements[1];
        // Scoring needs at least what the plain passes need, so its share is of their work.
        struct measurement m = *scored;
        m.share = plain->share * plain->seconds / scored->seconds;
        m.memory_bound = plain->memory_bound;
        json_t *row = add_row(b, &s.run, &m, &readings, &contenders[1]);
        json_object_set_new(row, "look_ahead", json_integer(s.steps));
        json_object_set_new(row, "plain_ms", json_real(1000 * plain->seconds));
        json_object_set_new(row, "over_plain", json_real(scored->seconds / plain->seconds));
        if (!o.json)
            printf("         %.3f times its plain prefill and %d decode steps (%.2f ms)\n",
                   scored->seconds / plain->seconds, s.steps - 1, 1000 * plain->seconds);
    }
    scorer_free(s.scorer);
    free(s.tokens);
    return status;
}

static enum status measure_all(struct bench *b)
{
    print_heading(b);
    enum status status = measure_prefill(b);
    if (status == STATUS_OK) status = measure_decode(b);
    for (int t = 0; o.score && t < b->prompts.n && status == STATUS_OK; t++)
        status = measure_score(b, b->prompts.count[t]);
    return status;
}

// ---- the model ------------------------------------------------------------------------------------------------------

static int at_least(int a, int64_t b)
{
    return b > a ? (int)b : a;
}

// Makes room for `batch` sequences of `entries` KV entries, `rows` of them prefilled together.
static enum status make_room(struct bench *b, int64_t batch, int64_t entries, const char *flag)
{
    if (entries > b->config.max_context)
        return status_fail(STATUS_INVALID, "--%s: %lld KV entries of a sequence, but the model's context is %d", flag,
                           (long long)entries, b->config.max_context);
    int64_t blocks = batch * kv_blocks_for((int)entries), rows = batch * entries;
    if (blocks > 100000000)
        return status_fail(STATUS_INVALID, "--%s: %lld KV blocks are too many", flag, (long long)blocks);
    struct passes_limits *l = &b->limits;
    l->rows = at_least(l->rows, rows < o.token_budget ? rows : o.token_budget);
    l->rows = at_least(l->rows, batch); // decode is one row each, whatever the budget
    l->seqs = at_least(l->seqs, batch);
    l->context = at_least(l->context, entries);
    l->kv_blocks = at_least(l->kv_blocks, blocks);
    return STATUS_OK;
}

static enum status plan(struct bench *b)
{
    enum status status = STATUS_OK;
    for (int i = 0; i < b->batches.n; i++) {
        for (int t = 0; t < b->prompts.n && status == STATUS_OK; t++)
            if (is_prefilled(b->batches.count[i], b->prompts.count[t]))
                status = make_room(b, b->batches.count[i], b->prompts.count[t], "prompt-tokens");
        if (o.decode_tokens && status == STATUS_OK)
            status = make_room(b, b->batches.count[i], o.context + o.decode_tokens, "context and --decode-tokens");
    }
    for (int t = 0; o.score && t < b->prompts.n && status == STATUS_OK; t++)
        status = make_room(b, 1, score_entries(b, b->prompts.count[t]), "score");
    if (status == STATUS_OK && !b->limits.rows)
        status = status_fail(STATUS_INVALID, "nothing to run: give --prompt-tokens or --decode-tokens");
    return status;
}

static enum status configure(struct bench *b)
{
    if (!o.model == !o.shape) return status_fail(STATUS_INVALID, "give exactly one of --model DIR and --shape FILE");
    b->path = o.model ? o.model : o.shape;
    b->dummy = o.shape || strcmp(o.load, "dummy") == 0;
    enum status status = STATUS_OK;
    if (strcmp(o.prompt_tokens, "0") != 0)
        status = bench_counts_parse("prompt-tokens", o.prompt_tokens, 1, 10000000, &b->prompts);
    if (status == STATUS_OK) status = bench_counts_parse("batch", o.batch, 1, 65536, &b->batches);
    if (status == STATUS_OK) status = model_config_read(b->path, &b->config);
    return status == STATUS_OK ? plan(b) : status;
}

// This program with the same arguments, as many times as there are ranks.
static enum status run_ranks(int argc, char **argv)
{
    char program[4096], ranks[16];
    ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    program[length > 0 ? length : 0] = 0;
    snprintf(ranks, sizeof ranks, "%d", (int)o.tp);
    char *start[] = {"mpirun", "-n", ranks, "--oversubscribe", "--bind-to", "none", program};
    enum { N_START = sizeof start / sizeof start[0] };
    char **all = mem_alloc_array((size_t)(N_START + argc + 1), sizeof *all);
    memcpy(all, start, sizeof start);
    memcpy(all + N_START, argv, (size_t)argc * sizeof *all);
    setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 0);
    setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 0);
    execvp(all[0], all);
    free(all);
    return status_fail(STATUS_INTERNAL, "mpirun: %s", strerror(errno));
}

// On every rank; the leader measures, the others follow it.
static enum status run_engine(struct bench *b, struct comm *comm)
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
        .max_context = b->limits.context,
        .n_kv_blocks = b->limits.kv_blocks,
    };
    if (comm->size != b->ranks)
        return status_fail(STATUS_INVALID, "--tp %d, but mpirun started %d ranks: leave it to --tp to start them",
                           b->ranks, comm->size);
    int64_t from_us = clock_now_us();
    enum status status = engine_open(&model, comm, &b->engine);
    if (status != STATUS_OK) return status;
    b->open_seconds = (double)(clock_now_us() - from_us) / 1e6;

    // A process id is small enough for a float to hold exactly (at most 2^22).
    float pid = (float)getpid(), *pids = mem_alloc_array((size_t)comm->size, sizeof *pids);
    b->pids = mem_alloc_array((size_t)comm->size, sizeof *b->pids);
    status = comm->ops->gather(comm, &pid, 1, pids);
    for (int r = 0; r < comm->size; r++)
        b->pids[r] = (pid_t)pids[r];
    free(pids);

    if (status == STATUS_OK && comm->rank != 0) status = engine_follow(b->engine);
    if (status == STATUS_OK && comm->rank == 0) {
        const struct model *m = engine_model(b->engine);
        b->dtype = dtype_name(model_dtype(m));
        b->kv_dtype = dtype_name(model_kv_dtype(m));
        double weight_bytes = strcmp(b->dtype, "f32") == 0 ? 4 : strcmp(b->dtype, "bf16") == 0 ? 2 : 1;
        double entries = (double)model_kv_blocks(m) * KV_BLOCK_TOKENS;
        double entry_bytes = (double)model_kv_bytes(m) / entries * comm->size;
        struct work_model work = work_model_of(&b->config, weight_bytes, entry_bytes);
        b->passes = passes_create(b->engine, &b->limits, &work);
        b->megabytes_at_open = peak_rss_mb(b);
        struct probe *device =
            o.probe_ms ? probe_open_device(engine_model(b->engine), b->ranks, (int)o.probe_ms) : NULL;
        if (device) {
            probe_close(b->probe);
            b->probe = device;
        }
        engine_set_step_timeout(b->engine, 0); // a long chunk of a large model may take minutes
        status = measure_all(b);
        passes_free(b->passes);
    }
    if (status != STATUS_OK && comm->size > 1) {
        if (*status_message()) fprintf(stderr, "%s\n", status_message());
        group_abort(comm, status_exit_code(status)); // the others wait for a step that will not come
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
        "Tokens a second of prefill and decode, beside what the chip can do in the same seconds.",
        argc, argv, NULL);
    struct bench b = {.rows = json_array()};
    struct comm *comm = NULL;
    enum status status = configure(&b);
    if (status == STATUS_OK && o.tp > 1 && !getenv("OMPI_COMM_WORLD_SIZE")) status = run_ranks(argc, argv);
    b.ranks = (int)o.tp;
    b.threads = group_threads((int)o.threads) * b.ranks;
    // Before MPI and before memory is filled; see probe.h.
    if (status == STATUS_OK && o.probe_ms && group_rank_hint() == 0)
        status = probe_open(b.threads, (int)o.probe_ms, &b.probe);
    if (status == STATUS_OK) status = group_open(&argc, &argv, &comm);
    if (status == STATUS_OK) status = run_engine(&b, comm);
    if (status == STATUS_OK && comm->rank == 0 && o.json) bench_print_json(b.rows);
    int code = status == STATUS_OK ? 0 : *status_message() ? report_failure(status) : status_exit_code(status);
    if (comm) group_close(comm);
    probe_close(b.probe);
    json_decref(b.rows);
    options_free(options);
    return code;
}
