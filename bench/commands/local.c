// SPDX-License-Identifier: Apache-2.0
// See local.h. A group of one rank, driven step by step until the one sequence ends.
#include "bench/commands/local.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/clock.h"
#include "base/mem.h"
#include "model/chat.h"
#include "model/text_stream.h"
#include "model/tokenizer.h"
#include "worker/scheduler.h"

struct local_flags local_flags;

struct run {
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

static void give_text(struct run *run, const struct text_piece *piece)
{
    if (!piece->size_bytes) return;
    answer_add_text(run->answer, piece->text, piece->size_bytes);
    if (run->on_text) run->on_text(run->user, piece->text, piece->size_bytes);
}

static void take_token(struct run *run, const struct sampled_token *token)
{
    if (!run->n_tokens++) run->first_us = clock_now_us();
    json_array_append_new(run->answer->token_ids, json_integer(token->token));
    if (run->spec->sampling.logprobs >= 0) {
        json_t *top = json_array();
        for (int i = 0; i < token->n_top; i++)
            json_array_append_new(top, json_pack("[i,f]", token->top_id[i], (double)token->top_logprob[i]));
        json_array_append_new(run->answer->logprobs, json_pack("{s:i,s:f,s:o}", "token_id", token->token, "logprob",
                                                               (double)token->logprob, "top", top));
    }
    struct text_piece piece;
    text_stream_push(run->text, token->token, run->n_tokens >= run->spec->sampling.min_tokens, &piece);
    give_text(run, &piece);
    run->stopped = piece.stop >= 0;
}

static void on_report(void *arg, const struct step_report *report)
{
    struct run *run = arg;
    for (int i = 0; i < report->n_outputs && !run->stopped; i++) {
        const struct sequence_output *output = &report->outputs[i];
        if (output->has_token) take_token(run, &output->token);
        run->finish = output->finish;
        if (output->finish == SEQUENCE_ERROR) memcpy(run->error, output->error, sizeof run->error);
    }
}

// The prompt's token ids, however it was given.
static enum status tokenise(const struct tokenizer *tokenizer, const struct request_spec *spec, int32_t **ids_p,
                            int *n_p)
{
    if (spec->n_token_ids) {
        *ids_p = mem_copy(spec->token_ids, (size_t)spec->n_token_ids * sizeof *spec->token_ids);
        *n_p = spec->n_token_ids;
        return STATUS_OK;
    }
    return tokenizer_encode(tokenizer, spec->text, spec->text_bytes, TOKENIZER_ADD_SPECIAL | TOKENIZER_PARSE_SPECIAL,
                            ids_p, n_p);
}

static json_t *milliseconds(int64_t us)
{
    return json_real((double)us / 1000);
}

static void complete(struct run *run, int prompt_tokens)
{
    int64_t now = clock_now_us();
    const char *reason = run->stopped || run->finish == SEQUENCE_STOP ? "stop" : "length";
    int64_t ttft_us = run->first_us ? run->first_us - run->started_us : now - run->started_us;
    run->answer->completion =
        json_pack("{s:s,s:{s:i,s:i,s:i,s:i,s:i,s:i},s:{s:f,s:f,s:f,s:o,s:o,s:o}}", "finish_reason", reason, "usage",
                  "prompt_tokens", prompt_tokens, "scored_tokens", 0, "kept_tokens", prompt_tokens, "cached_tokens", 0,
                  "completion_tokens", run->n_tokens, "replays", 0, "timing", "queue_ms", 0.0, "score_ms", 0.0,
                  "pack_wait_ms", 0.0, "prefill_ms", milliseconds(ttft_us), "ttft_ms", milliseconds(ttft_us),
                  "total_ms", milliseconds(now - run->started_us));
    if (run->spec->return_kept) {
        json_object_set_new(run->answer->completion, "kept", json_pack("[[i,i]]", 0, prompt_tokens - 1));
    }
}

static enum status drive(struct engine *engine, const struct scheduler_limits *limits, struct run *run,
                         const struct sequence_request *sequence)
{
    struct scheduler *scheduler;
    enum status status = scheduler_create(engine, limits, on_report, run, &scheduler);
    if (status != STATUS_OK) return status;
    run->started_us = clock_now_us();
    status = scheduler_add(scheduler, sequence);
    while (status == STATUS_OK && !run->stopped && scheduler_busy(scheduler))
        status = scheduler_step(scheduler);
    if (status == STATUS_OK && run->finish == SEQUENCE_ERROR) status = status_fail(STATUS_INTERNAL, "%s", run->error);
    if (status == STATUS_OK) {
        if (!run->stopped) {
            struct text_piece rest;
            text_stream_finish(run->text, &rest);
            give_text(run, &rest);
        }
        complete(run, sequence->prompt_tokens);
    }
    scheduler_free(scheduler);
    return status;
}

static enum status run_model(const struct tokenizer *tokenizer, const int32_t *ids, int n, struct run *run)
{
    struct model_config config;
    enum status status = model_config_read(local_flags.model, &config);
    if (status != STATUS_OK) return status;
    struct sampling sampling = run->spec->sampling;
    if (!run->spec->seed_given && getrandom(&sampling.seed, sizeof sampling.seed, 0) < 0) sampling.seed = 1;
    for (int i = 0; i < n; i++) {
        if (ids[i] >= config.vocab_size) {
            return status_fail(STATUS_INVALID, "token_ids: %d is outside the vocabulary of %d tokens", ids[i],
                               config.vocab_size);
        }
    }
    status = sampling_check(&sampling, config.vocab_size);
    if (status == STATUS_OK) status = sampling_resolve(&sampling, n, config.max_context);
    if (status != STATUS_OK) return status;

    // Just enough for this one sequence.
    int context = n + sampling.max_tokens;
    int rows = n < local_flags.token_budget ? n : (int)local_flags.token_budget;
    struct comm *comm;
    struct engine *engine;
    status = comm_open_self(&comm);
    if (status != STATUS_OK) return status;
    const struct model_options options = {
        .dir = local_flags.model,
        .backend = local_flags.backend,
        .dtype = local_flags.dtype,
        .kv_dtype = local_flags.kv_dtype,
        .packed_cache = local_flags.packed_cache,
        .threads = (int)local_flags.threads,
        .max_rows = rows,
        .max_seqs = 1,
        .max_context = context,
        .n_kv_blocks = (context + KV_BLOCK_TOKENS - 1) / KV_BLOCK_TOKENS + 1,
    };
    status = engine_open(&options, comm, &engine);
    if (status == STATUS_OK) {
        const struct scheduler_limits limits = {
            .token_budget = rows, .max_seqs = 1, .context_tokens = context, .kv_blocks = options.n_kv_blocks};
        const struct sequence_request sequence = {
            .id = 1, .tokens = ids, .n_tokens = n, .prompt_tokens = n, .sampling = sampling};
        status = drive(engine, &limits, run, &sequence);
        engine_close(engine);
    }
    comm->ops->close(comm);
    return status;
}

enum status local_generate(const struct request_spec *spec, text_fn on_text, void *user, struct answer *answer)
{
    struct run run = {.spec = spec, .on_text = on_text, .user = user, .answer = answer};
    struct tokenizer *tokenizer;
    int32_t *ids = NULL;
    int n = 0;
    enum status status = tokenizer_open(local_flags.model, &tokenizer);
    if (status != STATUS_OK) return status;
    status = text_stream_create(tokenizer, (const char *const *)spec->stop, spec->n_stop, &run.text);
    if (status == STATUS_OK) status = tokenise(tokenizer, spec, &ids, &n);
    if (status == STATUS_OK) status = run_model(tokenizer, ids, n, &run);
    free(ids);
    text_stream_free(run.text);
    tokenizer_free(tokenizer);
    return status;
}
