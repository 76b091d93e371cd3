// SPDX-License-Identifier: Apache-2.0
#include "router/core/request_selection.h"

#include <stdlib.h>

#include "lib/base/log.h"
#include "lib/base/mem.h"
#include "router/core/availability.h"
#include "router/core/drafting.h"
#include "router/core/request_prompt.h"
#include "router/core/requests.h"
#include "router/core/score_answer.h"
#include "router/core/score_sharing.h"

static void set_rate(struct request *r, double keep_rate, enum rate_reason reason)
{
    r->keep_rate = keep_rate;
    r->rate_reason = reason;
    if (reason == RATE_UNSURE) r->skip = SKIP_UNSURE;
    if (reason == RATE_UNCALIBRATED) r->skip = SKIP_UNCALIBRATED;
}

static void keep_draft(struct request *r, const int32_t *draft, int n)
{
    if (!request_is_drafted(r) || n <= 0) return;
    r->n_draft = n;
    r->draft = mem_copy(draft, (size_t)n * sizeof *draft);
}

// Returns true if the request's earlier turns have rows of their own. This depends on the options and the attached
// nodes, never on the selections in the cache.
static bool is_conversation(const struct core *c, const struct request *r)
{
    const struct prefill *prefill = &r->spec.prefill;
    return r->spec.n_turns && prefill->conversation && !prefill->paper_exact && !r->spec.score_only &&
           !r->spec.want_importance && c->options.selection_bytes && c->scorer;
}

static void keep_rows(struct request *r)
{
    struct conversation *conversation = r->conversation;
    r->kept = conversation->rows;
    r->n_kept_ranges = conversation->n_rows;
    conversation->rows = NULL;
    ledger_conversation_kept(r, conversation->frozen, conversation->recalled);
    conversation_free(conversation);
    r->conversation = NULL;
}

// --- selections that are held

// Returns true if the next selection depends only on this scorer. In a conversation, the selection also depends on the
// rows so far. Another scorer may have chosen these rows before its speculators were replaced.
static bool selection_is_of(const struct request *r, uint64_t scorer)
{
    return scorer && (!r->conversation || r->conversation->scorer == scorer);
}

// Adds the selection to the request. Returns true if it was the selection of the whole prompt, not of an earlier turn.
// The kept tokens are then known.
static bool use_selection(struct core *c, struct request *r, const struct selection *selection)
{
    struct conversation *conversation = r->conversation;
    if (conversation) {
        conversation_add_selection(conversation, selection, request_score_prompt(r).fresh);
        if (conversation->turn < r->spec.n_turns) {
            conversation_add_answer(conversation, &r->spec.turns[conversation->turn]);
            return false;
        }
        keep_rows(r);
    } else {
        r->kept = mem_copy(selection->kept, (size_t)selection->n_kept * sizeof *selection->kept);
        r->n_kept_ranges = selection->n_kept;
    }
    set_rate(r, selection->keep_rate, selection->reason);
    keep_draft(r, selection->draft, selection->n_draft);
    core_request_set_prefix(c, r, r->kept, r->n_kept_ranges);
    return true;
}

// Returns true for a turn whose prompt was not pruned, because it was short and the prefill mode is auto.
static bool turn_was_short(const struct core *c, const struct request *r, const struct score_prompt *prompt)
{
    return prompt->n_tokens < r->spec.n_tokens && r->spec.prefill.mode == PREFILL_AUTO &&
           prompt->n_tokens < c->options.min_tokens;
}

static void set_selection_key(const struct core *c, struct request *r, const struct score_prompt *prompt, bool whole)
{
    int tail_tokens = prefill_tail_tokens(c->options.tail_tokens, prompt->n_tokens);
    r->selection =
        selection_key_make(c->selections, &r->spec, prompt, prompt->before ? &r->selection : NULL, tail_tokens, whole);
}

// Adds the selections of the conversation's next turns for as long as the cache holds them. Returns true if the kept
// tokens are known afterwards.
static bool find_selections(struct core *c, struct request *r)
{
    for (;;) {
        struct score_prompt prompt = request_score_prompt(r);
        bool whole = turn_was_short(c, r, &prompt);
        const struct token_range all = {0, prompt.n_tokens - 1};
        struct selection found = {.kept = &all, .n_kept = 1, .keep_rate = 1};
        set_selection_key(c, r, &prompt, whole);
        if (!whole) {
            if (r->spec.want_importance || !core_rate_holds(c, &r->spec.prefill))
                return false; // the cache does not hold the importance of tokens
            if (!selection_is_of(r, c->scorer)) return false;
            if (!selection_cache_find(c->selections, &r->selection, c->scorer, &found)) return false;
        }
        if (use_selection(c, r, &found)) return true;
    }
}

bool core_request_find_selection(struct core *c, struct request *r)
{
    if (!c->options.selection_bytes) return false;
    if (is_conversation(c, r)) {
        r->conversation = conversation_create(r->spec.n_tokens);
        r->conversation->scorer = c->scorer;
    }
    if (find_selections(c, r)) {
        r->usage.kept_tokens = request_kept_tokens(r);
        return true;
    }
    if (r->conversation) core_request_set_frozen(c, r); // score_plan_make() needs this to decide about a score
    return false;
}

void core_request_reuse_score(struct core *c, struct request *r, int64_t now_us)
{
    ledger_score_reused(&c->ledger, r);
    core_request_ready(c, r, now_us);
}

// --- new scores

static void copy_score(struct core *c, struct request *r, const struct request *scored)
{
    r->kept = mem_copy(scored->kept, (size_t)scored->n_kept_ranges * sizeof *scored->kept);
    r->n_kept_ranges = scored->n_kept_ranges;
    if (r->conversation) ledger_conversation_kept(r, scored->usage.frozen_tokens, scored->usage.recalled_tokens);
    conversation_free(r->conversation);
    r->conversation = NULL;
    set_rate(r, scored->keep_rate, scored->rate_reason);
    keep_draft(r, scored->draft, scored->n_draft);
    core_request_set_prefix(c, r, r->kept, r->n_kept_ranges);
    ledger_score_reused(&c->ledger, r);
}

// Lets the request and then its sharers wait for a worker group. The request's kept tokens are known.
static void ready_with_sharers(struct core *c, struct request *r, int64_t now_us)
{
    for (struct request *sharer = r->sharing.first; sharer; sharer = sharer->sharing.next)
        copy_score(c, sharer, r);
    struct request *next = score_sharing_hand_over(r);
    core_request_ready(c, r, now_us); // may end the request
    while (next) {
        struct request *sharer = next;
        next = score_sharing_hand_over(sharer);
        core_request_ready(c, sharer, now_us);
    }
}

void core_request_scored(struct core *c, struct request *r, const struct score_result *result, int64_t now_us)
{
    const char *error = score_answer_error(c, r, result);
    if (error) {
        log_event(LOG_WARN, "score_failed", LOG_REQUEST(r->number), LOG_FIELD("client_id", r->id),
                  LOG_FIELD("node", r->account.node->hello.node_id), LOG_FIELD("reason", error));
        if (!result->error) c->ops.send_cancel(r->account.node->link, &r->number, 1); // the node may hold the prompt
        core_request_unscorable(c, r, SKIP_LOST, now_us);
        return;
    }
    const uint64_t scorer = r->account.node->scorer;
    struct token_range *kept;
    const struct selection selection = score_answer_selection(c, r, result, &kept);
    ledger_scored(r, result->cached_tokens, now_us);
    if (request_score_prompt(r).n_tokens == r->spec.n_tokens) core_drafting_held(r, r->account.node);
    if (core_rate_holds(c, &r->spec.prefill)) {
        if (r->spec.prefill.quality > 0) ledger_rate_chosen(&c->ledger, &c->view, r, selection.keep_rate, now_us);
        if (selection_is_of(r, scorer)) selection_cache_add(c->selections, &r->selection, scorer, &selection);
    }
    if (!selection_is_of(r, scorer)) r->conversation->scorer = 0;
    bool known = use_selection(c, r, &selection);
    free(kept);
    if (!known && find_selections(c, r)) {
        ledger_score_reused(&c->ledger, r);
        known = true;
    }
    if (!known) {
        core_request_wait_for_score(c, r, now_us);
        return;
    }
    if (r->spec.want_importance)
        r->importance = mem_copy(result->importance, (size_t)r->spec.n_tokens * sizeof *r->importance);
    ready_with_sharers(c, r, now_us);
}
