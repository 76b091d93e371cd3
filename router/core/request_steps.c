// SPDX-License-Identifier: Apache-2.0
#include "router/core/request_steps.h"

#include <string.h>

#include "lib/base/log.h"
#include "lib/base/mem.h"
#include "router/core/drafting.h"
#include "router/core/requests.h"

#define LOGPROB_MAX 0.01F // rounding may yield a little more than 0

// Returns true if the log-probabilities are numbers for tokens of the vocabulary. A token that cannot be sampled has
// minus infinity.
static bool logprobs_are_valid(const struct core *c, const struct token_logprob *logprobs, int n)
{
    for (int i = 0; i < n; i++) {
        const struct token_logprob *l = &logprobs[i];
        if (!(l->logprob <= LOGPROB_MAX) || l->token < 0 || l->token >= c->options.vocab_size || l->rank < 0)
            return false;
        for (int t = 0; t < l->n_top; t++)
            if (!(l->top_logprob[t] <= LOGPROB_MAX) || l->top_token[t] < 0 || l->top_token[t] >= c->options.vocab_size)
                return false;
    }
    return true;
}

// Returns why the worker group's tokens are invalid, or NULL if they are valid.
static const char *step_error(const struct core *c, const struct request *r, const struct sequence_result *result)
{
    if (result->n_tokens < 0 || result->n_tokens > r->spec.sampling.max_tokens - r->usage.completion_tokens) {
        return "the worker group sent more tokens than max_tokens";
    }
    for (int i = 0; i < result->n_tokens; i++) {
        if (result->tokens[i] < 0 || result->tokens[i] >= c->options.vocab_size) {
            return "the worker group sent a token outside the vocabulary";
        }
    }
    int n = result->logprobs && r->spec.sampling.logprobs >= 0 ? result->n_tokens : 0;
    if (!logprobs_are_valid(c, result->logprobs, n)) return "the worker group sent impossible log-probabilities";
    for (int i = 0; i < n; i++)
        if (result->logprobs[i].token != result->tokens[i])
            return "the worker group sent log-probabilities of other tokens";
    return NULL;
}

// Returns why the log-probabilities of the prompt are invalid, or NULL if they are valid. They must come in order, and
// must be complete before the first new token comes.
static const char *prompt_logprobs_error(const struct core *c, const struct request *r,
                                         const struct sequence_result *result)
{
    bool asked = r->spec.sampling.prompt_logprobs >= 0;
    int n = result->n_prompt_logprobs, next = 1 + r->n_prompt_logprobs, left = asked ? r->spec.n_tokens - next : 0;
    bool goes_on = !result->n_tokens && (!result->finished || result->reason == FINISH_REASON_ERROR);
    if (n < 0 || n > left || (n && result->prompt_logprobs_from != next))
        return "the worker group sent log-probabilities of the wrong prompt tokens";
    if (n < left && !goes_on) return "the worker group sent a token before all log-probabilities of the prompt";
    if (!logprobs_are_valid(c, result->prompt_logprobs, n)) return "the worker group sent impossible log-probabilities";
    for (int i = 0; i < n; i++)
        if (result->prompt_logprobs[i].token != r->spec.tokens[next + i])
            return "the worker group sent log-probabilities of another prompt";
    return NULL;
}

static void stream_prompt_logprobs(struct core *c, struct request *r, const struct sequence_result *result)
{
    int n = result->n_prompt_logprobs;
    r->n_prompt_logprobs += n;
    ledger_prompt_logprobs_received(&c->ledger, r, n);
    if (r->sink.prompt_logprobs) r->sink.prompt_logprobs(r->sink.user, result->prompt_logprobs, n);
}

static void append_output(struct request *r, const int32_t *tokens, int n)
{
    while (r->output_capacity < r->usage.completion_tokens + n) {
        r->output_capacity = r->output_capacity ? 2 * r->output_capacity : 64;
        r->output = mem_resize(r->output, (size_t)r->output_capacity, sizeof *r->output);
    }
    memcpy(r->output + r->usage.completion_tokens, tokens, (size_t)n * sizeof *tokens);
}

// Streams the tokens to the client. Returns true if a stop string has ended the text, or the client wants no token.
// *n_used_p is the number of tokens that are part of the answer.
static bool stream_tokens(struct core *c, struct request *r, const struct sequence_result *result, int *n_used_p,
                          int64_t now_us)
{
    int n = result->n_tokens, n_used = n;
    append_output(r, result->tokens, n);
    ledger_tokens_received(&c->ledger, r, n, now_us);
    if (r->state == REQUEST_PREFILL) request_set_state(r, REQUEST_DECODE);
    // A node may send log-probabilities that nobody asked for.
    const struct token_logprob *logprobs = r->spec.sampling.logprobs >= 0 ? result->logprobs : NULL;
    bool stopped = r->spec.sampling.no_output;
    if (stopped)
        n_used = 0;
    else
        stopped = r->sink.tokens(r->sink.user, result->tokens, logprobs, n, &n_used);
    if (!stopped || n_used < 0 || n_used > n) n_used = n;
    ledger_tokens_used(&c->ledger, r, n, n_used);
    *n_used_p = n_used;
    return stopped;
}

// Ends the request with its whole answer. If the client wants no token (max_tokens 0), the reason is always "length":
// the token that was computed is not part of the answer, so it cannot have ended the answer.
static void answer_finished(struct core *c, struct request *r, enum finish_reason reason, bool release, int64_t now_us)
{
    if (r->spec.sampling.no_output) reason = FINISH_REASON_LENGTH;
    core_request_finish(c, r, reason, STATUS_OK, "", release, now_us);
}

// Ends the request, because the worker group says that the sequence has ended.
static void sequence_finished(struct core *c, struct request *r, const struct sequence_result *result, int64_t now_us)
{
    r->ended_by_token = result->reason == FINISH_REASON_STOP;
    if (result->reason == FINISH_REASON_STOP || result->reason == FINISH_REASON_LENGTH) {
        answer_finished(c, r, result->reason, false, now_us);
        return;
    }
    const char *error = result->error ? result->error : "no reason given";
    enum status status = result->grammar_failed && r->spec.sampling.grammar.kind != GRAMMAR_NONE
                             ? status_fail(STATUS_INVALID, "%s", error)
                             : status_fail(STATUS_INTERNAL, "the worker group failed: %s", error);
    core_request_finish(c, r, FINISH_REASON_ERROR, status, status_message(), false, now_us);
}

void core_request_step(struct core *c, struct request *r, const struct sequence_result *result, int64_t now_us)
{
    const char *error = step_error(c, r, result);
    if (!error) error = prompt_logprobs_error(c, r, result);
    if (error) {
        log_event(LOG_WARN, "step_refused", LOG_REQUEST(r->number), LOG_FIELD("client_id", r->id),
                  LOG_FIELD("node", r->account.node->hello.node_id), LOG_FIELD("reason", error));
        core_request_finish(c, r, FINISH_REASON_ERROR, STATUS_INTERNAL, error, !result->finished, now_us);
        return;
    }
    if (result->n_prompt_logprobs) stream_prompt_logprobs(c, r, result);
    ledger_prefill_cached(r, result->cached_tokens);
    if (r->account.bin && result->n_tokens) ledger_prompt_computed(r, result->cached_tokens, now_us);
    int n_used = 0;
    bool stopped = result->n_tokens && stream_tokens(c, r, result, &n_used, now_us);
    ledger_draft_verified(&c->ledger, r, result, n_used);
    if (stopped) {
        answer_finished(c, r, FINISH_REASON_STOP, !result->finished, now_us);
    } else if (result->finished) {
        sequence_finished(c, r, result, now_us);
    } else if (r->usage.completion_tokens == r->spec.sampling.max_tokens) {
        answer_finished(c, r, FINISH_REASON_LENGTH, true, now_us);
    } else if (result->n_tokens) {
        ledger_kv_blocks_updated(r);
        core_request_retime(c, r);
        core_drafting_advanced(c, r);
    }
}
