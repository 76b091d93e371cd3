// SPDX-License-Identifier: Apache-2.0
#include "cli/engine/model_pair.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/block_manager.h"
#include "engine/engine.h"
#include "lib/base/clock.h"
#include "lib/base/mem.h"
#include "speculator/scorer.h"
#include "worker/scheduler.h"

struct model_pair {
    struct comm *comm;
    struct engine *main, *spec;
    struct scheduler *scheduler;
    struct scorer *scorers[2];       // [with_main] scores with the speculator or with the main model
    struct sentence_table sentences; // table for the speculator's tokenizer; empty with random weights
    uint64_t spec_tokenizer;         // fingerprint of the speculator's tokenizer; 0 with random weights
    int32_t *kept_tokens;            // [max_prompt]
    // State of the current call. Prompts and requests are identified by their index in these arrays.
    struct model_pair_prompt *prompts;
    struct model_pair_request *requests;
    int64_t started_us;
    int pending;
    char error[160];
};

static void pair_on_step(void *arg, const struct step_report *report)
{
    struct model_pair *p = arg;
    for (int i = 0; i < report->n_outputs; i++) {
        const struct sequence_output *output = &report->outputs[i];
        struct model_pair_request *r = &p->requests[output->id];
        if (!r->prefill_us) r->prefill_us = clock_now_us() - p->started_us;
        for (int k = 0; k < output->n_tokens; k++)
            r->answer[r->n_answer++] = output->tokens[k].token;
        r->stopped = output->finish == SEQUENCE_STOP;
        p->pending -= output->finish != SEQUENCE_GOES_ON;
        if (output->finish == SEQUENCE_ERROR) memcpy(p->error, output->error, sizeof p->error);
    }
}

static void pair_on_scored(void *arg, const struct score_result *result)
{
    struct model_pair *p = arg;
    struct model_pair_prompt *prompt = &p->prompts[result->request];
    p->pending--;
    prompt->score_us = result->score_us;
    if (result->evidence) prompt->evidence = *result->evidence;
    prompt->n_look_ahead = result->n_look_ahead;
    if (prompt->look_ahead && result->n_look_ahead)
        memcpy(prompt->look_ahead, result->look_ahead, (size_t)result->n_look_ahead * sizeof *prompt->look_ahead);
    if (result->error)
        snprintf(p->error, sizeof p->error, "%s", result->error);
    else
        memcpy(prompt->importance, result->importance, (size_t)result->n * sizeof *prompt->importance);
}

static enum status pair_score_forward(void *context, const struct ragged_batch *batch, struct forward_result *result)
{
    return engine_forward(context, batch, result);
}

// Returns the number of KV blocks: enough for one sequence of `context` tokens, and for kv_tokens or max_seqs sequences
// of MEAN_TOKENS.
static int pair_kv_blocks(const struct model_pair_options *o, int context)
{
    enum { MEAN_TOKENS = 1024 };
    int entries = o->kv_tokens ? o->kv_tokens : o->max_seqs > 1 ? o->max_seqs * MEAN_TOKENS : 0;
    return kv_blocks_for(entries > context ? entries : context) + 1;
}

static enum status pair_open_engine(const struct model_pair_options *o, const char *dir, int context, struct comm *comm,
                                    struct engine **engine_p)
{
    struct model_config config;
    enum status status = model_config_read(dir, &config);
    if (status == STATUS_OK && context > config.max_context)
        status = status_fail(STATUS_INVALID, "%s: the model's context is %d tokens, but %d are needed", dir,
                             config.max_context, context);
    if (status != STATUS_OK) return status;
    const struct model_options options = {
        .dir = dir,
        .dummy = o->dummy,
        .backend = o->backend,
        .dtype = o->dtype,
        .threads = o->threads,
        .max_rows = o->token_budget,
        .max_seqs = o->max_seqs,
        .max_context = context,
        .n_kv_blocks = pair_kv_blocks(o, context),
    };
    status = engine_open(&options, comm, engine_p);
    if (status == STATUS_OK) engine_set_step_timeout(*engine_p, 0); // a pass of a large model may take minutes
    return status;
}

static struct scorer *pair_create_scorer(struct model_pair *p, const struct model_pair_options *o,
                                         struct engine *engine, int context)
{
    const struct scorer_model model = {.config = model_get_config(engine_model(engine)),
                                       .token_budget = o->token_budget,
                                       .max_seqs = o->max_seqs,
                                       .context_tokens = context,
                                       .kv_blocks = pair_kv_blocks(o, context),
                                       .samples = model_samples(engine_model(engine)),
                                       .forward = pair_score_forward,
                                       .context = engine};
    return scorer_create(&model, pair_on_scored, p);
}

static enum status pair_read_sentences(struct model_pair *p, const struct model_pair_options *o)
{
    struct tokenizer *tokenizer;
    if (o->dummy) return STATUS_OK;
    TRY(tokenizer_open(o->spec, &tokenizer));
    p->sentences = sentence_table_create(tokenizer);
    p->spec_tokenizer = tokenizer_fingerprint(tokenizer);
    tokenizer_free(tokenizer);
    return STATUS_OK;
}

// Opens both models. The scheduler and scorers[true] share the main model's KV blocks. No call uses both.
enum status model_pair_open(const struct model_pair_options *o, struct model_pair **pair_p)
{
    struct model_pair *p = mem_alloc(sizeof *p);
    int context = o->max_prompt + o->max_output, scored = o->max_prompt + o->look_ahead;
    p->kept_tokens = mem_alloc_array((size_t)o->max_prompt, sizeof *p->kept_tokens);
    enum status status = comm_open_self(&p->comm);
    if (status == STATUS_OK) status = pair_open_engine(o, o->main, context, p->comm, &p->main);
    if (status == STATUS_OK) status = pair_open_engine(o, o->spec, scored, p->comm, &p->spec);
    if (status == STATUS_OK) status = pair_read_sentences(p, o);
    const struct scheduler_limits limits = {.token_budget = o->token_budget,
                                            .max_seqs = o->max_seqs,
                                            .context_tokens = context,
                                            .kv_blocks = pair_kv_blocks(o, context)};
    if (status == STATUS_OK) status = scheduler_create(p->main, &limits, pair_on_step, p, &p->scheduler);
    if (status != STATUS_OK) {
        model_pair_close(p);
        return status;
    }
    p->scorers[false] = pair_create_scorer(p, o, p->spec, scored);
    p->scorers[true] = pair_create_scorer(p, o, p->main, context);
    *pair_p = p;
    return STATUS_OK;
}

void model_pair_close(struct model_pair *p)
{
    if (!p) return;
    scorer_free(p->scorers[false]);
    scorer_free(p->scorers[true]);
    if (p->scheduler) scheduler_free(p->scheduler);
    if (p->spec) engine_close(p->spec);
    if (p->main) engine_close(p->main);
    if (p->comm) p->comm->ops->close(p->comm);
    sentence_table_free(&p->sentences);
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

uint64_t model_pair_main_fingerprint(const struct model_pair *p)
{
    return model_fingerprint(engine_model(p->main));
}

uint64_t model_pair_spec_fingerprint(const struct model_pair *p)
{
    return model_fingerprint(engine_model(p->spec));
}

uint64_t model_pair_spec_tokenizer(const struct model_pair *p)
{
    return p->spec_tokenizer;
}

static void pair_start_call(struct model_pair *p, int pending)
{
    p->pending = pending;
    *p->error = 0;
    p->started_us = clock_now_us();
}

static enum status pair_end_call(const struct model_pair *p, enum status status)
{
    return status == STATUS_OK && *p->error ? status_fail(STATUS_INTERNAL, "%s", p->error) : status;
}

enum status model_pair_score(struct model_pair *p, bool by_main, const struct prefill *prefill,
                             struct model_pair_prompt *prompts, int n_prompts)
{
    struct scorer *scorer = p->scorers[by_main];
    p->prompts = prompts;
    pair_start_call(p, n_prompts);
    for (int i = 0; i < n_prompts; i++) {
        const struct score_item item = {.request = (uint64_t)i,
                                        .tokens = prompts[i].tokens,
                                        .n = prompts[i].n,
                                        .prefill = *prefill,
                                        .tail_tokens = prompts[i].tail_tokens,
                                        .want_importance = true,
                                        .want_evidence = true};
        scorer_add(scorer, &item);
    }
    enum status status = STATUS_OK;
    while (status == STATUS_OK && p->pending)
        status = scorer_step(scorer);
    return pair_end_call(p, status);
}

static enum status pair_add_request(struct model_pair *p, int i)
{
    struct model_pair_request *r = &p->requests[i];
    int n_tokens = 0;
    for (int k = 0; k < r->n_kept; k++)
        for (int at = r->kept[k].first; at <= r->kept[k].last; at++)
            p->kept_tokens[n_tokens++] = r->tokens[at];
    struct sequence_request sequence = {.id = (uint64_t)i,
                                        .tokens = r->n_kept ? p->kept_tokens : r->tokens,
                                        .n_tokens = r->n_kept ? n_tokens : r->n,
                                        .kept = r->kept,
                                        .n_kept_ranges = r->n_kept,
                                        .prompt_tokens = r->n};
    sampling_defaults(&sequence.sampling);
    sequence.sampling.max_tokens = r->max_tokens;
    r->n_answer = 0;
    r->stopped = false;
    r->prefill_us = 0;
    return scheduler_add(p->scheduler, &sequence);
}

enum status model_pair_generate(struct model_pair *p, struct model_pair_request *requests, int n_requests)
{
    enum status status = STATUS_OK;
    p->requests = requests;
    pair_start_call(p, n_requests);
    for (int i = 0; i < n_requests && status == STATUS_OK; i++)
        status = pair_add_request(p, i);
    while (status == STATUS_OK && p->pending)
        status = scheduler_step(p->scheduler);
    return pair_end_call(p, status);
}

int model_pair_select(const struct model_pair *p, const struct model_pair_prompt *prompt, const struct prefill *prefill,
                      double keep_rate, struct token_range **kept_p)
{
    struct select_policy policy = select_policy_of(prefill);
    uint8_t *ends = sentence_ends_create(p->sentences.n ? &p->sentences : NULL, prompt->tokens, prompt->n);
    policy.keep_rate = keep_rate;
    policy.keep_first = prompt->tokens[0] == model_pair_spec(p)->bos_id;
    policy.tail_tokens = prompt->tail_tokens;
    policy.pinned = prompt->pinned;
    policy.n_pinned = prompt->n_pinned;
    policy.ends = ends;
    int n_kept = select_kept(prompt->importance, prompt->n, &policy, kept_p);
    free(ends);
    return n_kept;
}
