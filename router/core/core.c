// SPDX-License-Identifier: Apache-2.0
// The core's edges: requests and cancels of clients, time, status.
#include "router/core/core.h"

#include <stdlib.h>
#include <string.h>

#include "lib/base/log.h"
#include "lib/base/mem.h"
#include "router/core/availability.h"
#include "router/core/core_state.h"
#include "router/core/dispatch.h"
#include "router/core/drafting.h"
#include "router/core/health.h"
#include "router/core/nodes.h"
#include "router/core/request_prompt.h"
#include "router/core/request_selection.h"
#include "router/core/requests.h"
#include "router/core/score_plan.h"
#include "router/core/tenant_share.h"
#include "router/sched/estimate.h"

struct core *core_create(const struct core_options *options, const struct core_ops *ops)
{
    struct core *c = mem_alloc(sizeof *c);
    c->options = *options;
    if (!c->options.tick_work) c->options.tick_work = CORE_TICK_WORK;
    c->ops = *ops;
    c->view.options = (struct sched_options){.policy = options->policy,
                                             .batch_requests = options->batch_requests,
                                             .max_wait_us = options->max_wait_us,
                                             .tail_tokens = options->tail_tokens,
                                             .bins_ahead = options->bins_ahead,
                                             .score_timeout_us = options->score_timeout_us,
                                             .hash_key = options->hash_key};
    struct hash_key *key = &c->view.options.hash_key;
    if (!key->k0 && !key->k1) *key = hash_key_random();
    c->view.waiting = c->waiting;
    c->view.pools = c->nodes;
    c->silence_us = INT64_MAX;
    for (enum node_role role = NODE_SPECULATOR; role <= NODE_WORKER; role++) {
        c->view.computed_share[role] = 1;
        c->nodes[role].role = role;
        c->view.prefixes[role] = prefix_index_create();
        waiting_set_init(&c->waiting[role], role, &c->view.options, c->view.prefixes[role], options->tenant_weights,
                         options->n_tenant_weights);
    }
    request_table_init(&c->table, key);
    c->selections = selection_cache_create(options->selection_bytes, key);
    c->ledger.vocab_size = c->options.vocab_size;
    tenant_accounts_init(&c->ledger.tenants, key);
    core_measures_init(&c->ledger.measures);
    return c;
}

void core_set_queue_bounds(struct core *c, const struct core_options *options)
{
    c->options.max_queue_requests = options->max_queue_requests;
    c->options.max_queue_tokens = options->max_queue_tokens;
    c->options.queue_reserve_percent = options->queue_reserve_percent;
    c->options.tenant_queue_percent = options->tenant_queue_percent;
}

static void cancel_all(struct core *c, const struct request_list *list)
{
    while (list->first) {
        core_request_finish(c, request_of(list->first), FINISH_REASON_CANCELLED, STATUS_CANCELLED,
                            "the router is shutting down", false, c->view.now_us);
    }
}

void core_free(struct core *c)
{
    if (!c) return;
    // Nodes are sent no cancels: their streams end next, and with them their work.
    for (struct core_node *node = core_first_node(c); node; node = core_node_next(node))
        core_drafting_node_gone(node);
    // First those on nodes: the choices that share the score of one wait for a speculator then, or for a worker group.
    for (struct core_node *node = core_first_node(c); node; node = core_node_next(node))
        cancel_all(c, &node->sched.account.requests);
    for (enum node_role role = NODE_SPECULATOR; role <= NODE_WORKER; role++) {
        cancel_all(c, &c->waiting[role].overdue);
        cancel_all(c, &c->waiting[role].queue);
    }
    core_nodes_free(c);
    for (enum node_role role = NODE_SPECULATOR; role <= NODE_WORKER; role++) {
        waiting_set_fini(&c->waiting[role]);
        prefix_index_free(c->view.prefixes[role]);
        node_index_fini(&c->nodes[role]);
    }
    selection_cache_free(c->selections);
    request_timers_fini(&c->timers);
    request_table_fini(&c->table);
    tenant_accounts_fini(&c->ledger.tenants);
    node_measures_fini(&c->ledger.nodes);
    free(c);
}

// --- clients

static int waiting_requests(const struct core *c)
{
    return c->table.count - c->ledger.running;
}

const char *queue_class_name(enum queue_class queue_class)
{
    static const char *const names[QUEUE_CLASSES] = {"low", "normal", "high"};
    return names[queue_class];
}

// The part of a bound that a class may fill. Each class leaves a share of the whole to every class above it; rounded
// up, so that a small queue keeps places for all.
static int64_t class_bound(const struct core *c, int64_t whole, enum queue_class queue_class)
{
    int64_t percent = 100 - (int64_t)(QUEUE_HIGH - queue_class) * c->options.queue_reserve_percent;
    return whole / 100 * percent + (whole % 100 * percent + 99) / 100;
}

// The name under which the request's part of the queue is bounded.
static const char *queue_tenant(const struct core *c, const struct request *r)
{
    const char *tenant = r->spec.tenant ? r->spec.tenant : "";
    if (!c->options.n_tenant_weights) return tenant;
    for (int i = 0; i < c->options.n_tenant_weights; i++) {
        if (!strcmp(c->options.tenant_weights[i].tenant, tenant)) return tenant;
    }
    return "";
}

// `requests` and `tokens` bound the whole queue for the request's class.
static enum status check_tenant(const struct core *c, const struct request *r, int64_t requests, int64_t tokens)
{
    const struct tenant_account *tenant = tenant_accounts_find(&c->ledger.tenants, queue_tenant(c, r));
    int percent = c->options.tenant_queue_percent;
    int64_t waiting_tokens = ledger_waiting_tokens(&c->ledger);
    if (!tenant) return STATUS_OK;
    if (tenant_share_allows(percent, tenant->waiting, 1, requests, waiting_requests(c)) &&
        tenant_share_allows(percent, tenant->waiting_tokens, request_queue_tokens(r), tokens, waiting_tokens))
        return STATUS_OK;
    return status_fail(STATUS_EXHAUSTED,
                       "the queue is full for this tenant: %d of its requests with %lld prompt tokens wait, and places "
                       "for %lld requests and %lld tokens are left for all tenants; try again later",
                       tenant->waiting, (long long)tenant->waiting_tokens, (long long)(requests - waiting_requests(c)),
                       (long long)(tokens - waiting_tokens));
}

static enum status check_queue(const struct core *c, const struct request *r)
{
    enum queue_class queue_class = ledger_class_of(r->spec.priority);
    const char *name = queue_class_name(queue_class);
    int64_t n_tokens = request_queue_tokens(r);
    const char *other = n_tokens > r->spec.n_tokens
                            ? " (4 bytes of its grammar, stop strings and turns' pinned ranges count as one)"
                            : "";
    int64_t requests = class_bound(c, c->options.max_queue_requests, queue_class);
    int64_t tokens = class_bound(c, c->options.max_queue_tokens, queue_class);
    int64_t waiting_tokens = ledger_waiting_tokens(&c->ledger);
    if (n_tokens > tokens) {
        return status_fail(
            STATUS_OUT_OF_RANGE,
            "the prompt of %lld tokens%s is longer than the router's whole queue may be (%lld tokens for %s "
            "priority)",
            (long long)n_tokens, other, (long long)tokens, name);
    }
    if (waiting_requests(c) >= requests) {
        return status_fail(
            STATUS_EXHAUSTED,
            "the queue is full: %d requests wait, %lld are allowed for one of %s priority; try again later",
            waiting_requests(c), (long long)requests, name);
    }
    if (waiting_tokens + n_tokens > tokens) {
        return status_fail(
            STATUS_EXHAUSTED,
            "the queue is full: prompts of %lld tokens wait, %lld are allowed for one of %s priority and "
            "this has %lld%s; try again later",
            (long long)waiting_tokens, (long long)tokens, name, (long long)n_tokens, other);
    }
    return check_tenant(c, r, requests, tokens);
}

// A request that is estimated to miss its deadline is refused before it takes capacity from requests that will not.
static enum status check_deadline(const struct core *c, const struct request *r, bool speculated, int64_t now_us)
{
    int64_t left_us = r->spec.ttft_deadline_us - now_us;
    struct estimate estimate;
    if (r->spec.ttft_deadline_us == INT64_MAX || r->spec.score_only) return STATUS_OK;
    if (!estimate_first_token(&c->view, &r->sched, speculated, now_us, &estimate)) return STATUS_OK;
    if (estimate.wait_us + estimate.own_us <= (double)left_us) return STATUS_OK;
    return status_fail(STATUS_DEADLINE,
                       "the first token would come in about %.0f ms (%.0f ms for requests ahead, %.0f ms for this "
                       "prompt), and %s leaves %.0f ms: allow more time, or try again later",
                       (estimate.wait_us + estimate.own_us) / 1e3, estimate.wait_us / 1e3, estimate.own_us / 1e3,
                       request_deadline_name(r), (double)left_us / 1e3);
}

static enum status check_worker(const struct core *c, const struct request *r, int64_t now_us)
{
    int n_tokens = r->spec.n_tokens, max_tokens = r->spec.sampling.max_tokens;
    if (max_tokens < 1) return status_fail(STATUS_INVALID, "max_tokens %d: must be 1 or more", max_tokens);
    if (sched_pool_can_hold(&c->view, NODE_WORKER, &r->sched)) return STATUS_OK;
    bool returns = sched_request_context(&r->sched, NODE_WORKER) <= c->workers_gone_context;
    if (returns && now_us < core_grace_end_us(c)) return STATUS_OK;
    if (!c->open_nodes[NODE_WORKER]) return core_fail_no_node(c, NODE_WORKER);
    return status_fail(STATUS_OUT_OF_RANGE,
                       "a prompt of %d tokens with max_tokens %d needs a context of %lld: the attached worker groups "
                       "have %d",
                       n_tokens, max_tokens, (long long)n_tokens + max_tokens,
                       sched_pool_context(&c->view, NODE_WORKER));
}

static enum status check_request(const struct core *c, const struct request *r, int64_t now_us)
{
    if (c->draining) return status_fail(STATUS_UNAVAILABLE, "the router is shutting down and takes no new requests");
    if (r->spec.n_tokens < 1) return status_fail(STATUS_INVALID, "the prompt is empty: at least one token is needed");
    if (r->id && request_table_find_id(&c->table, r->id, r->spec.owner)) {
        return status_fail(STATUS_EXISTS, "request_id \"%s\" is running already: choose another one", r->id);
    }
    if (r->spec.ttft_deadline_us <= now_us) {
        return status_fail(STATUS_DEADLINE, "%s had passed before the request was queued: allow more time",
                           request_deadline_name(r));
    }
    // A score-only request needs no worker group; score_plan_make() sees whether a speculator can score it.
    if (!r->spec.score_only) TRY(check_worker(c, r, now_us));
    return check_queue(c, r);
}

static void request_refuse(struct core *c, struct request *r, enum status status, int64_t now_us)
{
    char *message = mem_string(status_message()); // the sink may overwrite the original
    ledger_refused(&c->ledger, r, status, now_us);
    request_set_state(r, REQUEST_FAILED);
    log_event_limited(LOG_INFO, "request_refused", LOG_REQUEST(r->number), LOG_FIELD("client_id", r->id),
                      LOG_FIELD("status", status_name(status)), LOG_FIELD("tokens", r->spec.n_tokens),
                      LOG_FIELD("reason", request_refusal_reason(status, message)),
                      LOG_FIELD("trace", r->trace ? r->trace->trace_text : "none"));
    r->sink.done(r->sink.user, r, FINISH_REASON_ERROR, status, message);
    free(message);
    request_free(r);
}

// A sharer has the time of the request that is scored, whose deadline is the same.
static enum status plan_check_deadline(const struct core *c, const struct request *r, const struct score_plan *plan,
                                  int64_t now_us)
{
    if (plan->action == SCORE_SHARE) return STATUS_OK;
    return check_deadline(c, r, plan->action == SCORE_RUN, now_us);
}

static void request_follow(struct core *c, struct request *r, const struct score_plan *plan, int64_t now_us)
{
    switch (plan->action) {
    case SCORE_SKIP: core_request_unscorable(c, r, plan->skip, now_us); break;
    case SCORE_REUSE: core_request_reuse_score(c, r, now_us); break;
    case SCORE_SHARE: core_request_share_score(c, r, plan->scored); break;
    case SCORE_RUN: core_request_wait_for_score(c, r, now_us); break;
    }
}

void core_submit(struct core *c, struct request *r, int64_t now_us)
{
    if (r->state == REQUEST_RECEIVED) request_set_state(r, REQUEST_TOKENISED);
    ledger_arrived(&c->ledger, r);
    enum status status = check_request(c, r, now_us);
    score_plan_settle_quality(c, r);
    struct score_plan plan = {0};
    if (status == STATUS_OK) {
        core_request_set_prefix(c, r, &(struct token_range){0, r->spec.n_tokens - 1}, 1);
        plan = score_plan_make(c, r, now_us);
        status = plan_check_deadline(c, r, &plan, now_us);
    }
    if (status != STATUS_OK) {
        request_refuse(c, r, status, now_us);
        return;
    }
    core_request_admit(c, r, queue_tenant(c, r));
    request_follow(c, r, &plan, now_us);
}

static void request_cancel(struct core *c, struct request *r, int64_t now_us)
{
    core_request_finish(c, r, FINISH_REASON_CANCELLED, STATUS_CANCELLED, "the request was cancelled", true, now_us);
}

bool core_cancel(struct core *c, uint64_t number, int64_t now_us)
{
    struct request *r = request_table_find(&c->table, number);
    if (r) request_cancel(c, r, now_us);
    return r;
}

void core_submit_aborted(struct core *c, struct request *r, int64_t now_us)
{
    ledger_arrived(&c->ledger, r);
    core_request_admit(c, r, queue_tenant(c, r));
    request_cancel(c, r, now_us);
}

bool core_abort(struct core *c, const char *id, uint64_t owner, int64_t now_us)
{
    bool found = false;
    for (struct request *r; (r = request_table_find_id(&c->table, id, owner)); found = true)
        request_cancel(c, r, now_us);
    return found;
}

// --- time

// A tick handles at most this many timers, the earliest first, so that a queue that becomes due at once does not hold
// up other events: the others are due at the next tick, which follows at once.
enum { TIMERS_MAX = 256 };

static void expire_requests(struct core *c, int64_t now_us)
{
    for (int i = 0; i < TIMERS_MAX; i++) {
        struct request *r = request_timers_first(&c->timers);
        if (!r || r->links.timer_us > now_us) return;
        core_request_expire(c, r, now_us);
    }
}

static void update_speeds(struct core *c, int64_t now_us)
{
    if (core_dispatch_is_pending(c)) return; // what the round will leave is not known yet
    for (enum node_role role = NODE_SPECULATOR; role <= NODE_WORKER; role++)
        pool_speed_update(&c->speeds[role], c->ledger.pools[role].dispatched_rows,
                          waiting_set_count(&c->waiting[role]) > 0, now_us);
}

void core_tick(struct core *c, int64_t now_us)
{
    core_nodes_check_silence(c, now_us);
    c->view.now_us = now_us;
    expire_requests(c, now_us);
    core_health_check(c, now_us);
    core_drafting_flush(c);
    core_dispatch(c, now_us);
    update_speeds(c, now_us);
}

int64_t core_next_deadline_us(const struct core *c)
{
    const struct request *r = request_timers_first(&c->timers);
    if (core_dispatch_is_pending(c)) return c->view.now_us;
    int64_t next_us = r ? r->links.timer_us : INT64_MAX;
    int64_t listen_us = c->view.now_us + c->options.heartbeat_us; // see core_nodes_check_silence()
    if (c->view.nodes && listen_us < next_us) next_us = listen_us;
    return c->silence_us < next_us ? c->silence_us : next_us;
}

void core_drain(struct core *c)
{
    if (!c->draining) log_event(LOG_INFO, "router_draining", LOG_FIELD("requests", c->table.count));
    c->draining = true;
    core_update_ready(c);
}

bool core_idle(const struct core *c)
{
    return c->table.count == 0;
}

// --- status

static struct node_status node_status_of(const struct core_node *node)
{
    const struct cost_model *cost = &node->sched.cost;
    const struct node_counts *counts = &node->measures->counts, *before = &node->at_attach;
    uint64_t chosen = counts->quality_scores - before->quality_scores;
    return (struct node_status){
        .hello = node->hello,
        .state = core_health_state(node),
        .kv_blocks_free = node->kv_blocks_free,
        .held_prompts = node->held_prompts,
        .held_kv_blocks = node->held_kv_blocks,
        .running = node->sched.account.requests.count,
        .tokens_in = counts->tokens_in - before->tokens_in,
        .tokens_out = counts->tokens_out - before->tokens_out,
        .cached_tokens = counts->cached_tokens - before->cached_tokens,
        .passes = counts->passes - before->passes,
        .pass_rows = counts->pass_rows - before->pass_rows,
        .pass_pairs = counts->pass_pairs - before->pass_pairs,
        .pass_us = counts->pass_us - before->pass_us,
        .pass_times = &node->pass_times,
        .pass_gaps = counts->pass_gaps - before->pass_gaps,
        .pass_gap_us = counts->pass_gap_us - before->pass_gap_us,
        .quality_scores = chosen,
        .quality_keep_rate = chosen ? (counts->quality_rates - before->quality_rates) / (double)chosen : 0,
        .pass_fixed_us = cost->fixed_us,
        .pass_row_us = cost->row_us,
        .pass_pair_us = cost->pair_us,
        .pass_noise = cost_noise(cost),
        .attached_us = node->attached_us,
    };
}

static struct bin_totals bin_totals_of(const struct core *c, enum node_role role)
{
    struct bin_totals totals = c->ledger.bins[role];
    totals.plans = c->nodes[role].plans;
    totals.node_visits = c->nodes[role].visits;
    return totals;
}

void core_get_status(const struct core *c, struct core_status *status)
{
    *status = (struct core_status){
        .ready = c->ready,
        .draining = c->draining,
        .waiting = waiting_requests(c),
        .running = c->ledger.running,
        .waiting_tokens = ledger_waiting_tokens(&c->ledger),
        .score_bins = bin_totals_of(c, NODE_SPECULATOR),
        .prefill_bins = bin_totals_of(c, NODE_WORKER),
        .totals = c->ledger.totals,
        .ejections = c->health.ejections,
        .hangs = c->health.hangs,
        .calibration_problem = core_calibration_problem(c),
    };
    for (int k = 0; k < QUEUE_CLASSES; k++) {
        status->classes[k] = (struct class_status){
            .waiting = c->ledger.waiting[k].requests,
            .waiting_tokens = c->ledger.waiting[k].tokens,
            .max_requests = (int)class_bound(c, c->options.max_queue_requests, (enum queue_class)k),
            .max_tokens = class_bound(c, c->options.max_queue_tokens, (enum queue_class)k),
        };
    }
    for (const struct core_node *node = core_first_node(c); node; node = core_node_next(node)) {
        status->n_nodes++;
        if (node->hello.role == NODE_WORKER) status->model_fingerprint = node->hello.model_fingerprint;
    }
    status->nodes = mem_alloc_array((size_t)status->n_nodes, sizeof *status->nodes);
    int i = status->n_nodes; // the list begins with the node attached last
    for (const struct core_node *node = core_first_node(c); node; node = core_node_next(node))
        status->nodes[--i] = node_status_of(node);
}

void core_status_fini(struct core_status *status)
{
    free(status->nodes);
    status->nodes = NULL;
    status->n_nodes = 0;
}
