// SPDX-License-Identifier: Apache-2.0
// Applies the results of a pass: samples on the host the tokens that the backend did not sample, appends the new tokens
// to their sequences, and ends sequences.
#include <stdio.h>

#include "lib/base/clock.h"
#include "lib/base/log.h"
#include "lib/base/no_alloc.h"
#include "lib/base/utf8.h"
#include "worker/scheduler_state.h"

// ---- grammars ----

// Sets the sequence's mask to the tokens that its grammar allows next. Suspends the check for allocations, because
// llguidance allocates memory.
static enum status sequence_set_mask(struct sequence *q)
{
    int suspended = no_alloc_suspend();
    enum status status = grammar_matcher_mask(q->matcher, q->mask);
    no_alloc_resume(suspended);
    return status == STATUS_OK ? STATUS_OK : STATUS_EXHAUSTED;
}

// Advances the sequence's matcher by output token `index`, which the mask allowed. Returns false if llguidance failed.
static bool sequence_match(struct sequence *q, int index, int32_t token)
{
    if (!q->matcher || q->n_matched > index) return true;
    int suspended = no_alloc_suspend();
    bool ok = grammar_matcher_accept(q->matcher, &token, 1) == STATUS_OK;
    no_alloc_resume(suspended);
    q->n_matched += ok;
    return ok;
}

// Returns true if output token `index`, the last matched token, completes the grammar.
static bool sequence_is_matched(const struct sequence *q, int index)
{
    return q->matcher && q->n_matched == index + 1 && grammar_matcher_is_complete(q->matcher);
}

// ---- sampling on the host ----

struct host_sampling {
    const struct scheduler *scheduler;
    struct scheduled_pass *pass;
    const float *logits; // [n_host_rows, vocab_size]
};

static const float *host_row_logits(const struct host_sampling *sampling, int row)
{
    return sampling->logits + (size_t)row * (size_t)sampling->scheduler->config->vocab_size;
}

static enum status host_row_sample(const struct host_sampling *sampling, int row, int thread)
{
    const struct scheduler *s = sampling->scheduler;
    const struct host_row *r = &sampling->pass->host_rows[row];
    struct sampler_context context = sequence_sampler_context(r->sequence, s->config, r->drafted);
    if (r->sequence->matcher) TRY(sequence_set_mask(r->sequence));
    return sampler_sample_token(s->samplers[thread], host_row_logits(sampling, row), &context,
                                &sampling->pass->host_tokens[row]);
}

// Returns true if the sampled token equals the draft token that the next row verifies.
static bool host_row_is_accepted(const struct scheduled_pass *pass, int row)
{
    const struct host_row *r = &pass->host_rows[row], *next = r + 1;
    struct sequence *q = r->sequence;
    int32_t token = pass->host_tokens[row].token;
    if (r->status != STATUS_OK || row + 1 == pass->n_host_rows || next->sequence != q) return false;
    int index = sequence_generated(q) + r->drafted;
    return q->tokens[q->n_tokens + r->drafted] == token && sequence_match(q, index, token) &&
           !sequence_is_matched(q, index);
}

// Samples the rows of a sequence one after the other, until a token differs from the draft. The rows of a sequence
// cannot be sampled in parallel, because the mask of a grammar depends on the earlier tokens.
static void host_rows_sample(const struct host_sampling *sampling, int row, int thread)
{
    struct scheduled_pass *pass = sampling->pass;
    do
        pass->host_rows[row].status = host_row_sample(sampling, row, thread);
    while (host_row_is_accepted(pass, row++));
}

// Samples the rows of one sequence, or computes the log-probability of the prompt token that the row predicts. Each
// thread has its own sampler.
static void host_row_read(void *arg, int row, int thread)
{
    const struct host_sampling *sampling = arg;
    const struct host_row *r = &sampling->pass->host_rows[row];
    if (r->drafted) return; // host_rows_sample() samples this row after the sequence's first row
    if (r->prompt_token) {
        const struct sequence *q = r->sequence;
        sampler_rate_token(sampling->scheduler->samplers[thread], host_row_logits(sampling, row),
                           q->tokens[r->prompt_token], q->sampling.prompt_logprobs, &sampling->pass->host_tokens[row]);
    } else {
        host_rows_sample(sampling, row, thread);
    }
}

int64_t pass_sample_on_host(struct scheduler *s, struct scheduled_pass *pass, const struct forward_result *result)
{
    int n = pass->n_host_rows;
    if (n == 0) return 0;
    int64_t begun_us = clock_now_us();
    struct host_sampling sampling = {s, pass, result->logits};
    model_run_on_host(engine_model(s->engine), host_row_read, &sampling, n);
    s->host_sampled += (uint64_t)n;
    return s->backend_samples ? clock_now_us() - begun_us : 0;
}

// ---- new tokens ----

// The results of a pass while its sequences advance.
struct pass_results {
    struct scheduler *scheduler;
    const struct scheduled_pass *pass;
    const struct forward_result *result;
    // First logit row of the next sequence among the rows that the host reads; the same among the rows that the backend
    // has sampled.
    int host_row, sampled_row;
};

// Fails with STATUS_INVALID, which means that the grammar is the cause.
static enum status grammar_fail(const struct sequence *q, int n_tokens)
{
    char problem[160];
    grammar_matcher_problem(q->matcher, problem, sizeof problem);
    return status_fail(STATUS_INVALID, "structured output: after %d tokens %s", n_tokens, problem);
}

// Returns the token of logit row `row`, sampled by the backend or by the host. INVALID: the request's grammar is the
// cause of the failure.
static enum status row_token(const struct pass_results *r, const struct sequence *q,
                             const struct sampler_context *context, int row, struct sampled_token *token_p)
{
    if (!r->scheduler->backend_samples || !sampler_backend_can_sample(context)) {
        *token_p = r->pass->host_tokens[row];
        enum status status = r->pass->host_rows[row].status;
        if (status == STATUS_EXHAUSTED) return grammar_fail(q, context->n_output);
        return status == STATUS_OK ? STATUS_OK : sampler_fail_no_token();
    }
    *token_p = (struct sampled_token){.token = r->result->tokens[row]};
    return token_p->token < 0 ? sampler_fail_no_token() : STATUS_OK;
}

static void log_first_token(const struct sequence *q)
{
    log_event(LOG_DEBUG, "prefill_done", LOG_REQUEST(q->id), LOG_FIELD("tokens", q->n_kept),
              LOG_FIELD("cached", q->n_reused), LOG_FIELD("blocks", q->n_blocks),
              LOG_MS("ms", clock_now_us() - q->added_us));
}

static void log_finish(const struct sequence *q, enum sequence_finish finish)
{
    log_event(LOG_DEBUG, "sequence_done", LOG_REQUEST(q->id), LOG_FIELD("finish", sequence_finish_name(finish)),
              LOG_FIELD("tokens", sequence_generated(q)), LOG_MS("ms", clock_now_us() - q->added_us));
}

// Appends a new token. Returns true if it equals the next draft token.
static bool sequence_append(struct sequence *q, int32_t token)
{
    bool is_drafted = q->n_draft > 0 && q->tokens[q->n_tokens] == token;
    q->n_draft = is_drafted ? q->n_draft - 1 : 0;
    q->tokens[q->n_tokens++] = token;
    return is_drafted;
}

static enum sequence_finish sequence_fail(struct sequence_output *out, enum status status)
{
    utf8_format(out->error, sizeof out->error, "%s", status_message());
    out->grammar_failed = status == STATUS_INVALID;
    return SEQUENCE_ERROR;
}

// Appends the token of logit row `row` to the sequence. Returns SEQUENCE_GOES_ON, or how the sequence has ended. Sets
// *is_drafted_p to true if the token equals the next draft token.
static enum sequence_finish sequence_advance(struct pass_results *r, struct sequence *q, int row,
                                             struct sequence_output *out, bool *is_drafted_p)
{
    struct scheduler *s = r->scheduler;
    struct sampler_context context = sequence_sampler_context(q, s->config, 0);
    struct sampled_token token;
    *is_drafted_p = false;
    enum status status = row_token(r, q, &context, row, &token);
    if (status != STATUS_OK) return sequence_fail(out, status);
    if (sampler_stops(&q->sampling, context.eos, context.n_eos, token.token)) return SEQUENCE_STOP;
    int index = sequence_generated(q);
    if (!sequence_match(q, index, token.token)) return sequence_fail(out, grammar_fail(q, index));
    *is_drafted_p = sequence_append(q, token.token);
    s->new_tokens[s->n_new_tokens++] = token;
    out->n_tokens++;
    if (sequence_is_matched(q, index)) return SEQUENCE_STOP;
    return sequence_generated(q) < q->sampling.max_tokens ? SEQUENCE_GOES_ON : SEQUENCE_LENGTH;
}

// Appends the token of the last pending row, then the tokens of the draft rows while they equal the draft. The KV
// entries of accepted draft tokens are kept.
static enum sequence_finish sequence_advance_all(struct pass_results *r, const struct pass_part *part,
                                                 struct sequence_output *out)
{
    struct sequence *q = part->sequence;
    for (int i = 0;; i++) {
        int row = i < part->host_rows ? r->host_row + i : r->sampled_row + i - part->host_rows;
        bool is_drafted;
        enum sequence_finish finish = sequence_advance(r, q, row, out, &is_drafted);
        if (!is_drafted || i == part->drafts) return finish; // the last token may equal a draft token that had no row
        out->draft_accepted++;
        q->n_cached++;
        if (finish != SEQUENCE_GOES_ON) return finish;
    }
}

// Advances a sequence whose last pending row was in the pass. Frees it if it has ended.
static void part_complete(struct pass_results *r, const struct pass_part *part, struct sequence_output *out)
{
    struct scheduler *s = r->scheduler;
    struct sequence *q = part->sequence;
    out->cached_tokens = q->reported_reused ? 0 : q->n_reused;
    out->tokens = s->new_tokens + s->n_new_tokens;
    out->has_logprobs = q->sampling.logprobs >= 0;
    out->drafted = part->drafts;
    out->finish = sequence_advance_all(r, part, out);
    s->draft_accepted += (uint64_t)out->draft_accepted;
    draft_pace_verified(&s->draft_pace, q->draft_from_lookup, part->drafts, out->draft_accepted);
    admission_shrink(s, q);
    admission_publish(s, q);
    if (!q->reported_reused) log_first_token(q);
    q->reported_reused = true;
    if (out->finish == SEQUENCE_GOES_ON) return;
    log_finish(q, out->finish);
    admission_remove_running(s, admission_find_running(s, q->id));
    admission_free_sequence(s, q);
}

// Reports the log-probabilities of prompt tokens in the sequence's rows of the pass.
static void part_report_prompt(const struct pass_results *r, const struct pass_part *part, struct sequence_output *out)
{
    struct sequence *q = part->sequence;
    out->prompt_logprobs = r->pass->host_tokens + r->host_row;
    out->n_prompt_logprobs = part->logprobs;
    out->prompt_logprobs_from = q->next_logprob;
    q->next_logprob += part->logprobs;
}

// Applies the results of one sequence. Returns true if it has an output.
static bool part_apply(struct pass_results *r, const struct pass_part *part, struct sequence_output *out)
{
    struct sequence *q = part->sequence;
    q->n_cached += part->rows;
    admission_publish(r->scheduler, q);
    *out = (struct sequence_output){.id = q->id, .bin = q->bin};
    if (part->logprobs) part_report_prompt(r, part, out);
    r->host_row += part->logprobs;
    bool is_complete = sequence_pending(q) == 0; // the sequence gets a token if no row is pending
    if (is_complete) {
        int host_rows = part->host_rows, sampled_rows = 1 + part->drafts - host_rows;
        part_complete(r, part, out);
        r->host_row += host_rows;
        r->sampled_row += sampled_rows;
    }
    return is_complete || part->logprobs;
}

// The logit rows whose logits the host reads come first (batch_builder.h).
int pass_apply_results(struct scheduler *s, const struct scheduled_pass *pass, const struct forward_result *result)
{
    const struct ragged_batch *batch = &pass->builder.batch;
    struct pass_results r = {s, pass, result, 0, batch->n_logit_rows - batch->n_unread_rows};
    int n_outputs = 0;
    s->n_new_tokens = 0;
    for (int i = 0; i < batch->n_seqs; i++)
        n_outputs += part_apply(&r, &pass->parts[i], &s->outputs[n_outputs]);
    return n_outputs;
}
