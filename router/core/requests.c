// SPDX-License-Identifier: Apache-2.0
#include "router/core/requests.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "router/core/drafting.h"
#include "router/core/nodes.h"
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
    snprintf(text, sizeof text, "%s", message);
    struct core_node *node = r->account.node;
    if (node && tell_node) c->ops.send_cancel(node->link, &r->number, 1);
    core_drafting_ended(c, r);
    request_leave(c, r, now_us);
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

void core_request_wait_for_score(struct core *c, struct request *r, int64_t now_us)
{
    request_leave(c, r, now_us);
    if (r->state != REQUEST_SCORING) request_set_state(r, REQUEST_SCORING);
    r->score_deadline_us = now_us + c->options.score_timeout_us;
    request_wait(c, r);
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
    if (r->spec.prefill.drafts == DRAFTS_OFF || r->spec.score_only || n <= 0) return;
    r->n_draft = n;
    r->draft = mem_copy(draft, (size_t)n * sizeof *draft);
}

bool core_request_find_selection(struct core *c, struct request *r)
{
    struct selection found;
    if (!c->options.selection_bytes) return false;
    r->selection =
        selection_key_make(c->selections, &r->spec, prefill_tail_tokens(c->options.tail_tokens, r->spec.n_tokens));
    if (r->spec.want_importance || !c->scorer) return false; // importance is not held
    if (!rate_holds(c, r)) return false;
    if (!selection_cache_find(c->selections, &r->selection, c->scorer, &found)) return false;
    r->kept = mem_copy(found.kept, (size_t)found.n_kept * sizeof *found.kept);
    r->n_kept_ranges = found.n_kept;
    r->usage.kept_tokens = request_kept_tokens(r);
    set_rate(r, found.keep_rate, found.reason);
    keep_draft(r, found.draft, found.n_draft);
    core_request_set_prefix(c, r, r->kept, r->n_kept_ranges);
    return true;
}

void core_request_reuse_score(struct core *c, struct request *r, int64_t now_us)
{
    ledger_score_reused(&c->ledger, r);
    request_ready(c, r, now_us);
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
static bool rate_keeps(const struct core *c, const struct request_spec *spec, double keep_rate, int64_t kept)
{
    int64_t size = spec->prefill.chunk_tokens > 0 ? spec->prefill.chunk_tokens : 1, n = spec->n_tokens;
    int64_t budget = prefill_keep_budget((int)((n - 1) / size + 1), keep_rate);
    int64_t beyond = prefill_tail_tokens(c->options.tail_tokens, spec->n_tokens);
    beyond += range_tokens(spec->pinned, spec->n_pinned);
    return kept > (budget - 1) * size && kept <= (budget < 2 ? 2 : budget) * size + beyond;
}

// NULL when the keep rate that the speculator chose can be used, else what is wrong with it.
static const char *rate_error(const struct core *c, const struct request *r, const struct score_result *result)
{
    int64_t kept = range_tokens(result->kept, result->n_kept);
    if (!(result->keep_rate > 0 && result->keep_rate <= 1)) return "the chosen keep rate is not over 0 and at most 1";
    if (result->reason == RATE_FIXED) return "no reason for the chosen keep rate";
    if (result->reason != RATE_QUALITY && result->keep_rate < 1) return "a keep rate below 1 with a reason to keep all";
    if (result->keep_rate < 1 ? !rate_keeps(c, &r->spec, result->keep_rate, kept) : kept != r->spec.n_tokens)
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
        if (range->last >= r->spec.n_tokens) return "a kept range is outside the prompt";
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

static void copy_kept(struct request *r, const struct token_range *kept, int n) // ranges that touch become one
{
    r->kept = mem_alloc_array((size_t)n, sizeof *r->kept);
    for (int k = 0; k < n; k++) {
        struct token_range *last = r->n_kept_ranges ? &r->kept[r->n_kept_ranges - 1] : NULL;
        if (last && last->last + 1 == kept[k].first) {
            last->last = kept[k].last;
        } else {
            r->kept[r->n_kept_ranges++] = kept[k];
        }
    }
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

static void take_selection(struct core *c, struct request *r, const struct score_result *result, int n_draft,
                           int64_t now_us)
{
    bool chosen = r->spec.prefill.quality > 0;
    if (chosen)
        set_rate(r, result->keep_rate, result->reason);
    else
        set_rate(r, r->spec.prefill.keep_rate, RATE_FIXED);
    if (chosen) ledger_rate_chosen(&c->ledger, &c->view, r, now_us);
    copy_kept(r, result->kept, result->n_kept);
    selection_cache_add(
        c->selections, &r->selection, r->account.node->scorer,
        &(struct selection){r->kept, r->n_kept_ranges, r->keep_rate, r->rate_reason, result->draft, n_draft});
}

static void keep_uncalibrated(struct request *r)
{
    const struct token_range all = {0, r->spec.n_tokens - 1};
    set_rate(r, 1, RATE_UNCALIBRATED);
    copy_kept(r, &all, 1);
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
    ledger_scored(r, result->cached_tokens, now_us);
    int n_draft = usable_draft(c, r, result);
    keep_draft(r, result->draft, n_draft);
    core_drafting_held(r, r->account.node);
    if (rate_holds(c, r))
        take_selection(c, r, result, n_draft, now_us);
    else
        keep_uncalibrated(r);
    core_request_set_prefix(c, r, r->kept, r->n_kept_ranges);
    if (r->spec.want_importance)
        r->importance = mem_copy(result->importance, (size_t)r->spec.n_tokens * sizeof *r->importance);
    request_ready(c, r, now_us);
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
