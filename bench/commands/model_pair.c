// SPDX-License-Identifier: Apache-2.0
#include "bench/commands/model_pair.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "engine/block_manager.h"
#include "engine/engine.h"
#include "speculator/scorer.h"
#include "worker/scheduler.h"

struct model_pair {
    struct comm *comm;
    struct engine *main, *spec;
    struct scheduler *scheduler;
    struct scorer *scorer;
    int32_t *kept_tokens; // [max_prompt]
    uint64_t last_id;
    // Of the current call:
    struct model_pair_answer *answer;
    int64_t started_us;
    bool ended;
    float *importance;
    int64_t score_us;
    char error[160];
};

static void pair_on_step(void *arg, const struct step_report *report)
{
    struct model_pair *p = arg;
    for (int i = 0; i < report->n_outputs; i++) {
        const struct sequence_output *output = &report->outputs[i];
        if (!p->answer->prefill_us) p->answer->prefill_us = clock_now_us() - p->started_us;
        for (int k = 0; k < output->n_tokens; k++)
            p->answer->tokens[p->answer->n++] = output->tokens[k].token;
        p->answer->stopped = output->finish == SEQUENCE_STOP;
        p->ended = output->finish != SEQUENCE_GOES_ON;
        if (output->finish == SEQUENCE_ERROR) memcpy(p->error, output->error, sizeof p->error);
    }
}

static void pair_on_scored(void *arg, const struct score_result *result)
{
    struct model_pair *p = arg;
    p->ended = true;
    p->score_us = result->score_us;
    if (result->error)
        snprintf(p->error, sizeof p->error, "%s", result->error);
    else
        memcpy(p->importance, result->importance, (size_t)result->n * sizeof *p->importance);
}

static enum status pair_score_forward(void *context, const struct ragged_batch *batch, struct forward_result *result)
{
    return engine_forward(context, batch, result);
}

static enum status pair_open_engine(const struct model_pair_options *o, const char *dir, int entries, struct comm *comm,
                                    struct engine **engine_p)
{
    struct model_config config;
    enum status status = model_config_read(dir, &config);
    if (status == STATUS_OK && entries > config.max_context)
        status = status_fail(STATUS_INVALID, "%s: the model's context is %d tokens, but %d are needed", dir,
                             config.max_context, entries);
    if (status != STATUS_OK) return status;
    const struct model_options options = {
        .dir = dir,
        .dummy = o->dummy,
        .backend = o->backend,
        .dtype = o->dtype,
        .threads = o->threads,
        .max_rows = o->token_budget,
        .max_seqs = 1,
        .max_context = entries,
        .n_kv_blocks = kv_blocks_for(entries) + 1,
    };
    status = engine_open(&options, comm, engine_p);
    if (status == STATUS_OK) engine_set_step_timeout(*engine_p, 0); // a long chunk of a large model may take minutes
    return status;
}

enum status model_pair_open(const struct model_pair_options *o, struct model_pair **pair_p)
{
    struct model_pair *p = mem_alloc(sizeof *p);
    int context = o->max_prompt + o->max_output, scored = o->max_prompt + o->look_ahead;
    p->kept_tokens = mem_alloc_array((size_t)o->max_prompt, sizeof *p->kept_tokens);
    enum status status = comm_open_self(&p->comm);
    if (status == STATUS_OK) status = pair_open_engine(o, o->main, context, p->comm, &p->main);
    if (status == STATUS_OK) status = pair_open_engine(o, o->spec, scored, p->comm, &p->spec);
    const struct scheduler_limits limits = {.token_budget = o->token_budget,
                                            .max_seqs = 1,
                                            .context_tokens = context,
                                            .kv_blocks = kv_blocks_for(context) + 1};
    if (status == STATUS_OK) status = scheduler_create(p->main, &limits, pair_on_step, p, &p->scheduler);
    if (status != STATUS_OK) {
        model_pair_close(p);
        return status;
    }
    const struct scorer_model model = {.config = model_pair_spec(p),
                                       .token_budget = o->token_budget,
                                       .max_seqs = 1,
                                       .context_tokens = scored,
                                       .kv_blocks = kv_blocks_for(scored) + 1,
                                       .samples = model_samples(engine_model(p->spec)),
                                       .forward = pair_score_forward,
                                       .context = p->spec};
    p->scorer = scorer_create(&model, pair_on_scored, p);
    *pair_p = p;
    return STATUS_OK;
}

void model_pair_close(struct model_pair *p)
{
    if (!p) return;
    scorer_free(p->scorer);
    if (p->scheduler) scheduler_free(p->scheduler);
    if (p->spec) engine_close(p->spec);
    if (p->main) engine_close(p->main);
    if (p->comm) p->comm->ops->close(p->comm);
    free(p->kept_tokens);
    free(p);
}

const struct model_config *model_pair_main(const struct model_pair *p)
{
    return model_get_config(engine_model(p->main));
}

const struct model_config *model_pair_spec(const struct model_pair *p)
{
    return model_get_config(engine_model(p->spec));
}

static void pair_start_call(struct model_pair *p)
{
    p->ended = false;
    *p->error = 0;
    p->started_us = clock_now_us();
}

enum status model_pair_score(struct model_pair *p, const int32_t *tokens, int n, const struct prefill *prefill,
                             float *importance, int64_t *score_us_p)
{
    const struct score_item item = {
        .request = ++p->last_id, .tokens = tokens, .n = n, .prefill = *prefill, .want_importance = true};
    p->importance = importance;
    pair_start_call(p);
    scorer_add(p->scorer, &item);
    enum status status = STATUS_OK;
    while (status == STATUS_OK && !p->ended)
        status = scorer_step(p->scorer);
    if (status == STATUS_OK && *p->error) status = status_fail(STATUS_INTERNAL, "scoring: %s", p->error);
    if (status == STATUS_OK) *score_us_p = p->score_us;
    return status;
}

enum status model_pair_generate(struct model_pair *p, const int32_t *tokens, int n, const struct token_range *kept,
                                int n_kept, int max_tokens, struct model_pair_answer *answer)
{
    int n_tokens = 0;
    for (int r = 0; r < n_kept; r++)
        for (int i = kept[r].first; i <= kept[r].last; i++)
            p->kept_tokens[n_tokens++] = tokens[i];
    struct sequence_request request = {.id = ++p->last_id,
                                       .tokens = n_kept ? p->kept_tokens : tokens,
                                       .n_tokens = n_kept ? n_tokens : n,
                                       .kept = kept,
                                       .n_kept_ranges = n_kept,
                                       .prompt_tokens = n};
    sampling_defaults(&request.sampling);
    request.sampling.max_tokens = max_tokens;
    p->answer = answer;
    answer->n = 0;
    answer->stopped = false;
    answer->prefill_us = 0;
    pair_start_call(p);
    enum status status = scheduler_add(p->scheduler, &request);
    while (status == STATUS_OK && !p->ended)
        status = scheduler_step(p->scheduler);
    if (status == STATUS_OK && *p->error) status = status_fail(STATUS_INTERNAL, "%s", p->error);
    return status;
}
