// SPDX-License-Identifier: Apache-2.0
#include "router/core/dispatch.h"

#include <stdlib.h>

#include "lib/base/log.h"
#include "lib/base/mem.h"
#include "router/core/request_stages.h"
#include "router/core/requests.h"
#include "router/sched/bin_planner.h"
#include "router/sched/preemption.h"
#include "router/sched/prefix_tails.h"
#include "router/sched/reservation.h"

static void send_bin(struct core *c, struct core_node *node, uint64_t bin, struct request *const *requests, int n)
{
    if (node->sched.role == NODE_WORKER) {
        c->ops.send_prefill_bin(node->link, bin, requests, n);
    } else {
        c->ops.send_score_bin(node->link, bin, requests, n);
    }
}

// Sends the plan's requests, which are in no waiting set, as the bin c->last_bin.
static void bin_dispatch(struct core *c, struct core_node *node, const struct bin_plan *plan, uint64_t scan_cost,
                         int64_t now_us)
{
    enum node_role role = node->sched.role;
    struct core_bin *bin = mem_alloc(sizeof *bin);
    struct request **requests = mem_alloc_array((size_t)plan->n, sizeof(struct request *));
    uint64_t number = bin->id = c->last_bin;
    for (int i = 0; i < plan->n; i++) {
        requests[i] = request_of(plan->requests[i]);
        request_stage_dispatched(requests[i], node, plan);
        core_request_place(c, requests[i], node, bin, now_us);
    }
    ledger_bin_sent(&c->ledger, &c->view, node, bin, plan->rows, plan->uncached_rows);
    recent_bins_add(&c->recent[role], node, number, plan->rows, requests, plan->n, now_us);
    ledger_scanned(&c->ledger, role, scan_cost);
    log_event(LOG_DEBUG, "bin_dispatched", LOG_FIELD("bin", number), LOG_FIELD("node", node->hello.node_id),
              LOG_FIELD("requests", plan->n), LOG_FIELD("rows", plan->rows),
              LOG_FIELD("token_budget", node->hello.token_budget), LOG_FIELD("overdue", plan->overdue),
              LOG_FIELD("waiting", waiting_set_count(&c->waiting[role])));
    send_bin(c, node, number, requests, plan->n);
    for (int i = 0; i < plan->n; i++)
        core_request_dispatched(c, requests[i], now_us);
    free(requests);
}

static void plan_apply(struct core *c, struct waiting_set *set, struct core_node *node, const struct bin_plan *plan,
                       int64_t now_us)
{
    uint64_t number = ++c->last_bin, scan_cost = plan->scan_cost;
    if (node->sched.tails)
        scan_cost += (uint64_t)prefix_tails_update(node->sched.tails, set, number, plan->requests, plan->n);
    waiting_set_commit(set);
    bin_dispatch(c, node, plan, scan_cost, now_us);
}

void core_dispatch_alone(struct core *c, struct request *r, struct core_node *node, int64_t now_us)
{
    struct sched_request *only = &r->sched;
    int rows = sched_request_rows(only);
    const struct bin_plan plan = {.requests = &only, .n = 1, .rows = rows, .uncached_rows = rows};
    c->last_bin++;
    bin_dispatch(c, node, &plan, 1, now_us);
}

static int64_t blocks_of(const struct sched_node *node, const struct bin_plan *plan)
{
    int64_t blocks = 0;
    for (int i = 0; i < plan->n; i++)
        blocks += sched_node_blocks_needed(node, plan->requests[i]);
    return blocks;
}

static int64_t clock_us(const struct core *c)
{
    return c->options.clock_us ? c->options.clock_us() : 0;
}

// Plans one bin for the node and dispatches it.
static void dispatch_to(struct core *c, struct core_node *node, int64_t now_us)
{
    struct waiting_set *set = &c->waiting[node->sched.role];
    struct bin_plan plan;
    int64_t start_us = clock_us(c);
    plan_bin(&c->view, &node->sched, set, &plan);
    if (!plan.n) {
        ledger_scanned(&c->ledger, set->role, plan.scan_cost);
        node_index_decline(&node->sched, &c->view, plan.rows_missing, plan.elsewhere);
        return;
    }
    if (c->options.clock_us) histogram_add(&c->ledger.measures.plan[set->role], clock_us(c) - start_us);
    if (c->view.reservation.node == &node->sched) c->view.reservation.lent_blocks += blocks_of(&node->sched, &plan);
    plan_apply(c, set, node, &plan, now_us);
}

// Gives a waiting request the place of running ones, if preemption.h allows that. Returns true if requests have left or
// a bin was planned.
static bool dispatch_instead(struct core *c, int64_t now_us)
{
    struct waiting_set *set = &c->waiting[NODE_WORKER];
    struct preemption preemption;
    struct bin_plan plan;
    preemption_choose(&c->view, set, &preemption);
    ledger_scanned(&c->ledger, NODE_WORKER, preemption.scan_cost);
    if (!preemption.node) return false;
    for (int i = 0; i < preemption.n_leaving; i++)
        core_request_preempt(c, request_of(preemption.leaving[i]), now_us);
    plan_place(&c->view, preemption.node, set, preemption.queue, &plan);
    if (plan.n) plan_apply(c, set, core_node_of(preemption.node), &plan, now_us);
    return plan.n || preemption.n_leaving;
}

// Updates the reservation. Marks the old and the new reserved group as changed, because the number of blocks that they
// may lend changes.
static void update_reservation(struct core *c)
{
    struct reservation before = c->view.reservation;
    c->view.reservation = reservation_update(&c->view, &c->nodes[NODE_WORKER]);
    if (before.request == c->view.reservation.request) return;
    if (before.node) node_index_note_change(&core_node_of(before.node)->sched);
    if (c->view.reservation.node) node_index_note_change(&core_node_of(c->view.reservation.node)->sched);
}

// Returns the work done so far: requests dispatched, requests and queues examined, nodes asked, and searches for the
// node of one request.
static uint64_t work_done(const struct core *c, enum node_role role)
{
    const struct bin_totals *totals = &c->ledger.bins[role];
    return totals->items + totals->scan_cost + c->nodes[role].plans + c->nodes[role].request_searches;
}

static uint64_t pool_changes(const struct core *c, enum node_role role)
{
    return c->nodes[role].changes + c->waiting[role].joined;
}

// Asks the nodes of the pool until no node takes a bin. If the limit of work of the tick is reached earlier, the round
// stays open, and the next tick continues it.
static void dispatch_round(struct core *c, enum node_role role, int64_t now_us)
{
    struct waiting_set *set = &c->waiting[role];
    uint64_t end = work_done(c, role) + (uint64_t)c->options.tick_work;
    if (!c->in_round[role] && waiting_set_count(set)) node_index_start_round(&c->nodes[role], &c->view);
    c->in_round[role] = false;
    while (waiting_set_count(set)) {
        c->in_round[role] = work_done(c, role) >= end;
        if (c->in_round[role]) return;
        waiting_set_open_batch(set);
        if (role == NODE_WORKER) update_reservation(c);
        struct sched_node *node = node_index_next(&c->nodes[role], &c->view);
        // Asks a node for each request that may be packed since lately or became overdue (waiting_set.unasked). If the
        // node takes other requests instead, asks another node.
        while (!node && set->unasked && work_done(c, role) < end) {
            node = node_index_next_for(&c->nodes[role], &c->view, set->unasked);
            if (!node) waiting_set_asked(set, set->unasked);
        }
        if (!node && set->unasked) continue; // the tick's limit of work is reached
        if (!node && role == NODE_WORKER && dispatch_instead(c, now_us)) continue;
        if (!node) break;
        dispatch_to(c, core_node_of(node), now_us);
    }
    c->settled[role] = pool_changes(c, role);
}

void core_dispatch(struct core *c, int64_t now_us)
{
    // While the round of one pool is open, the other pool begins a round only if its nodes or requests have changed.
    // Otherwise two pools whose rounds take several ticks would start each other's rounds for ever.
    bool goes_on = core_dispatch_is_pending(c);
    for (enum node_role role = NODE_SPECULATOR; role <= NODE_WORKER; role++)
        if (!goes_on || c->in_round[role] || c->settled[role] != pool_changes(c, role)) dispatch_round(c, role, now_us);
}

bool core_dispatch_is_pending(const struct core *c)
{
    return c->in_round[NODE_SPECULATOR] || c->in_round[NODE_WORKER];
}
