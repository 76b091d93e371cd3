// SPDX-License-Identifier: Apache-2.0
// forepack generate --model DIR: runs one request on a model in this process. This is the quickest way to check a
// checkpoint. It uses the scheduler, the sampler and the text stream of a worker group with one rank, so it yields the
// same tokens. There is no speculator: the whole prompt is prefilled.
#include "cli/generate.h"

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "cli/engine/commands.h"
#include "lib/base/clock.h"
#include "lib/base/mem.h"
#include "lib/text/text_stream.h"
#include "lib/text/tokenizer.h"
#include "worker/scheduler.h"

enum { LOGIT_ROWS = 64 }; // logit rows of a pass, for log-probabilities of the prompt

struct generation {
    const struct generate_model_flags *flags;
    const struct request_spec *spec;
    text_fn on_text;
    void *user;
    struct answer *answer;
    struct text_stream *text;
    int n_tokens;
    int64_t started_us, first_us;
    bool stopped; // a stop string ended the text
    enum sequence_finish finish;
    char error[160];
};

static void generation_add_text(struct generation *g, const struct text_piece *piece)
{
    if (!piece->size_bytes) return;
    answer_add_text(g->answer, piece->text, piece->size_bytes);
    if (g->on_text) g->on_text(g->user, piece->text, piece->size_bytes);
}

static void generation_add_logprob(struct generation *g, const struct sampled_token *token)
{
    json_t *top = json_array();
    for (int i = 0; i < token->n_top; i++)
        json_array_append_new(top, json_pack("[i,f]", token->top_id[i], (double)token->top_logprob[i]));
    answer_add_logprob(g->answer, &(struct answer_logprob){token->token, token->rank, (double)token->logprob, top});
}

static void generation_add_token(struct generation *g, const struct sampled_token *token)
{
    if (!g->n_tokens++) g->first_us = clock_now_us();
    json_array_append_new(g->answer->token_ids, json_integer(token->token));
    if (g->spec->sampling.logprobs >= 0) generation_add_logprob(g, token);
    struct text_piece piece;
    text_stream_push(g->text, token->token, g->n_tokens >= g->spec->sampling.min_tokens, &piece);
    generation_add_text(g, &piece);
    g->stopped = piece.stop >= 0;
}

static void generation_on_report(void *arg, const struct step_report *report)
{
    struct generation *g = arg;
    for (int i = 0; i < report->n_outputs && !g->stopped; i++) {
        const struct sequence_output *output = &report->outputs[i];
        for (int k = 0; k < output->n_prompt_logprobs; k++)
            generation_add_logprob(g, &output->prompt_logprobs[k]);
        for (int k = 0; k < output->n_tokens && !g->stopped; k++)
            generation_add_token(g, &output->tokens[k]);
        g->finish = output->finish;
        if (output->finish == SEQUENCE_ERROR) memcpy(g->error, output->error, sizeof g->error);
    }
}

static enum status generation_tokenize(const struct tokenizer *tokenizer, const struct request_spec *spec,
                                       int32_t **ids_p, int *n_p)
{
    if (spec->n_token_ids) {
        *ids_p = mem_copy(spec->token_ids, (size_t)spec->n_token_ids * sizeof *spec->token_ids);
        *n_p = spec->n_token_ids;
        return STATUS_OK;
    }
    return tokenizer_encode(tokenizer, spec->text, spec->text_bytes, TOKENIZER_ADD_SPECIAL | TOKENIZER_PARSE_SPECIAL,
                            ids_p, n_p);
}

static json_t *generation_ms(int64_t us)
{
    return json_real((double)us / 1000);
}

static void generation_complete(struct generation *g, int prompt_tokens)
{
    int64_t now = clock_now_us();
    const char *reason = g->stopped || g->finish == SEQUENCE_STOP ? "stop" : "length";
    int64_t ttft_us = g->first_us ? g->first_us - g->started_us : now - g->started_us;
    g->answer->completion =
        json_pack("{s:s,s:s,s:{s:i,s:i,s:i,s:i,s:i,s:i},s:{s:f,s:f,s:f,s:o,s:o,s:o}}", "finish_reason", reason,
                  "prefill", "whole:no_node", "usage", "prompt_tokens", prompt_tokens, "scored_tokens", 0,
                  "kept_tokens", prompt_tokens, "cached_tokens", 0, "completion_tokens", g->n_tokens, "replays", 0,
                  "timing", "queue_ms", 0.0, "score_ms", 0.0, "pack_wait_ms", 0.0, "prefill_ms", generation_ms(ttft_us),
                  "ttft_ms", generation_ms(ttft_us), "total_ms", generation_ms(now - g->started_us));
    if (g->spec->return_kept) {
        json_object_set_new(g->answer->completion, "kept", json_pack("[[i,i]]", 0, prompt_tokens - 1));
    }
}

static enum status generation_drive(struct engine *engine, const struct scheduler_limits *limits, struct generation *g,
                                    const struct sequence_request *sequence)
{
    struct scheduler *scheduler;
    enum status status = scheduler_create(engine, limits, generation_on_report, g, &scheduler);
    if (status != STATUS_OK) return status;
    g->started_us = clock_now_us();
    status = scheduler_add(scheduler, sequence);
    while (status == STATUS_OK && !g->stopped && scheduler_busy(scheduler))
        status = scheduler_step(scheduler);
    if (status == STATUS_OK && g->finish == SEQUENCE_ERROR) status = status_fail(STATUS_INTERNAL, "%s", g->error);
    if (status == STATUS_OK) {
        if (!g->stopped) {
            struct text_piece rest;
            text_stream_finish(g->text, &rest);
            generation_add_text(g, &rest);
        }
        generation_complete(g, sequence->prompt_tokens);
    }
    scheduler_free(scheduler);
    return status;
}

// Completes the request's sampling parameters with a seed and max_tokens, and checks them against the model.
static enum status generation_resolve_sampling(const struct generation *g, const struct model_config *config,
                                               const int32_t *ids, int n, struct sampling *sampling_p)
{
    struct sampling sampling = g->spec->sampling;
    bool seed_given = g->spec->sampling_given & generation_field_bit(sampling_fields, "seed");
    if (!seed_given && getrandom(&sampling.seed, sizeof sampling.seed, 0) < 0) sampling.seed = 1;
    for (int i = 0; i < n; i++) {
        if (ids[i] >= config->vocab_size) {
            return status_fail(STATUS_INVALID, "token_ids: %d is outside the vocabulary of %d tokens", ids[i],
                               config->vocab_size);
        }
    }
    enum status status = sampling_check(&sampling, config->vocab_size);
    if (status == STATUS_OK)
        status = sampling_resolve(&sampling, n, config, MAX_TOKENS_DEFAULT, "max_tokens", &(struct context_policy){0});
    if (status == STATUS_OK) *sampling_p = sampling;
    return status;
}

// Opens the model with room for one sequence, and runs the request.
static enum status generation_run(struct generation *g, const int32_t *ids, int n)
{
    struct model_config config;
    struct sampling sampling;
    enum status status = model_config_read(g->flags->model, &config);
    if (status == STATUS_OK) status = generation_resolve_sampling(g, &config, ids, n, &sampling);
    if (status != STATUS_OK) return status;
    const int context = n + sampling.max_tokens;
    const int rows = n < g->flags->token_budget ? n : (int)g->flags->token_budget;
    struct comm *comm;
    struct engine *engine;
    status = comm_open_self(&comm);
    if (status != STATUS_OK) return status;
    const struct model_options options = {
        .dir = g->flags->model,
        .backend = g->flags->backend,
        .dtype = g->flags->dtype,
        .kv_dtype = g->flags->kv_dtype,
        .packed_cache = g->flags->packed_cache,
        .threads = (int)g->flags->threads,
        .max_rows = rows,
        .max_seqs = 1,
        .max_logit_rows = rows < LOGIT_ROWS ? rows : LOGIT_ROWS,
        .max_context = context,
        .n_kv_blocks = (context + KV_BLOCK_TOKENS - 1) / KV_BLOCK_TOKENS + 1,
    };
    status = engine_open(&options, comm, &engine);
    if (status == STATUS_OK) {
        const struct scheduler_limits limits = {
            .token_budget = rows, .max_seqs = 1, .context_tokens = context, .kv_blocks = options.n_kv_blocks};
        const struct sequence_request sequence = {
            .id = 1, .tokens = ids, .n_tokens = n, .prompt_tokens = n, .logprobs_from = 1, .sampling = sampling};
        status = generation_drive(engine, &limits, g, &sequence);
        engine_close(engine);
    }
    comm->ops->close(comm);
    return status;
}

static enum status generation_run_model(const struct generate_model_flags *flags, const struct request_spec *spec,
                                        text_fn on_text, void *user, struct answer *answer)
{
    struct generation g = {.flags = flags, .spec = spec, .on_text = on_text, .user = user, .answer = answer};
    struct tokenizer *tokenizer;
    int32_t *ids = NULL;
    int n = 0;
    enum status status = tokenizer_open(flags->model, &tokenizer);
    if (status != STATUS_OK) return status;
    status = text_stream_create(tokenizer, (const char *const *)spec->stop, spec->n_stop, &g.text);
    if (status == STATUS_OK) status = generation_tokenize(tokenizer, spec, &ids, &n);
    if (status == STATUS_OK) status = generation_run(&g, ids, n);
    free(ids);
    text_stream_free(g.text);
    tokenizer_free(tokenizer);
    return status;
}

int engine_command_generate(int argc, char **argv)
{
    return generate_main(argc, argv, generation_run_model);
}
