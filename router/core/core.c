// SPDX-License-Identifier: Apache-2.0
// Functions of core.h for the requests and cancels of clients, and for time.
#include "router/core/core.h"

#include <stdlib.h>

#include "lib/base/log.h"
#include "lib/base/mem.h"
#include "router/core/admission.h"
#include "router/core/core_state.h"
#include "router/core/dispatch.h"
#include "router/core/drafting.h"
#include "router/core/health.h"
#include "router/core/nodes.h"
#include "router/core/request_prompt.h"
#include "router/core/request_selection.h"
#include "router/core/requests.h"
#include "router/core/resume.h"
#include "router/core/score_plan.h"
#include "router/core/shadow_run.h"

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
    tenant_usages_init(&c->ledger.usages, options->tenant_series, key);
    core_measures_init(&c->ledger.measures);
    shadows_init(&c->shadows, &options->shadow);
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
    c->shadows.drains = true;
    // No cancels are sent to nodes: the streams end next, and the nodes' work ends with the streams.
    for (struct core_node *node = core_first_node(c); node; node = core_node_next(node))
        core_drafting_node_gone(node);
    // Requests on nodes end first. A choice that shares the score of such a request then waits for a speculator or a
    // worker group.
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
    shadows_fini(&c->shadows);
    selection_cache_free(c->selections);
    request_timers_fini(&c->timers);
    request_table_fini(&c->table);
    tenant_accounts_fini(&c->ledger.tenants);
    tenant_usages_fini(&c->ledger.usages);
    node_measures_fini(&c->ledger.nodes);
    free(c);
}

// --- clients

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

// Checks the deadline. A sharer (score_sharing.h) is not checked: it waits as long as the request that is scored, which
// has the same deadline.
static enum status check_deadline(const struct core *c, const struct request *r, const struct score_plan *plan,
                                  int64_t now_us)
{
    if (plan->action == SCORE_SHARE) return STATUS_OK;
    return admission_check_deadline(c, r, plan->action == SCORE_RUN, now_us);
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

// Books the tokens that the client of a resumed request has.
static enum status resume_begin(struct request *r)
{
    TRY(resume_check(r));
    ledger_resumed(r);
    if (r->resume.n) r->n_prompt_logprobs = r->spec.n_tokens - 1; // they came before the first token
    return STATUS_OK;
}

void core_submit(struct core *c, struct request *r, int64_t now_us)
{
    if (r->state == REQUEST_RECEIVED) request_set_state(r, REQUEST_TOKENISED);
    shadows_make_room(c, 1, now_us); // before the wait of the request is predicted
    ledger_arrived(&c->ledger, r);
    admission_reduce_output(c, r, now_us);
    enum status status = resume_begin(r);
    if (status == STATUS_OK) status = admission_check(c, r, now_us);
    if (status == STATUS_OK && r->resume.given && r->id) core_abort(c, r->id, r->spec.owner, now_us);
    score_plan_settle_quality(c, r);
    struct score_plan plan = {0};
    if (status == STATUS_OK) {
        core_request_set_prefix(c, r, &(struct token_range){0, r->spec.n_tokens - 1}, 1);
        plan = score_plan_make(c, r, now_us);
        status = check_deadline(c, r, &plan, now_us);
    }
    if (status != STATUS_OK) {
        request_refuse(c, r, status, now_us);
        return;
    }
    core_request_admit(c, r, admission_queue_tenant(c, r));
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
    core_request_admit(c, r, admission_queue_tenant(c, r));
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

// A tick handles at most this many expired timers, the earliest first, so that other events do not wait long. The next
// tick follows immediately and handles more.
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
    if (core_dispatch_is_pending(c)) return; // it is not known yet what the round leaves in the queue
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
    shadows_make_room(c, 0, now_us);
    uint64_t last_bin = c->last_bin;
    core_dispatch(c, now_us);
    shadows_tick(c, c->last_bin == last_bin, now_us);
    update_speeds(c, now_us);
}

int64_t core_next_deadline_us(const struct core *c)
{
    const struct request *r = request_timers_first(&c->timers);
    if (core_dispatch_is_pending(c)) return c->view.now_us;
    int64_t next_us = shadows_next_us(c);
    if (r && r->links.timer_us < next_us) next_us = r->links.timer_us;
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
