// SPDX-License-Identifier: Apache-2.0
// The status functions of core.h.
#include <stdlib.h>

#include "lib/base/mem.h"
#include "router/core/admission.h"
#include "router/core/availability.h"
#include "router/core/core_state.h"
#include "router/core/health.h"
#include "router/core/loading.h"

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

struct core_load core_get_load(const struct core *c)
{
    struct core_load load = {.requests = core_waiting_requests(c) + c->ledger.running,
                             .background = c->ledger.background};
    for (const struct core_node *node = core_first_node(c); node; node = core_node_next(node))
        if (node->hello.role == NODE_WORKER && !node->sched.draining) load.places += node->sched.limits.max_seqs;
    return load;
}

static struct bin_totals bin_totals_of(const struct core *c, enum node_role role)
{
    struct bin_totals totals = c->ledger.bins[role];
    totals.plans = c->nodes[role].plans;
    totals.node_visits = c->nodes[role].visits;
    return totals;
}

static struct shadow_status shadow_status_of(const struct shadows *shadows)
{
    const struct agreement_table *table = &shadows->agreement;
    struct shadow_status status = {.on = shadows->options.share > 0,
                                   .waiting = shadows->n - shadows->n_running,
                                   .totals = shadows->totals,
                                   .n_tenants = table->n_tenants};
    status.tenants = mem_alloc_array((size_t)table->n_tenants, sizeof *status.tenants);
    for (int i = 0; i < table->n_tenants; i++) {
        const struct agreement_tenant *from = &table->tenants[i];
        struct tenant_agreement *to = &status.tenants[i];
        *to = (struct tenant_agreement){.tenant = mem_string(from->name), .counts = from->counts};
        for (to->n_windows = 0; to->n_windows < from->n_windows; to->n_windows++)
            to->windows[to->n_windows] = from->windows[to->n_windows]->state;
    }
    return status;
}

static void loading_copy(const struct core *c, struct core_status *status)
{
    status->n_loading = c->n_loading;
    status->loading = mem_alloc_array((size_t)c->n_loading, sizeof *status->loading);
    int i = c->n_loading; // the list begins with the latest node
    for (const struct loading_node *node = c->loading; node; node = node->next)
        status->loading[--i] = (struct loading_status){node->report, node->begun_us};
}

const struct slow_requests *core_get_slow_requests(const struct core *c)
{
    return &c->slow;
}

void core_get_status(const struct core *c, struct core_status *status)
{
    *status = (struct core_status){
        .ready = c->ready,
        .draining = c->draining,
        .waiting = core_waiting_requests(c),
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
            .max_requests = (int)admission_class_bound(c, c->options.max_queue_requests, (enum queue_class)k),
            .max_tokens = admission_class_bound(c, c->options.max_queue_tokens, (enum queue_class)k),
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
    loading_copy(c, status);
    status->shadow = shadow_status_of(&c->shadows);
}

void core_status_fini(struct core_status *status)
{
    free(status->nodes);
    status->nodes = NULL;
    status->n_nodes = 0;
    free(status->loading);
    status->loading = NULL;
    status->n_loading = 0;
    for (int i = 0; i < status->shadow.n_tenants; i++)
        free(status->shadow.tenants[i].tenant);
    free(status->shadow.tenants);
    status->shadow = (struct shadow_status){.n_tenants = 0};
}
