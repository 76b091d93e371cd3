// SPDX-License-Identifier: Apache-2.0
#include "router/core/requests.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/log.h"
#include "lib/base/mem.h"
#include "lib/base/utf8.h"
#include "router/core/availability.h"
#include "router/core/drafting.h"
#include "router/core/score_sharing.h"
#include "router/sched/estimate.h"

// Nodes lost in a row while they had the request, without one new token. From LOSSES_ALONE on the request may be what
// ends them, so it runs alone: the loss of that node, the LOSSES_MAXth, is the request's doing.
enum { LOSSES_ALONE = 2, LOSSES_MAX };

// A speculator may take this many times the expected time for a score, and never longer than a day.
#define SCORE_TIMES  4.0
#define SCORE_US_MAX 86.4e9

void core_request_set_prefix(const struct core *c, struct request *r, const struct token_range *kept, int n_kept)
{
    if (r->spec.sampling.prompt_logprobs >= 0) return; // its worker group computes every row: there is nothing to share
    free(r->sched.prefix);
    r->sched.n_prefix = prefix_chain_make(&c->view.options.hash_key, r->spec.prefix_salt, r->spec.tokens, kept, n_kept,
                                          &r->sched.prefix);
}

// --- timers

static void sooner(int64_t *due_us, int64_t at_us)
{
    if (at_us < *due_us) *due_us = at_us;
}

static bool lacks_worker(const struct core *c, const struct request *r)
{
    return r->state == REQUEST_READY && !sched_pool_can_hold(&c->view, NODE_WORKER, &r->sched);
}

// Under the other policies requests are packed by arrival and never become overdue.
static bool may_become_overdue(const struct core *c, const struct request *r)
{
    return r->sched.list && !r->account.node && !r->sched.overdue && c->options.policy == BIN_DATASET;
}

void core_request_retime(struct core *c, struct request *r)
{
    int64_t at_us = INT64_MAX;
    if (r->usage.completion_tokens == 0) sooner(&at_us, r->spec.ttft_deadline_us);
    if (r->state == REQUEST_SCORING) sooner(&at_us, r->score_deadline_us);
    if (may_become_overdue(c, r)) sooner(&at_us, r->sched.due_us);
    if (lacks_worker(c, r)) sooner(&at_us, core_grace_end_us(c));
    request_timers_set(&c->timers, r, at_us);
}

// --- waiting sets and nodes

static enum node_role waiting_role(const struct request *r)
{
    return r->state == REQUEST_SCORING ? NODE_SPECULATOR : NODE_WORKER;
}

// Off its node, or out of its waiting set, without a change of state.
static void request_leave(struct core *c, struct request *r, int64_t now_us)
{
    ledger_charge_time(r, now_us);
    if (r->account.node) {
        ledger_left_node(&c->ledger, r);
    } else if (r->sched.list) {
        waiting_set_remove(&c->waiting[waiting_role(r)], &r->sched);
    }
    if (c->view.reservation.request == &r->sched) core_clear_reservation(c);
}

static void request_wait(struct core *c, struct request *r)
{
    enum node_role role = waiting_role(r);
    bool returned = r->account.losses; // it was on a node already
    int64_t due_us = estimate_due_us(&c->view, role, &r->sched, r->account.charged_us);
    waiting_set_add(&c->waiting[role], &r->sched, due_us, returned);
    core_request_retime(c, r);
}

void core_request_admit(struct core *c, struct request *r, const char *tenant)
{
    request_table_add(&c->table, r);
    ledger_admitted(&c->ledger, r, tenant);
}

void core_request_place(struct core *c, struct request *r, struct core_node *node, struct core_bin *bin, int64_t now_us)
{
    request_leave(c, r, now_us);
    if (node->sched.role == NODE_WORKER) request_set_state(r, REQUEST_PACKED);
    ledger_placed(&c->ledger, r, node, bin);
    core_request_retime(c, r);
}

// When the speculator should have scored the request, which is on it: the time limit, and several times what the
// speculator is expected to take. Without a cost model each of its passes may take as long as the time limit.
static int64_t score_deadline_us(const struct core *c, const struct request *r, int64_t now_us)
{
    const struct sched_node *node = &r->account.node->sched;
    double limit_us = (double)c->options.score_timeout_us;
    double expected_us = estimate_score_us(&c->view, node, &r->sched);
    double passes = ceil((double)node->account.bin_tokens / node->limits.token_budget);
    double more_us = isfinite(expected_us) ? SCORE_TIMES * expected_us : (passes - 1) * limit_us;
    return now_us + (int64_t)fmin(limit_us + more_us, SCORE_US_MAX);
}

void core_request_dispatched(struct core *c, struct request *r, int64_t now_us)
{
    if (r->state == REQUEST_SCORING) { // until the speculator answers
        r->score_deadline_us = score_deadline_us(c, r, now_us);
        core_request_retime(c, r);
        return;
    }
    ledger_charge_time(r, now_us);
    request_set_state(r, REQUEST_PREFILL);
}

// --- the end

static void log_end(const struct request *r, enum finish_reason reason, enum status status)
{
    const struct request_usage *u = &r->usage;
    const struct request_timing *t = &r->timing;
    const struct log_field fields[] = {
        LOG_REQUEST(r->number),
        LOG_FIELD("client_id", r->id),
        LOG_FIELD("finish", finish_reason_name(reason)),
        LOG_FIELD("status", status_name(status)),
        LOG_FIELD("tokens", u->prompt_tokens),
        LOG_FIELD("scored", u->scored_tokens),
        LOG_FIELD("score_cached", u->score_cached_tokens),
        LOG_FIELD("kept", u->kept_tokens),
        LOG_FIELD("frozen", u->frozen_tokens),
        LOG_FIELD("recalled", u->recalled_tokens),
        LOG_FIELD("cached", u->cached_tokens),
        LOG_FIELD("skip", skip_reason_name(r->skip)),
        LOG_FIELD("keep_rate", r->keep_rate),
        LOG_FIELD("completion", u->completion_tokens),
        LOG_FIELD("drafted", u->draft_tokens),
        LOG_FIELD("accepted", u->draft_accepted_tokens),
        LOG_FIELD("replays", u->replays),
        LOG_MS("queue_ms", t->queue_us),
        LOG_MS("score_ms", t->score_us),
        LOG_MS("pack_wait_ms", t->pack_wait_us),
        LOG_MS("prefill_ms", t->prefill_us),
        LOG_MS("ttft_ms", t->ttft_us),
        LOG_MS("total_ms", t->total_us),
        LOG_FIELD("trace", r->trace ? r->trace->trace_text : NULL), // left out of untraced requests
    };
    log_write(LOG_INFO, "request_done", fields, sizeof fields / sizeof *fields - !r->trace);
}

static enum request_state end_state(enum finish_reason reason)
{
    switch (reason) {
    case FINISH_REASON_CANCELLED: return REQUEST_CANCELLED;
    case FINISH_REASON_ERROR: return REQUEST_FAILED;
    default: return REQUEST_DONE;
    }
}

void core_request_finish(struct core *c, struct request *r, enum finish_reason reason, enum status status,
                         const char *message, bool tell_node, int64_t now_us)
{
    // `message` may be this thread's status_message(), which the sink may overwrite.
    char text[512];
    utf8_format(text, sizeof text, "%s", message);
    struct core_node *node = r->account.node;
    if (node && tell_node) c->ops.send_cancel(node->link, &r->number, 1);
    core_drafting_ended(c, r);
    request_leave(c, r, now_us);
    score_sharing_leave(r);
    struct request *next = score_sharing_hand_over(r);
    if (next) core_request_wait_for_score(c, next, now_us);
    request_timers_set(&c->timers, r, INT64_MAX);
    request_table_remove(&c->table, r);
    waiting_set_release(&r->sched);
    ledger_ended(&c->ledger, r, reason, status, now_us);
    request_set_state(r, end_state(reason));
    log_end(r, reason, status);
    r->sink.done(r->sink.user, r, reason, status, text);
    request_free(r);
}

static void request_fail(struct core *c, struct request *r, enum status status, const char *message, int64_t now_us)
{
    core_request_finish(c, r, FINISH_REASON_ERROR, status, message, true, now_us);
}

// --- scoring

// Turns whose selections are added already have no part in what is still to be scored and computed.
static void set_frozen(struct core *c, struct request *r)
{
    const struct conversation *conversation = r->conversation;
    struct frozen_rows *frozen = &r->sched.frozen;
    free(frozen->prefix);
    *frozen = (struct frozen_rows){.rows = conversation->tokens,
                                   .end = request_score_prompt(r).fresh,
                                   .further_scores = r->spec.n_turns - conversation->turn};
    for (int t = conversation->turn; t < r->spec.n_turns; t++)
        frozen->answers += r->spec.turns[t].answer_end - r->spec.turns[t].end;
    frozen->selected_of = r->spec.n_tokens - frozen->answers - frozen->rows;
    if (request_pins_rows(r)) { // the next budget, and those of the turns behind it
        const struct score_prompt prompt = request_score_prompt(r);
        frozen->selected_of = request_budget_tokens(r) + r->spec.n_tokens - prompt.n_tokens - frozen->answers;
    }
    frozen->n_prefix = prefix_chain_make(&c->view.options.hash_key, r->spec.prefix_salt, r->spec.tokens,
                                         conversation->rows, conversation->n_rows, &frozen->prefix);
}

// What the speculator is sent next.
static void set_score_prompt(struct core *c, struct request *r)
{
    if (!r->conversation) return;
    const struct score_prompt prompt = request_score_prompt(r);
    set_frozen(c, r);
    r->sched.score_tokens = prompt.n_tokens;
    r->sched.score_ranges = prompt.n_pinned + (request_pins_rows(r) ? r->conversation->n_rows : 0);
    core_request_set_prefix(c, r, &(struct token_range){0, prompt.n_tokens - 1}, 1);
}

void core_request_wait_for_score(struct core *c, struct request *r, int64_t now_us)
{
    request_leave(c, r, now_us);
    set_score_prompt(c, r);
    if (r->state != REQUEST_SCORING) request_set_state(r, REQUEST_SCORING);
    r->score_deadline_us = now_us + c->options.score_timeout_us;
    if (sched_pool_can_hold(&c->view, NODE_SPECULATOR, &r->sched))
        request_wait(c, r);
    else // for the next turn of a conversation: the speculators have gone since the last one
        core_request_unscorable(c, r, c->open_nodes[NODE_SPECULATOR] ? SKIP_TOO_LONG : SKIP_NO_NODE, now_us);
}

void core_request_share_score(struct core *c, struct request *r, struct request *scored)
{
    request_set_state(r, REQUEST_SCORING);
    r->score_deadline_us = INT64_MAX; // that of the other applies
    score_sharing_join(scored, r);
    core_request_retime(c, r);
}

// Its kept ranges are known: it joins the waiting set in front of the worker groups.
static void request_ready(struct core *c, struct request *r, int64_t now_us)
{
    request_leave(c, r, now_us);
    request_set_state(r, REQUEST_READY);
    ledger_ready(r);
    if (r->spec.score_only) {
        core_request_finish(c, r, FINISH_REASON_STOP, STATUS_OK, "", false, now_us);
        return;
    }
    ledger_speculation_decided(&c->ledger, r);
    // Contexts were checked on arrival, KV blocks can be checked only now. A context that is missing may come back.
    int64_t entries = (int64_t)r->spec.n_tokens + r->spec.sampling.max_tokens;
    if (!sched_pool_can_hold(&c->view, NODE_WORKER, &r->sched) &&
        entries <= sched_pool_context(&c->view, NODE_WORKER)) {
        status_fail(STATUS_OUT_OF_RANGE,
                    "%d kept prompt tokens and max_tokens %d need more KV blocks than any attached worker group has: "
                    "lower max_tokens or the keep rate",
                    r->usage.kept_tokens, r->spec.sampling.max_tokens);
        request_fail(c, r, STATUS_OUT_OF_RANGE, status_message(), now_us);
        return;
    }
    request_wait(c, r);
}

static void request_keep_all(struct core *c, struct request *r, enum skip_reason reason, int64_t now_us)
{
    if (r->conversation) core_request_set_prefix(c, r, &(struct token_range){0, r->spec.n_tokens - 1}, 1);
    conversation_free(r->conversation);
    r->conversation = NULL;
    r->skip = reason;
    r->keep_rate = 1;
    r->kept = mem_alloc(sizeof *r->kept);
    r->kept[0] = (struct token_range){0, r->spec.n_tokens - 1};
    r->n_kept_ranges = 1;
    request_ready(c, r, now_us);
}

static enum status unscorable_status(const struct core *c, const struct request *r, enum skip_reason reason)
{
    switch (reason) {
    case SKIP_TOO_LONG:
        return status_fail(
            STATUS_OUT_OF_RANGE, "the prompt of %d tokens is over the context of every speculator: at most %d",
            r->spec.n_tokens, sched_pool_context(&c->view, NODE_SPECULATOR) - r->spec.prefill.look_ahead + 1);
    case SKIP_TIMEOUT: return status_fail(STATUS_UNAVAILABLE, "no speculator answered in time: try again later");
    case SKIP_LOST:
        return status_fail(STATUS_UNAVAILABLE, "the speculator was lost or gave no usable answer: try again");
    default: return core_fail_no_node(c, NODE_SPECULATOR);
    }
}

// Whether the request ends without a score; the others then keep the whole prompt.
static bool score_is_required(const struct request *r)
{
    return r->spec.score_only || r->spec.prefill.mode == PREFILL_REQUIRED;
}

void core_request_unscorable(struct core *c, struct request *r, enum skip_reason reason, int64_t now_us)
{
    for (struct request *sharer; (sharer = score_sharing_take(r));)
        core_request_unscorable(c, sharer, reason, now_us);
    request_leave(c, r, now_us); // first, so that a speculator which gave it up is not sent a cancel
    bool whole_was_asked_for = reason == SKIP_OFF || reason == SKIP_KEEP_ALL || reason == SKIP_UNCALIBRATED;
    if (score_is_required(r) && !whole_was_asked_for) {
        enum status status = unscorable_status(c, r, reason);
        request_fail(c, r, status, status_message(), now_us);
    } else {
        request_keep_all(c, r, reason, now_us);
    }
}

void core_request_lost_at_speculator(struct core *c, struct request *r, int64_t now_us)
{
    bool again = score_is_required(r) && r->account.losses + 1 < LOSSES_ALONE;
    if (again && sched_pool_can_hold(&c->view, NODE_SPECULATOR, &r->sched)) {
        ledger_lost_at_speculator(r); // another speculator can still answer
        core_request_wait_for_score(c, r, now_us);
    } else {
        core_request_unscorable(c, r, SKIP_LOST, now_us);
    }
}

static void set_rate(struct request *r, double keep_rate, enum rate_reason reason)
{
    r->keep_rate = keep_rate;
    r->rate_reason = reason;
    if (reason == RATE_UNSURE) r->skip = SKIP_UNSURE;
    if (reason == RATE_UNCALIBRATED) r->skip = SKIP_UNCALIBRATED;
}

// --- selections that are reused

// A rate that was chosen for a quality holds while the calibration does: it may be for another main model, or may have
// come with a speculator that attached since.
static bool rate_holds(const struct core *c, const struct request *r)
{
    return r->spec.prefill.quality == 0 || core_quality_applies(c, &r->spec.prefill);
}

static void keep_draft(struct request *r, const int32_t *draft, int n)
{
    if (!request_is_drafted(r) || n <= 0) return;
    r->n_draft = n;
    r->draft = mem_copy(draft, (size_t)n * sizeof *draft);
}

// Whether its earlier turns have rows of their own: decided by options and by what is attached, never by what is held.
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

// Whether the selection that is looked up or scored next is one of this scorer alone: in a conversation it depends on
// the rows so far, which another one may have chosen before speculators were replaced.
static bool selection_is_of(const struct request *r, uint64_t scorer)
{
    return scorer && (!r->conversation || r->conversation->scorer == scorer);
}

// True: the selection was that of the whole prompt, and its kept tokens are known.
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

// A turn that auto did not prune, since its prompt was short.
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

// Uses the selections that are held, from the next one on, up to the first that is not.
static bool find_selections(struct core *c, struct request *r)
{
    for (;;) {
        struct score_prompt prompt = request_score_prompt(r);
        bool whole = turn_was_short(c, r, &prompt);
        const struct token_range all = {0, prompt.n_tokens - 1};
        struct selection found = {.kept = &all, .n_kept = 1, .keep_rate = 1};
        set_selection_key(c, r, &prompt, whole);
        if (!whole) {
            if (r->spec.want_importance || !rate_holds(c, r)) return false; // importance is not held
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
    if (r->conversation) set_frozen(c, r); // for the decision whether it is scored
    return false;
}

void core_request_reuse_score(struct core *c, struct request *r, int64_t now_us)
{
    ledger_score_reused(&c->ledger, r);
    request_ready(c, r, now_us);
}

static void take_score_of(struct core *c, struct request *r, const struct request *scored)
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

// The request, whose kept tokens are known, and then its sharers go to the worker groups.
static void ready_with_sharers(struct core *c, struct request *r, int64_t now_us)
{
    for (struct request *sharer = r->sharing.first; sharer; sharer = sharer->sharing.next)
        take_score_of(c, sharer, r);
    struct request *next = score_sharing_hand_over(r);
    request_ready(c, r, now_us); // may end it
    while (next) {
        struct request *sharer = next;
        next = score_sharing_hand_over(sharer);
        request_ready(c, sharer, now_us);
    }
}

// --- the answer of a speculator

static int64_t range_tokens(const struct token_range *ranges, int n)
{
    int64_t tokens = 0;
    for (int k = 0; k < n; k++)
        tokens += ranges[k].last - ranges[k].first + 1;
    return tokens;
}

// Whether a selection by the keep rate may keep this many tokens: the budget, and what is kept beyond it.
static bool rate_keeps(const struct core *c, const struct request *r, double keep_rate, int64_t kept)
{
    const struct score_prompt prompt = request_score_prompt(r);
    int64_t size = r->spec.prefill.chunk_tokens > 0 ? r->spec.prefill.chunk_tokens : 1, n = prompt.n_tokens;
    int64_t budget = prefill_keep_budget((int)((n - 1) / size + 1), keep_rate);
    int64_t beyond = prefill_tail_tokens(c->options.tail_tokens, prompt.n_tokens);
    beyond += range_tokens(prompt.pinned, prompt.n_pinned);
    return kept > (budget - 1) * size && kept <= (budget < 2 ? 2 : budget) * size + beyond;
}

// NULL when the keep rate that the speculator chose can be used, else what is wrong with it.
static const char *rate_error(const struct core *c, const struct request *r, const struct score_result *result)
{
    int64_t kept = range_tokens(result->kept, result->n_kept);
    if (!(result->keep_rate > 0 && result->keep_rate <= 1)) return "the chosen keep rate is not over 0 and at most 1";
    if (result->reason == RATE_FIXED) return "no reason for the chosen keep rate";
    if (result->reason != RATE_QUALITY && result->keep_rate < 1) return "a keep rate below 1 with a reason to keep all";
    if (result->keep_rate < 1 ? !rate_keeps(c, r, result->keep_rate, kept) : kept != request_score_prompt(r).n_tokens)
        return "the kept ranges do not fit the chosen keep rate";
    return NULL;
}

// NULL when the speculator's answer can be used, else what is wrong with it.
static const char *score_error(const struct core *c, const struct request *r, const struct score_result *result)
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

// Ranges that touch become one. Returns their number.
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

// NULL when the draft can be used, else what is wrong with it.
static const char *draft_error(const struct core *c, const struct score_result *result)
{
    if (result->n_draft > LOOK_AHEAD_MAX) return "the speculator sent a draft of more tokens than a look-ahead has";
    for (int i = 0; i < result->n_draft; i++) {
        if (result->draft[i] < 0 || result->draft[i] >= c->options.vocab_size)
            return "the speculator sent a draft with a token outside the vocabulary";
    }
    return NULL;
}

// Tokens of the draft. A wrong draft is left out: the score is of use without it.
static int usable_draft(const struct core *c, const struct request *r, const struct score_result *result)
{
    const char *error = draft_error(c, result);
    if (!error) return result->n_draft > 0 ? result->n_draft : 0;
    log_event(LOG_WARN, "draft_refused", LOG_REQUEST(r->number), LOG_FIELD("node", r->account.node->hello.node_id),
              LOG_FIELD("reason", error));
    return 0;
}

// What the speculator selected of the prompt, borrowed but for `kept_p`. All tokens if the rate does not hold any more.
static struct selection selection_of(const struct core *c, const struct request *r, const struct score_result *result,
                                     struct token_range **kept_p)
{
    bool chosen = r->spec.prefill.quality > 0;
    struct selection selection = {.draft = result->draft, .n_draft = usable_draft(c, r, result)};
    const struct token_range all = {0, request_score_prompt(r).n_tokens - 1};
    if (rate_holds(c, r)) {
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

void core_request_scored(struct core *c, struct request *r, const struct score_result *result, int64_t now_us)
{
    const char *error = score_error(c, r, result);
    if (error) {
        log_event(LOG_WARN, "score_failed", LOG_REQUEST(r->number), LOG_FIELD("client_id", r->id),
                  LOG_FIELD("node", r->account.node->hello.node_id), LOG_FIELD("reason", error));
        if (!result->error) c->ops.send_cancel(r->account.node->link, &r->number, 1); // it may hold the prompt
        core_request_unscorable(c, r, SKIP_LOST, now_us);
        return;
    }
    const uint64_t scorer = r->account.node->scorer;
    struct token_range *kept;
    const struct selection selection = selection_of(c, r, result, &kept);
    ledger_scored(r, result->cached_tokens, now_us);
    if (request_score_prompt(r).n_tokens == r->spec.n_tokens) core_drafting_held(r, r->account.node);
    if (rate_holds(c, r)) {
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

// --- on a worker group

void core_request_replay(struct core *c, struct request *r, enum node_loss loss, int64_t now_us)
{
    request_leave(c, r, now_us);
    request_set_state(r, REQUEST_READY);
    ledger_replayed(&c->ledger, r, loss);
    // Tokens are left to generate: core_request_step() ends a request with its last one.
    assert(r->usage.completion_tokens < r->spec.sampling.max_tokens);
    if (r->account.losses >= LOSSES_MAX) {
        // Not UNAVAILABLE: clients would send it again and end further groups.
        status_fail(STATUS_INTERNAL,
                    "%d worker groups in a row were lost while they ran this request, the last one while it ran alone: "
                    "the request itself may be the cause",
                    r->account.losses);
        request_fail(c, r, STATUS_INTERNAL, status_message(), now_us);
    } else {
        r->sched.runs_alone = r->account.losses >= LOSSES_ALONE && c->options.policy == BIN_DATASET;
        request_wait(c, r);
    }
}

// NULL when the worker group's tokens can be used, else what is wrong with them.
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
    return NULL;
}

// Likewise. They come in order and are complete before the first new token.
static const char *prompt_logprobs_error(const struct request *r, const struct sequence_result *result)
{
    bool asked = r->spec.sampling.prompt_logprobs >= 0;
    int n = result->n_prompt_logprobs, next = 1 + r->n_prompt_logprobs, left = asked ? r->spec.n_tokens - next : 0;
    bool goes_on = !result->n_tokens && (!result->finished || result->reason == FINISH_REASON_ERROR);
    if (n < 0 || n > left || (n && result->prompt_logprobs_from != next))
        return "the worker group sent log-probabilities of prompt tokens that are not the next ones";
    if (n < left && !goes_on) return "the worker group sent a token before all log-probabilities of the prompt";
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

// Streams the tokens to the client; true when a stop string ended the text. *n_used_p: the tokens up to its end.
static bool stream_tokens(struct core *c, struct request *r, const struct sequence_result *result, int *n_used_p,
                          int64_t now_us)
{
    int n = result->n_tokens, n_used = n;
    append_output(r, result->tokens, n);
    ledger_tokens_received(&c->ledger, r, n, now_us);
    if (r->state == REQUEST_PREFILL) request_set_state(r, REQUEST_DECODE);
    bool stopped = r->sink.tokens(r->sink.user, result->tokens, result->logprobs, n, &n_used);
    if (!stopped || n_used < 0 || n_used > n) n_used = n;
    ledger_tokens_used(&c->ledger, r, n, n_used);
    *n_used_p = n_used;
    return stopped;
}

// The worker group says that the sequence has ended.
static void sequence_finished(struct core *c, struct request *r, const struct sequence_result *result, int64_t now_us)
{
    if (result->reason == FINISH_REASON_STOP || result->reason == FINISH_REASON_LENGTH) {
        core_request_finish(c, r, result->reason, STATUS_OK, "", false, now_us);
        return;
    }
    status_fail(STATUS_INTERNAL, "the worker group failed: %s", result->error ? result->error : "no reason given");
    core_request_finish(c, r, FINISH_REASON_ERROR, STATUS_INTERNAL, status_message(), false, now_us);
}

void core_request_step(struct core *c, struct request *r, const struct sequence_result *result, int64_t now_us)
{
    const char *error = step_error(c, r, result);
    if (!error) error = prompt_logprobs_error(r, result);
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
        core_request_finish(c, r, FINISH_REASON_STOP, STATUS_OK, "", !result->finished, now_us);
    } else if (result->finished) {
        sequence_finished(c, r, result, now_us);
    } else if (r->usage.completion_tokens == r->spec.sampling.max_tokens) {
        core_request_finish(c, r, FINISH_REASON_LENGTH, STATUS_OK, "", true, now_us);
    } else if (result->n_tokens) {
        ledger_kv_blocks_updated(r);
        core_request_retime(c, r);
        core_drafting_advanced(c, r);
    }
}

// --- time

static void score_timed_out(struct core *c, struct request *r, int64_t now_us)
{
    struct core_node *node = r->account.node;
    if (node) {
        node->health.missed_us = r->account.charged_us; // when it came to the node
        c->health.pending = true;
        c->ops.send_cancel(node->link, &r->number, 1);
    }
    core_request_unscorable(c, r, SKIP_TIMEOUT, now_us);
}

void core_request_expire(struct core *c, struct request *r, int64_t now_us)
{
    if (r->usage.completion_tokens == 0 && r->spec.ttft_deadline_us <= now_us) {
        status_fail(STATUS_DEADLINE, "no %s came before %s: allow more time, or send fewer requests at once",
                    r->spec.score_only ? "score" : "token", request_deadline_name(r));
        request_fail(c, r, STATUS_DEADLINE, status_message(), now_us);
    } else if (r->state == REQUEST_SCORING && r->score_deadline_us <= now_us) {
        score_timed_out(c, r, now_us);
    } else if (lacks_worker(c, r) && core_grace_end_us(c) <= now_us) {
        request_fail(c, r, STATUS_UNAVAILABLE,
                     "the worker group that could serve this was lost and did not come back: try again later", now_us);
    } else {
        if (may_become_overdue(c, r) && r->sched.due_us <= now_us)
            waiting_set_mark_overdue(&c->waiting[waiting_role(r)], &r->sched);
        core_request_retime(c, r);
    }
}
