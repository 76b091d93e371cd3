// SPDX-License-Identifier: Apache-2.0
// The core's edges: clients' requests and cancels, time, and looking in. See core_state.h for the rest.
#include "router/core/state.h"

#include <assert.h>
#include <stdlib.h>

#include "base/log.h"
#include "base/mem.h"

struct core *core_create(const struct core_options *options, const struct core_ops *ops)
{
    struct core *c = mem_alloc(sizeof *c);
    c->options = *options;
    c->ops = *ops;
    c->pools[NODE_SPECULATOR].role = NODE_SPECULATOR;
    c->pools[NODE_WORKER].role = NODE_WORKER;
    for (enum node_role role = NODE_SPECULATOR; role <= NODE_WORKER; role++) {
        c->pools[role].computed = 1;
        c->pools[role].due_slot_us = options->max_wait_us / (DUE_SLOTS - 2) + 1;
    }
    request_table_init(&c->table);
    return c;
}

static void cancel_all(struct core *c, const struct request_list *list)
{
    while (list->first) {
        core_request_finish(c, list->first, FINISH_REASON_CANCELLED, STATUS_CANCELLED, "the router is shutting down",
                            false, c->now_us);
    }
}

void core_free(struct core *c)
{
    if (!c) return;
    // Nobody tells the nodes: their streams end next, and with them their work.
    for (enum node_role role = NODE_SPECULATOR; role <= NODE_WORKER; role++) {
        cancel_all(c, &c->pools[role].urgent);
        cancel_all(c, &c->pools[role].queue);
    }
    for (struct core_node *node; (node = c->nodes);) {
        cancel_all(c, &node->requests);
        c->nodes = node->next;
        prefix_index_free(node->prefixes);
        core_node_forget_kin(node);
        free(node);
    }
    for (enum node_role role = NODE_SPECULATOR; role <= NODE_WORKER; role++)
        core_queue_fini(&c->pools[role]);
    request_timers_fini(&c->timers);
    request_table_fini(&c->table);
    free(c);
}

// --- clients

static int waiting(const struct core *c)
{
    return c->table.count - c->running;
}

static int64_t waiting_tokens(const struct core *c)
{
    int64_t tokens = 0;
    for (int k = 0; k < QUEUE_CLASSES; k++)
        tokens += c->waiting[k].tokens;
    return tokens;
}

const char *queue_class_name(enum queue_class queue_class)
{
    static const char *const names[QUEUE_CLASSES] = {"low", "normal", "high"};
    return names[queue_class];
}

// The part of a bound that a class may fill: each leaves a share of the whole to every class above, rounded so that a
// small queue is not lost to it.
static int64_t bound_of(const struct core *c, int64_t whole, enum queue_class queue_class)
{
    int64_t percent = 100 - (int64_t)(QUEUE_HIGH - queue_class) * c->options.queue_reserve_percent;
    return whole / 100 * percent + (whole % 100 * percent + 99) / 100;
}

static enum status check_queue(const struct core *c, const struct request *r)
{
    enum queue_class queue_class = core_priority_class(r->priority);
    const char *name = queue_class_name(queue_class);
    int64_t requests = bound_of(c, c->options.max_queue_requests, queue_class);
    int64_t tokens = bound_of(c, c->options.max_queue_tokens, queue_class);
    if (r->n_tokens > tokens) {
        return status_fail(STATUS_OUT_OF_RANGE,
                           "the prompt of %d tokens is longer than the router's whole queue may be (%lld tokens for %s "
                           "priority)",
                           r->n_tokens, (long long)tokens, name);
    }
    if (waiting(c) >= requests) {
        return status_fail(
            STATUS_EXHAUSTED,
            "the queue is full: %d requests wait, %lld are allowed for one of %s priority; try again later", waiting(c),
            (long long)requests, name);
    }
    if (waiting_tokens(c) + r->n_tokens > tokens) {
        return status_fail(
            STATUS_EXHAUSTED,
            "the queue is full: prompts of %lld tokens wait, %lld are allowed for one of %s priority and "
            "this has %d; try again later",
            (long long)waiting_tokens(c), (long long)tokens, name, r->n_tokens);
    }
    return STATUS_OK;
}

// What is estimated to be too late is refused before it takes anything from those who are in time.
static enum status check_deadline(const struct core *c, const struct request *r, bool speculated, int64_t now_us)
{
    int64_t left_us = r->ttft_deadline_us - now_us;
    struct core_estimate estimate;
    if (r->ttft_deadline_us == INT64_MAX || r->score_only) return STATUS_OK;
    if (!core_first_token_estimate(c, r, speculated, now_us, &estimate)) return STATUS_OK;
    if (estimate.wait_us + estimate.own_us <= (double)left_us) return STATUS_OK;
    return status_fail(STATUS_DEADLINE,
                       "the first token would come in about %.0f ms (%.0f ms for what is ahead, %.0f ms for this "
                       "prompt), and %s leaves %.0f: allow more, or try again later",
                       (estimate.wait_us + estimate.own_us) / 1e3, estimate.wait_us / 1e3, estimate.own_us / 1e3,
                       request_deadline_name(r), (double)left_us / 1e3);
}

static enum status check_request(const struct core *c, const struct request *r, int64_t now_us)
{
    if (c->draining) return status_fail(STATUS_UNAVAILABLE, "the router is shutting down and takes no new requests");
    if (r->n_tokens < 1) return status_fail(STATUS_INVALID, "the prompt is empty: at least one token is needed");
    if (r->id && request_table_find_id(&c->table, r->id)) {
        return status_fail(STATUS_INVALID, "request_id \"%s\" is running already: choose another one", r->id);
    }
    if (r->ttft_deadline_us <= now_us) {
        return status_fail(STATUS_DEADLINE, "%s had passed before the request was queued: allow more",
                           request_deadline_name(r));
    }
    if (r->score_only) return check_queue(c, r); // whether it can be scored: core_submit sees next
    if (r->sampling.max_tokens < 1) {
        return status_fail(STATUS_INVALID, "max_tokens %d: must be 1 or more", r->sampling.max_tokens);
    }
    if (!c->pools[NODE_WORKER].nodes) {
        return status_fail(STATUS_UNAVAILABLE,
                           "no worker group is attached: start a forepack-worker, or try again later");
    }
    if (!core_pool_can_hold(c, NODE_WORKER, r)) {
        return status_fail(
            STATUS_OUT_OF_RANGE,
            "a prompt of %d tokens with max_tokens %d needs a context of %lld: the attached worker groups "
            "have %d",
            r->n_tokens, r->sampling.max_tokens, (long long)r->n_tokens + r->sampling.max_tokens,
            core_pool_context(c, NODE_WORKER));
    }
    return check_queue(c, r);
}

// Whether a speculator shall see it; SKIP_NONE: yes.
static enum skip_reason skip_reason_of(const struct core *c, const struct request *r, int64_t now_us)
{
    if (!r->score_only) {
        if (r->prefill.mode == PREFILL_OFF) return SKIP_OFF;
        if (r->prefill.keep_rate >= 1) return SKIP_KEEP_ALL;
        if (r->prefill.mode == PREFILL_AUTO && r->n_tokens < c->options.min_tokens) return SKIP_SHORT;
    }
    if (!c->pools[NODE_SPECULATOR].nodes) return SKIP_NO_NODE;
    if (!core_pool_can_hold(c, NODE_SPECULATOR, r)) return SKIP_TOO_LONG;
    bool may_choose = !r->score_only && r->prefill.mode == PREFILL_AUTO;
    return may_choose && !core_speculation_pays(c, r, now_us) ? SKIP_COST : SKIP_NONE;
}

static void refuse(struct core *c, struct request *r, enum status status, int64_t now_us)
{
    char *message = mem_string(status_message()); // the sink may use the original's place
    c->totals.refused++;
    request_set_state(r, REQUEST_FAILED, now_us);
    r->timing.total_us = now_us - r->arrived_us;
    log_info("request_refused req=%llu status=%s tokens=%d reason=\"%s\"", (unsigned long long)r->number,
             status_name(status), r->n_tokens,
             status == STATUS_INVALID ? "invalid" : message); // no words of the client
    r->sink.done(r->sink.user, r, FINISH_REASON_ERROR, status, message);
    free(message);
    request_free(r);
}

void core_submit(struct core *c, struct request *r, int64_t now_us)
{
    if (r->state == REQUEST_RECEIVED) request_set_state(r, REQUEST_TOKENISED, now_us);
    c->totals.requests++;
    r->usage.prompt_tokens = r->n_tokens;
    r->charged_us = r->arrived_us;
    r->score_deadline_us = now_us + c->options.score_timeout_us;
    enum skip_reason skip = SKIP_NONE;
    enum status status = check_request(c, r, now_us);
    if (status == STATUS_OK) {
        core_request_set_prefix(r, &(struct token_range){0, r->n_tokens - 1}, 1);
        skip = skip_reason_of(c, r, now_us);
        status = check_deadline(c, r, skip == SKIP_NONE, now_us);
    }
    if (status != STATUS_OK) {
        refuse(c, r, status, now_us);
        return;
    }
    core_request_admit(c, r);
    if (skip == SKIP_NONE) {
        core_request_wait_for_score(c, r, now_us);
    } else {
        core_request_unscorable(c, r, skip, now_us);
    }
}

static void cancel(struct core *c, struct request *r, int64_t now_us)
{
    core_request_finish(c, r, FINISH_REASON_CANCELLED, STATUS_CANCELLED, "the request was cancelled", true, now_us);
}

bool core_cancel(struct core *c, uint64_t number, int64_t now_us)
{
    struct request *r = request_table_find(&c->table, number);
    if (r) cancel(c, r, now_us);
    return r;
}

bool core_abort(struct core *c, const char *id, int64_t now_us)
{
    struct request *r = request_table_find_id(&c->table, id);
    if (r) cancel(c, r, now_us);
    return r;
}

// --- time

void core_tick(struct core *c, int64_t now_us)
{
    core_nodes_check_silence(c, now_us);
    c->now_us = now_us;
    for (struct request *r; (r = request_timers_first(&c->timers)) && r->timer_us <= now_us;)
        core_request_due(c, r, now_us);
    core_hand_out(c, now_us);
}

int64_t core_next_deadline_us(const struct core *c)
{
    const struct request *r = request_timers_first(&c->timers);
    int64_t next_us = r ? r->timer_us : INT64_MAX;
    int64_t listen_us = c->now_us + c->options.heartbeat_us; // see core_nodes_check_silence
    if (c->nodes && listen_us < next_us) next_us = listen_us;
    for (const struct core_node *node = c->nodes; node; node = node->next) {
        int64_t silent_us = node->heard_us + 3 * c->options.heartbeat_us;
        if (silent_us < next_us) next_us = silent_us;
    }
    return next_us;
}

void core_drain(struct core *c)
{
    if (!c->draining) log_info("draining requests=%d", c->table.count);
    c->draining = true;
    core_update_ready(c);
}

bool core_idle(const struct core *c)
{
    return c->table.count == 0;
}

// --- looking in

void core_get_status(const struct core *c, struct core_status *status)
{
    *status = (struct core_status){
        .ready = c->ready,
        .draining = c->draining,
        .waiting = waiting(c),
        .running = c->running,
        .waiting_tokens = waiting_tokens(c),
        .score_bins = c->pools[NODE_SPECULATOR].totals,
        .prefill_bins = c->pools[NODE_WORKER].totals,
        .totals = c->totals,
    };
    for (int k = 0; k < QUEUE_CLASSES; k++) {
        status->classes[k] = (struct class_status){
            .waiting = c->waiting[k].requests,
            .waiting_tokens = c->waiting[k].tokens,
            .max_requests = (int)bound_of(c, c->options.max_queue_requests, (enum queue_class)k),
            .max_tokens = bound_of(c, c->options.max_queue_tokens, (enum queue_class)k),
        };
    }
    for (const struct core_node *node = c->nodes; node; node = node->next) {
        status->n_nodes++;
        if (node->hello.role == NODE_WORKER) status->model_fingerprint = node->hello.model_fingerprint;
    }
    status->nodes = mem_alloc_array((size_t)status->n_nodes, sizeof *status->nodes);
    int i = status->n_nodes; // the list has the latest first
    for (const struct core_node *node = c->nodes; node; node = node->next) {
        status->nodes[--i] = (struct node_status){
            .hello = node->hello,
            .state = node->draining ? "draining" : "ready",
            .kv_blocks_free = node->kv_blocks_free,
            .running = node->requests.count,
            .tokens_in = node->tokens_in,
            .tokens_out = node->tokens_out,
            .cached_tokens = node->cached_tokens,
            .pass_fixed_us = node->cost.fixed_us,
            .pass_row_us = node->cost.row_us,
            .pass_pair_us = node->cost.pair_us,
            .attached_us = node->attached_us,
        };
    }
}

void core_status_fini(struct core_status *status)
{
    free(status->nodes);
    status->nodes = NULL;
    status->n_nodes = 0;
}
