// SPDX-License-Identifier: Apache-2.0
// Decoding with drafts of a given acceptance. The worker's scheduler decodes twice: first without drafts, then with
// drafts made of the first run's tokens. Each draft token is right with the probability --draft-acceptance, and is
// otherwise replaced by a wrong token. The time to make drafts is not included.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/commands/engine.h"
#include "lib/base/clock.h"
#include "lib/base/hash.h"
#include "lib/base/mem.h"
#include "worker/pace.h"
#include "worker/scheduler.h"

struct drafting {
    struct engine_run run;
    struct scheduler *scheduler;
    bool drafts;
    int32_t *prompts; // [batch][context]
    int32_t *answers; // [batch][tokens + 1] answers of the run without drafts
    int32_t *now;     // [batch][tokens + 1] answers of this run
    int *n;           // [batch] number of tokens in `now`
    uint64_t drafted, accepted, passes;
    char error[160];
};

static int answer_tokens(const struct drafting *d)
{
    return d->run.tokens + 1; // includes the first token, which comes from the prefill
}

static void drafting_report(void *arg, const struct step_report *report)
{
    struct drafting *d = arg;
    for (int i = 0; i < report->n_outputs; i++) {
        const struct sequence_output *out = &report->outputs[i];
        int32_t *answer = d->now + (ptrdiff_t)out->id * answer_tokens(d);
        for (int k = 0; k < out->n_tokens; k++)
            answer[d->n[out->id]++] = out->tokens[k].token;
        if (out->finish == SEQUENCE_ERROR) snprintf(d->error, sizeof d->error, "%s", out->error);
    }
}

static enum status drafting_add(struct drafting *d, int id)
{
    const int32_t *prompt = d->prompts + (ptrdiff_t)id * d->run.context;
    struct sequence_request request = {
        .id = (uint64_t)id, .tokens = prompt, .n_tokens = d->run.context, .prompt_tokens = d->run.context};
    sampling_defaults(&request.sampling);
    request.sampling.ignore_eos = true;
    request.sampling.max_tokens = answer_tokens(d);
    return scheduler_add(d->scheduler, &request);
}

// Returns true if draft token number `index` is to be right.
static bool is_right(const struct drafting *d, int id, int index)
{
    const struct hash_key key = {1, 2};
    double unit = (double)(hash_number(&key, (uint64_t)id << 32 | (uint32_t)index) >> 11) * 0x1p-53;
    return unit < d->run.bench->flags->draft_acceptance;
}

static enum status drafting_set_draft(struct drafting *d, int id)
{
    int32_t draft[LOOK_AHEAD_MAX];
    int from = d->n[id], left = answer_tokens(d) - from, n = (int)d->run.bench->flags->draft_tokens;
    const int32_t *answer = d->answers + (ptrdiff_t)id * answer_tokens(d) + from;
    if (left <= 0) return STATUS_OK;
    if (n > left) n = left;
    for (int i = 0; i < n; i++)
        draft[i] = is_right(d, id, from + i) ? answer[i] : (answer[i] + 1) % d->run.bench->config.vocab_size;
    return scheduler_set_draft(d->scheduler, (uint64_t)id, from, draft, n);
}

static enum status drafting_step(struct drafting *d)
{
    for (int id = 0; d->drafts && id < d->run.batch; id++)
        TRY(drafting_set_draft(d, id));
    TRY(scheduler_step(d->scheduler));
    d->passes++;
    return *d->error ? status_fail(STATUS_INTERNAL, "%s", d->error) : STATUS_OK;
}

static int drafting_tokens(const struct drafting *d, int *least_p)
{
    int sum = 0;
    *least_p = d->n[0];
    for (int id = 0; id < d->run.batch; id++) {
        sum += d->n[id];
        if (d->n[id] < *least_p) *least_p = d->n[id];
    }
    return sum;
}

// Prefills without drafts, then times the decode passes.
static enum status drafting_decode(struct drafting *d, bool drafts, double *seconds_p)
{
    int least = 0, before = 0;
    d->drafts = false;
    for (int id = 0; id < d->run.batch; id++)
        TRY(drafting_add(d, id));
    while (!least) {
        TRY(drafting_step(d));
        before = drafting_tokens(d, &least);
    }
    d->drafts = drafts;
    d->passes = 0;
    int64_t from_us = clock_now_us();
    while (scheduler_busy(d->scheduler))
        TRY(drafting_step(d));
    double tokens = drafting_tokens(d, &least) - before;
    *seconds_p = (double)(clock_now_us() - from_us) / 1e6 * d->run.batch * d->run.tokens / tokens;
    return STATUS_OK;
}

static enum status drafting_run(struct drafting *d, bool drafts, double *seconds_p)
{
    const struct engine_bench *b = d->run.bench;
    struct model *model = engine_model(b->engine);
    struct scheduler_limits limits = {.token_budget = b->limits.rows,
                                      .max_seqs = d->run.batch,
                                      .context_tokens = b->limits.context,
                                      .kv_blocks = model_kv_blocks(model),
                                      .pace_us = PACE_TWICE};
    memset(d->n, 0, (size_t)d->run.batch * sizeof *d->n);
    TRY(scheduler_create(b->engine, &limits, drafting_report, d, &d->scheduler));
    enum status status = drafting_decode(d, drafts, seconds_p);
    struct scheduler_load load = scheduler_get_load(d->scheduler);
    d->drafted = load.drafted;
    d->accepted = load.draft_accepted;
    scheduler_free(d->scheduler);
    return status;
}

static size_t answers_bytes(const struct drafting *d)
{
    return (size_t)d->run.batch * (size_t)answer_tokens(d) * sizeof *d->answers;
}

static enum status drafting_run_plain(struct contender *self, double *seconds_p)
{
    struct drafting *d = self->context;
    TRY(drafting_run(d, false, seconds_p));
    memcpy(d->answers, d->now, answers_bytes(d));
    return STATUS_OK;
}

static enum status drafting_run_drafted(struct contender *self, double *seconds_p)
{
    struct drafting *d = self->context;
    TRY(drafting_run(d, true, seconds_p));
    bool exact = model_capabilities(engine_model(d->run.bench->engine))->exact_rows;
    if (!exact || memcmp(d->answers, d->now, answers_bytes(d)) == 0) return STATUS_OK;
    return status_fail(STATUS_INTERNAL, "drafts changed a token");
}

static void drafting_print(struct engine_bench *b, const struct drafting *d, double faster, json_t *row)
{
    double tokens = (double)d->run.tokens / (double)d->passes; // per sequence
    json_object_set_new(row, "draft_acceptance", json_real(b->flags->draft_acceptance));
    json_object_set_new(row, "over_plain", json_real(faster));
    json_object_set_new(row, "passes", json_integer((json_int_t)d->passes));
    json_object_set_new(row, "drafted", json_integer((json_int_t)d->drafted));
    json_object_set_new(row, "accepted", json_integer((json_int_t)d->accepted));
    if (b->flags->json) return;
    printf("         %.2f times as fast as without drafts, %.2f tokens per sequence and pass, %llu of %llu draft "
           "tokens accepted\n",
           faster, tokens, (unsigned long long)d->accepted, (unsigned long long)d->drafted);
}

enum status engine_measure_drafts(struct engine_bench *b, int batch)
{
    struct drafting d = {.run = {.bench = b,
                                 .phase = "drafted",
                                 .batch = batch,
                                 .tokens = (int)b->flags->decode_tokens,
                                 .context = (int)b->flags->context}};
    size_t seqs = (size_t)batch;
    d.prompts = mem_alloc_array(seqs * (size_t)d.run.context, sizeof *d.prompts);
    d.answers = mem_alloc(answers_bytes(&d));
    d.now = mem_alloc(answers_bytes(&d));
    d.n = mem_alloc_array(seqs, sizeof *d.n);
    passes_tokens(d.prompts, batch * d.run.context, b->config.vocab_size);
    struct contender contenders[2] = {{.run = drafting_run_plain, .context = &d},
                                      {.run = drafting_run_drafted, .context = &d}};
    struct measurement measurements[2];
    struct rounds_readings readings;
    struct rounds rounds = engine_rounds(b);
    enum status status = rounds_run(&rounds, contenders, 2, measurements, &readings);
    if (status == STATUS_OK) {
        json_t *row = engine_add_row(b, &d.run, &measurements[1], &readings, &contenders[1]);
        drafting_print(b, &d, measurements[0].seconds / measurements[1].seconds, row);
    }
    free(d.prompts);
    free(d.answers);
    free(d.now);
    free(d.n);
    return status;
}
