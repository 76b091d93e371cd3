// SPDX-License-Identifier: Apache-2.0
#include <stdio.h>
#include <stdlib.h>

#include "bench/commands/engine.h"
#include "lib/base/clock.h"
#include "lib/base/mem.h"
#include "speculator/scorer.h"

static void engine_set_work(struct contender *self, struct engine_run *run, const struct work *work)
{
    run->work = *work;
    self->gflop = work_gflop(work);
    self->gbytes = work->gbytes;
}

static enum status engine_measure(struct engine_bench *b, struct engine_run *run,
                                  enum status (*run_fn)(struct contender *, double *))
{
    struct contender contender = {.run = run_fn, .context = run};
    struct measurement measurement;
    struct rounds_readings readings;
    struct rounds rounds = engine_rounds(b);
    enum status status = rounds_run(&rounds, &contender, 1, &measurement, &readings);
    if (status == STATUS_OK) engine_add_row(b, run, &measurement, &readings, &contender);
    return status;
}

// ---- prefill --------------------------------------------------------------------------------------------------------

static enum status engine_run_prefill(struct contender *self, double *seconds_p)
{
    struct engine_run *run = self->context;
    struct work work = {0};
    *seconds_p = 0;
    enum status status = passes_prefill(run->bench->passes, 0, run->batch, run->tokens, &work, seconds_p);
    engine_set_work(self, run, &work);
    return status;
}

bool engine_prefills(const struct engine_bench *b, int batch, int tokens)
{
    return batch == 1 || (int64_t)batch * tokens <= b->flags->token_budget;
}

static enum status engine_measure_prefill(struct engine_bench *b)
{
    for (int t = 0; t < b->prompts.n; t++)
        for (int i = 0; i < b->batches.n; i++) {
            struct engine_run run = {
                .bench = b, .phase = "prefill", .batch = b->batches.count[i], .tokens = b->prompts.count[t]};
            if (!engine_prefills(b, run.batch, run.tokens)) {
                fprintf(stderr, "prefill of %d x %d tokens skipped: it exceeds --max-num-batched-tokens %lld\n",
                        run.batch, run.tokens, (long long)b->flags->token_budget);
                continue;
            }
            passes_set_entries(b->passes, run.tokens);
            enum status status = engine_measure(b, &run, engine_run_prefill);
            if (status != STATUS_OK) return status;
        }
    return STATUS_OK;
}

// ---- more tokens after a cached prompt ------------------------------------------------------------------------------

static enum status engine_run_more(struct contender *self, double *seconds_p)
{
    struct engine_run *run = self->context;
    struct work work = {0};
    *seconds_p = 0;
    enum status status = passes_continue(run->bench->passes, 0, run->context, run->tokens, &work, seconds_p);
    engine_set_work(self, run, &work);
    return status;
}

static enum status engine_measure_more(struct engine_bench *b, int context)
{
    struct engine_run run = {
        .bench = b, .phase = "more", .batch = 1, .tokens = (int)b->flags->more_tokens, .context = context};
    passes_set_entries(b->passes, context + run.tokens);
    enum status status = passes_prefill(b->passes, 0, 1, context, NULL, NULL);
    return status == STATUS_OK ? engine_measure(b, &run, engine_run_more) : status;
}

// ---- decode ---------------------------------------------------------------------------------------------------------

static enum status engine_run_decode(struct contender *self, double *seconds_p)
{
    struct engine_run *run = self->context;
    struct work work = {0};
    *seconds_p = 0;
    enum status status = passes_decode(run->bench->passes, run->batch, run->context, run->tokens, &work, seconds_p);
    engine_set_work(self, run, &work);
    return status;
}

// Measures decoding for every batch size. Each run leaves the first --context entries of a sequence unchanged, so the
// next batch size decodes the same sequences again. Only sequences that no earlier batch size used are prefilled.
static enum status engine_measure_decode(struct engine_bench *b)
{
    const int tokens = (int)b->flags->decode_tokens, context = (int)b->flags->context;
    if (!tokens) return STATUS_OK;
    int prefilled = 0;
    passes_set_entries(b->passes, context + tokens);
    for (int i = 0; i < b->batches.n; i++) {
        struct engine_run run = {
            .bench = b, .phase = "decode", .batch = b->batches.count[i], .tokens = tokens, .context = context};
        enum status status = STATUS_OK;
        if (run.batch > prefilled) {
            status = passes_prefill(b->passes, prefilled, run.batch - prefilled, context, NULL, NULL);
            prefilled = run.batch;
        }
        if (status == STATUS_OK) status = engine_measure(b, &run, engine_run_decode);
        if (status != STATUS_OK) return status;
    }
    return STATUS_OK;
}

// ---- scoring --------------------------------------------------------------------------------------------------------

struct engine_scoring {
    struct engine_run run;
    struct scorer *scorer;
    int32_t *tokens; // [run.tokens]
    bool done;
    int steps; // look-ahead tokens of the last run; 0: the run failed
    char error[160];
};

static enum status engine_score_forward(void *context, const struct ragged_batch *batch, struct forward_result *result)
{
    return engine_forward(context, batch, result);
}

static void engine_on_scored(void *context, const struct score_result *result)
{
    struct engine_scoring *s = context;
    s->done = true;
    s->steps = result->error ? 0 : result->steps;
    snprintf(s->error, sizeof s->error, "%s", result->error ? result->error : "");
}

static enum status engine_run_score(struct contender *self, double *seconds_p)
{
    struct engine_scoring *s = self->context;
    struct score_item item = {.request = 1, .tokens = s->tokens, .n = s->run.tokens};
    prefill_defaults(&item.prefill);
    item.prefill.look_ahead = ENGINE_LOOK_AHEAD;
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

// Runs the passes of scoring without accumulating importance: the prefill and as many decode steps. An end-of-sequence
// token may have shortened the look-ahead.
static enum status engine_run_plain(struct contender *self, double *seconds_p)
{
    struct engine_scoring *s = self->context;
    struct passes *p = s->run.bench->passes;
    struct work work = {0};
    *seconds_p = 0;
    enum status status = passes_prefill(p, 0, 1, s->run.tokens, &work, seconds_p);
    if (status == STATUS_OK) status = passes_decode(p, 1, s->run.tokens, s->steps - 1, &work, seconds_p);
    engine_set_work(self, &s->run, &work);
    return status;
}

int64_t engine_score_entries(const struct engine_bench *b, int tokens)
{
    int64_t entries = (int64_t)tokens + ENGINE_LOOK_AHEAD;
    return tokens <= b->config.max_context && entries > b->config.max_context ? b->config.max_context : entries;
}

static void engine_add_score_row(struct engine_bench *b, const struct engine_scoring *s,
                                 const struct measurement *scored, const struct measurement *plain,
                                 const struct rounds_readings *readings, const struct contender *plain_contender)
{
    // The plain passes are the least work of scoring, so the share of scoring uses their work.
    struct measurement m = *scored;
    m.share = plain->share * plain->seconds / scored->seconds;
    m.memory_bound = plain->memory_bound;
    json_t *row = engine_add_row(b, &s->run, &m, readings, plain_contender);
    json_object_set_new(row, "look_ahead", json_integer(s->steps));
    json_object_set_new(row, "plain_ms", json_real(1000 * plain->seconds));
    json_object_set_new(row, "over_plain", json_real(scored->seconds / plain->seconds));
    if (!b->flags->json)
        printf("         %.3f times the plain prefill and %d decode steps (%.2f ms)\n",
               scored->seconds / plain->seconds, s->steps - 1, 1000 * plain->seconds);
}

static enum status engine_measure_score(struct engine_bench *b, int tokens)
{
    const struct scorer_model model = {.config = &b->config,
                                       .token_budget = b->limits.rows,
                                       .max_seqs = b->limits.seqs,
                                       .context_tokens = b->limits.context,
                                       .kv_blocks = b->limits.kv_blocks,
                                       .samples = model_samples(engine_model(b->engine)),
                                       .forward = engine_score_forward,
                                       .context = b->engine};
    struct engine_scoring s = {.run = {.bench = b, .phase = "score", .batch = 1, .tokens = tokens}};
    s.scorer = scorer_create(&model, engine_on_scored, &s);
    s.tokens = mem_alloc_array((size_t)tokens, sizeof *s.tokens);
    passes_tokens(s.tokens, tokens, b->config.vocab_size);
    passes_set_entries(b->passes, (int)engine_score_entries(b, tokens));
    struct contender contenders[2] = {{.run = engine_run_score, .context = &s},
                                      {.run = engine_run_plain, .context = &s}};
    struct measurement measurements[2];
    struct rounds_readings readings;
    struct rounds rounds = engine_rounds(b);
    enum status status = rounds_run(&rounds, contenders, 2, measurements, &readings);
    if (status == STATUS_OK) engine_add_score_row(b, &s, &measurements[0], &measurements[1], &readings, &contenders[1]);
    scorer_free(s.scorer);
    free(s.tokens);
    return status;
}

enum status engine_measure_all(struct engine_bench *b)
{
    engine_print_heading(b);
    enum status status = engine_measure_prefill(b);
    for (int t = 0; b->flags->more_tokens && t < b->prompts.n && status == STATUS_OK; t++)
        status = engine_measure_more(b, b->prompts.count[t]);
    if (status == STATUS_OK) status = engine_measure_decode(b);
    for (int i = 0; b->flags->draft_tokens && i < b->batches.n && status == STATUS_OK; i++)
        status = engine_measure_drafts(b, b->batches.count[i]);
    for (int t = 0; b->flags->score && t < b->prompts.n && status == STATUS_OK; t++)
        status = engine_measure_score(b, b->prompts.count[t]);
    return status;
}
