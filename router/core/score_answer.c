// SPDX-License-Identifier: Apache-2.0
#include "router/core/score_answer.h"

#include <math.h>

#include "lib/base/log.h"
#include "lib/base/mem.h"
#include "router/core/availability.h"

static int64_t range_tokens(const struct token_range *ranges, int n)
{
    int64_t tokens = 0;
    for (int k = 0; k < n; k++)
        tokens += ranges[k].last - ranges[k].first + 1;
    return tokens;
}

// Returns true if `kept` tokens fit the keep budget of this keep rate. Tokens that are always kept may come in
// addition.
static bool rate_keeps(const struct core *c, const struct request *r, double keep_rate, int64_t kept)
{
    const struct score_prompt prompt = request_score_prompt(r);
    int64_t size = r->spec.prefill.chunk_tokens > 0 ? r->spec.prefill.chunk_tokens : 1, n = prompt.n_tokens;
    int64_t budget = prefill_keep_budget((int)((n - 1) / size + 1), keep_rate);
    int64_t beyond = prefill_tail_tokens(c->options.tail_tokens, prompt.n_tokens);
    beyond += range_tokens(prompt.pinned, prompt.n_pinned);
    return kept > (budget - 1) * size && kept <= (budget < 2 ? 2 : budget) * size + beyond;
}

// Returns why the keep rate that the speculator chose is invalid, or NULL if it is valid.
static const char *rate_error(const struct core *c, const struct request *r, const struct score_result *result)
{
    int64_t kept = range_tokens(result->kept, result->n_kept);
    if (!(result->keep_rate > 0 && result->keep_rate <= 1)) return "the chosen keep rate is not over 0 and at most 1";
    if (result->keep_rate < r->spec.prefill.min_keep_rate) return "the chosen keep rate is below the request's bound";
    if (result->reason == RATE_FIXED) return "no reason for the chosen keep rate";
    if (result->reason != RATE_QUALITY && result->keep_rate < 1) return "a keep rate below 1 with a reason to keep all";
    if (result->keep_rate < 1 ? !rate_keeps(c, r, result->keep_rate, kept) : kept != request_score_prompt(r).n_tokens)
        return "the kept ranges do not fit the chosen keep rate";
    return NULL;
}

const char *score_answer_error(const struct core *c, const struct request *r, const struct score_result *result)
{
    if (result->error) return result->error;
    if (result->n_kept < 1) return "no kept ranges";
    int32_t next = 0;
    for (int k = 0; k < result->n_kept; k++) {
        const struct token_range *range = &result->kept[k];
        if (range->first < next || range->last < range->first) return "kept ranges are not ascending";
        if (range->last >= request_score_prompt(r).n_tokens) return "a kept range is outside the prompt";
        next = range->last + 1;
    }
    const char *wrong_rate = r->spec.prefill.quality > 0 ? rate_error(c, r, result) : NULL;
    if (wrong_rate || !r->spec.want_importance) return wrong_rate;
    if (!result->importance || result->n_importance != r->spec.n_tokens) return "not one importance per token";
    for (int i = 0; i < r->spec.n_tokens; i++) {
        if (!isfinite(result->importance[i])) return "an importance is not finite";
    }
    return NULL;
}

// Copies the ranges and joins ranges that touch. Returns their number.
static int copy_kept(const struct token_range *kept, int n, struct token_range **copy_p)
{
    struct token_range *copy = mem_alloc_array((size_t)n, sizeof *copy);
    int n_copy = 0;
    for (int k = 0; k < n; k++) {
        if (n_copy && copy[n_copy - 1].last + 1 == kept[k].first)
            copy[n_copy - 1].last = kept[k].last;
        else
            copy[n_copy++] = kept[k];
    }
    *copy_p = copy;
    return n_copy;
}

// Returns why the draft is invalid, or NULL if it is valid.
static const char *draft_error(const struct core *c, const struct score_result *result)
{
    if (result->n_draft > LOOK_AHEAD_MAX) return "the speculator sent a draft of more tokens than a look-ahead has";
    for (int i = 0; i < result->n_draft; i++) {
        if (result->draft[i] < 0 || result->draft[i] >= c->options.vocab_size)
            return "the speculator sent a draft with a token outside the vocabulary";
    }
    return NULL;
}

// Returns the number of draft tokens. An invalid draft counts as no draft, because the score is useful without a draft.
static int usable_draft(const struct core *c, const struct request *r, const struct score_result *result)
{
    const char *error = draft_error(c, result);
    if (!error) return result->n_draft > 0 ? result->n_draft : 0;
    log_event(LOG_WARN, "draft_refused", LOG_REQUEST(r->number), LOG_FIELD("node", r->account.node->hello.node_id),
              LOG_FIELD("reason", error));
    return 0;
}

struct selection score_answer_selection(const struct core *c, const struct request *r,
                                        const struct score_result *result, struct token_range **kept_p)
{
    bool chosen = r->spec.prefill.quality > 0;
    struct selection selection = {.draft = result->draft, .n_draft = usable_draft(c, r, result)};
    const struct token_range all = {0, request_score_prompt(r).n_tokens - 1};
    if (core_rate_holds(c, &r->spec.prefill)) {
        selection.n_kept = copy_kept(result->kept, result->n_kept, kept_p);
        selection.keep_rate = chosen ? result->keep_rate : r->spec.prefill.keep_rate;
        selection.reason = chosen ? result->reason : RATE_FIXED;
    } else {
        selection.n_kept = copy_kept(&all, 1, kept_p);
        selection.keep_rate = 1;
        selection.reason = RATE_UNCALIBRATED;
    }
    selection.kept = *kept_p;
    return selection;
}
