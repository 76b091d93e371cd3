// SPDX-License-Identifier: Apache-2.0
#include "router/core/dispatch.h"

#include <stdlib.h>

#include "base/log.h"
#include "base/mem.h"
#include "router/core/requests.h"
#include "router/sched/bin_planner.h"
#include "router/sched/prefix_tails.h"

static void send_bin(struct core *c, struct core_node *node, uint64_t bin, struct request *const *requests, int n)
{
    if (node->sched.role == NODE_WORKER) {
        c->ops.send_prefill_bin(node->link, bin, requests, n);
    } else {
        c->ops.send_score_bin(node->link, bin, requests, n);
    }
}

static void plan_apply(struct core *c, struct waiting_set *set, struct core_node *node, const struct bin_plan *plan,
                       int64_t now_us)
{
    struct core_bin *bin = mem_alloc(sizeof *bin);
    struct request **requests = mem_alloc_array((size_t)plan->n, sizeof(struct request *));
    uint64_t number = bin->id = ++c->last_bin, scan_cost = plan->scan_cost;
    if (node->sched.tails)
        scan_cost += (uint64_t)prefix_tails_update(node->sched.tails, set, number, plan->requests, plan->n);
    waiting_set_commit(set);
    for (int i = 0; i < plan->n; i++) {
        requests[i] = request_of(plan->requests[i]);
        core_request_place(c, requests[i], node, bin, now_us);
    }
    ledger_bin_sent(&c->ledger, &c->view, node, plan->n, plan->rows, plan->uncached_rows);
    ledger_scanned(&c->ledger, set->role, scan_cost);
    log_event(LOG_DEBUG, "bin_dispatched", LOG_FIELD("bin", number), LOG_FIELD("node", node->hello.node_id),
              LOG_FIELD("requests", plan->n), LOG_FIELD("rows", plan->rows),
              LOG_FIELD("token_budget", node->hello.token_budget), LOG_FIELD("overdue", plan->overdue),
              LOG_FIELD("waiting", waiting_set_count(set)));
    send_bin(c, node, number, requests, plan->n);
    for (int i = 0; i < plan->n; i++)
        core_request_dispatched(c, requests[i], now_us);
    free(requests);
}

// Plans one bin for the node and dispatches it. Without a bin the node has declined for this round.
static void dispatch_to(struct core *c, const struct dispatch_round *round, struct core_node *node, int64_t now_us)
{
    struct waiting_set *set = &c->waiting[round->role];
    struct bin_plan plan;
    plan_bin(round, &node->sched, set, now_us, &plan);
    node->sched.no_eligible = plan.no_eligible;
    node->sched.scanned_us = plan.scanned_us;
    node->sched.declined = plan.n == 0;
    if (plan.n) {
        plan_apply(c, set, node, &plan, now_us);
    } else {
        ledger_scanned(&c->ledger, round->role, plan.scan_cost);
    }
}

void core_dispatch(struct core *c, int64_t now_us)
{
    for (enum node_role role = NODE_SPECULATOR; role <= NODE_WORKER; role++) {
        struct waiting_set *set = &c->waiting[role];
        for (struct core_node *node = core_first_node(c); node; node = core_node_next(node))
            node->sched.declined = false;
        struct dispatch_round round = dispatch_round_start(&c->view, role);
        while (waiting_set_count(set)) {
            if (role == NODE_WORKER) c->view.reservation = reservation_update(&c->view);
            const struct sched_node *node = dispatch_round_next_node(&round);
            if (!node) break;
            core_requests_open_batch(c, role);
            dispatch_to(c, &round, core_node_of(node), now_us);
        }
    }
}
