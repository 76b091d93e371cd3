// SPDX-License-Identifier: Apache-2.0
#include "router/core/requests.h"

#include <assert.h>
#include <math.h>

#include "lib/base/log.h"
#include "lib/base/mem.h"
#include "lib/base/utf8.h"
#include "router/core/availability.h"
#include "router/core/drafting.h"
#include "router/core/request_prompt.h"
#include "router/core/request_stages.h"
#include "router/core/resume.h"
#include "router/core/score_sharing.h"
#include "router/sched/estimate.h"

// Limits of request_account.losses: nodes lost in a row while they had the request, with no new token in between. From
// LOSSES_ALONE on, the request may be the cause, so it runs alone. At LOSSES_MAX, the request counts as the cause.
enum { LOSSES_ALONE = 2, LOSSES_MAX };

// A score may take this many times the expected time on a speculator, but at most a day.
#define SCORE_TIMES  4.0
#define SCORE_US_MAX 86.4e9

// --- timers

static void sooner(int64_t *due_us, int64_t at_us)
{
    if (at_us < *due_us) *due_us = at_us;
}

static bool lacks_worker(const struct core *c, const struct request *r)
{
    return r->state == REQUEST_READY && !sched_pool_can_hold(&c->view, NODE_WORKER, &r->sched);
}

// Returns true if the request may become overdue. With BIN_BATCH and BIN_NONE, no request becomes overdue: these
// policies pack in order of arrival.
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

// Removes the request from its node or its waiting set, without a change of state.
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

// `returned` is true if the request comes back from a node.
static void request_wait(struct core *c, struct request *r, bool returned)
{
    enum node_role role = waiting_role(r);
    int64_t due_us = estimate_due_us(&c->view, role, &r->sched, r->account.charged_us);
    request_stage_joined(c, r, role);
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

// Returns the time at which the router stops waiting for the score of a request on a speculator. The limit is
// score_timeout_us plus SCORE_TIMES the expected time of the score. If no expected time is known, each pass of the
// speculator's outstanding rows may take score_timeout_us.
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
        LOG_FIELD("preemptions", u->preemptions),
        LOG_MS("queue_ms", t->queue_us),
        LOG_MS("score_ms", t->score_us),
        LOG_MS("pack_wait_ms", t->pack_wait_us),
        LOG_MS("prefill_ms", t->prefill_us),
        LOG_MS("ttft_ms", t->ttft_us),
        LOG_MS("total_ms", t->total_us),
        LOG_FIELD("trace", r->trace ? r->trace->trace_text : NULL), // left out if the request is not traced
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
    if (!r->shadow) log_end(r, reason, status);
    if (!r->shadow) slow_requests_add(&c->slow, r, reason, now_us);
    r->sink.done(r->sink.user, r, reason, status, text);
    if (r->state == REQUEST_DONE) shadow_take(c, r, now_us);
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
    core_request_set_score_prompt(c, r);
    if (r->state != REQUEST_SCORING) request_set_state(r, REQUEST_SCORING);
    r->score_deadline_us = now_us + c->options.score_timeout_us;
    if (sched_pool_can_hold(&c->view, NODE_SPECULATOR, &r->sched))
        request_wait(c, r, r->account.losses);
    else // a speculator scored an earlier turn of the conversation, but all speculators have left since
        core_request_unscorable(c, r, c->open_nodes[NODE_SPECULATOR] ? SKIP_TOO_LONG : SKIP_NO_NODE, now_us);
}

void core_request_share_score(struct core *c, struct request *r, struct request *scored)
{
    request_set_state(r, REQUEST_SCORING);
    r->score_deadline_us = INT64_MAX; // the deadline of the scored request applies
    score_sharing_join(scored, r);
    core_request_retime(c, r);
}

void core_request_ready(struct core *c, struct request *r, int64_t now_us)
{
    request_leave(c, r, now_us);
    request_set_state(r, REQUEST_READY);
    ledger_ready(r);
    if (r->spec.score_only) {
        core_request_finish(c, r, FINISH_REASON_STOP, STATUS_OK, "", false, now_us);
        return;
    }
    ledger_speculation_decided(&c->ledger, r);
    r->mark = resume_mark(r, c->model_fingerprint);
    if (resume_compare(r) != STATUS_OK) {
        request_fail(c, r, STATUS_MISMATCH, status_message(), now_us);
        return;
    }
    if (resume_is_complete(r)) {
        enum finish_reason reason = r->resume.is_stopped ? FINISH_REASON_STOP : FINISH_REASON_LENGTH;
        core_request_finish(c, r, reason, STATUS_OK, "", false, now_us);
        return;
    }
    // Contexts were checked on arrival. KV blocks can only be checked now. A worker group with a long enough context
    // may have left and may come back.
    if (!sched_pool_can_hold(&c->view, NODE_WORKER, &r->sched) &&
        sched_request_context(&r->sched, NODE_WORKER) <= sched_pool_context(&c->view, NODE_WORKER)) {
        status_fail(STATUS_OUT_OF_RANGE,
                    "%d kept prompt tokens and max_tokens %d need more KV blocks than any attached worker group has: "
                    "lower max_tokens or the keep rate",
                    r->usage.kept_tokens, sampling_output_max(&r->spec.sampling));
        request_fail(c, r, STATUS_OUT_OF_RANGE, status_message(), now_us);
        return;
    }
    request_wait(c, r, false);
}

static void go_on_whole(struct core *c, struct request *r, enum skip_reason reason, int64_t now_us)
{
    if (r->conversation) core_request_set_prefix(c, r, &(struct token_range){0, r->spec.n_tokens - 1}, 1);
    conversation_free(r->conversation);
    r->conversation = NULL;
    request_keep_all(r, reason);
    core_request_ready(c, r, now_us);
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

// Returns true if the request ends when it gets no score. Other requests then keep the whole prompt.
static bool score_is_required(const struct request *r)
{
    return r->spec.score_only || r->spec.prefill.mode == PREFILL_REQUIRED;
}

void core_request_unscorable(struct core *c, struct request *r, enum skip_reason reason, int64_t now_us)
{
    for (struct request *sharer; (sharer = score_sharing_take(r));)
        core_request_unscorable(c, sharer, reason, now_us);
    request_leave(c, r, now_us); // must precede the end, so that no cancel is sent to the speculator
    bool whole_was_asked_for = reason == SKIP_OFF || reason == SKIP_KEEP_ALL || reason == SKIP_UNCALIBRATED;
    if (score_is_required(r) && !whole_was_asked_for) {
        enum status status = unscorable_status(c, r, reason);
        request_fail(c, r, status, status_message(), now_us);
    } else {
        go_on_whole(c, r, reason, now_us);
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

// --- on a worker group

void core_request_replay(struct core *c, struct request *r, enum node_loss loss, int64_t now_us)
{
    request_leave(c, r, now_us);
    if (r->shadow) {
        core_request_finish(c, r, FINISH_REASON_CANCELLED, STATUS_CANCELLED, "its worker group was lost", false,
                            now_us);
        return;
    }
    request_set_state(r, REQUEST_READY);
    ledger_replayed(&c->ledger, r, loss);
    // There are tokens left to generate, because core_request_step() ends a request with its last token.
    assert(r->usage.completion_tokens < r->spec.sampling.max_tokens);
    if (r->account.losses >= LOSSES_MAX) {
        // The status is not UNAVAILABLE, because clients would send the request again and crash further groups.
        status_fail(STATUS_INTERNAL,
                    "%d worker groups in a row were lost while they ran this request, the last one while it ran alone: "
                    "the request itself may be the cause",
                    r->account.losses);
        request_fail(c, r, STATUS_INTERNAL, status_message(), now_us);
    } else {
        r->sched.runs_alone = r->account.losses >= LOSSES_ALONE && c->options.policy == BIN_DATASET;
        request_wait(c, r, true);
    }
}

void core_request_preempt(struct core *c, struct request *r, int64_t now_us)
{
    log_event(LOG_DEBUG, "request_preempted", LOG_REQUEST(r->number), LOG_FIELD("client_id", r->id),
              LOG_FIELD("node", r->account.node->hello.node_id), LOG_FIELD("tokens", r->usage.completion_tokens));
    c->ops.send_cancel(r->account.node->link, &r->number, 1);
    request_leave(c, r, now_us);
    request_set_state(r, REQUEST_READY);
    ledger_preempted(&c->ledger, r);
    request_wait(c, r, true);
}

// --- time

static void score_timed_out(struct core *c, struct request *r, int64_t now_us)
{
    struct core_node *node = r->account.node;
    if (node) {
        node->health.missed_us = r->account.charged_us; // the time of the dispatch to the node
        c->health.pending = true;
        c->ops.send_cancel(node->link, &r->number, 1);
    }
    core_request_unscorable(c, r, SKIP_TIMEOUT, now_us);
}

void core_request_expire(struct core *c, struct request *r, int64_t now_us)
{
    if (r->usage.completion_tokens == 0 && r->spec.ttft_deadline_us <= now_us) {
        status_fail(STATUS_DEADLINE, "no %s came before %s: allow more time, or send fewer requests at the same time",
                    r->spec.score_only ? "score" : "token", request_deadline_name(r));
        request_fail(c, r, STATUS_DEADLINE, status_message(), now_us);
    } else if (r->state == REQUEST_SCORING && r->score_deadline_us <= now_us) {
        score_timed_out(c, r, now_us);
    } else if (lacks_worker(c, r) && core_grace_end_us(c) <= now_us) {
        request_fail(c, r, STATUS_UNAVAILABLE,
                     "the worker group that could serve this request was lost and did not come back: try again later",
                     now_us);
    } else {
        if (may_become_overdue(c, r) && r->sched.due_us <= now_us)
            waiting_set_mark_overdue(&c->waiting[waiting_role(r)], &r->sched);
        core_request_retime(c, r);
    }
}
