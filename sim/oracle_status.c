// SPDX-License-Identifier: Apache-2.0
#include "sim/oracle_status.h"

#include <string.h>

#include "router/sched/estimate.h"
#include "sim/client.h"
#include "sim/oracle_waiting.h"
#include "sim/router.h"

// Checks the status of a node. It counts from the time the node attached.
static void check_node_status(struct world *w, const struct core_node *node, const struct node_status *status)
{
    const struct node_counts *now = &node->measures->counts, *before = sim_router_counts_at_attach(node->link);
    HOLDS(strcmp(status->hello.node_id, node->hello.node_id) == 0 && status->hello.role == node->hello.role);
    HOLDS(status->running == node->sched.account.requests.count && status->kv_blocks_free == node->kv_blocks_free);
    HOLDS(status->tokens_in == now->tokens_in - before->tokens_in);
    HOLDS(status->tokens_out == now->tokens_out - before->tokens_out);
    HOLDS(status->cached_tokens == now->cached_tokens - before->cached_tokens);
    HOLDS(status->passes == now->passes - before->passes && status->pass_us == now->pass_us - before->pass_us);
    HOLDS(status->pass_rows == now->pass_rows - before->pass_rows);
    HOLDS(status->pass_pairs == now->pass_pairs - before->pass_pairs);
    HOLDS(status->pass_gaps == now->pass_gaps - before->pass_gaps);
    HOLDS(status->pass_gap_us == now->pass_gap_us - before->pass_gap_us);
    HOLDS(status->quality_scores == now->quality_scores - before->quality_scores);
    uint64_t chosen = now->quality_scores - before->quality_scores;
    double rates = now->quality_rates - before->quality_rates;
    HOLDS(status->quality_keep_rate == (chosen ? rates / (double)chosen : 0));
    HOLDS(status->attached_us == node->attached_us && status->attached_us <= w->now_us);
    const struct cost_model *cost = &node->sched.cost;
    HOLDS(status->pass_fixed_us == cost->fixed_us && status->pass_row_us == cost->row_us);
    HOLDS(status->pass_pair_us == cost->pair_us && status->pass_noise == cost_noise(cost));
}

// Checks the status of the classes. Each class leaves a share of the queue to every higher class.
static void check_classes(struct world *w, const struct core *c, const struct core_status *status)
{
    const struct scenario_options *o = &w->scenario->options;
    int64_t tokens = 0;
    for (int k = 0; k < QUEUE_CLASSES; k++) {
        const struct class_status *class_status = &status->classes[k];
        int64_t percent = 100 - o->queue_reserve * (QUEUE_HIGH - k);
        HOLDS(class_status->waiting == c->ledger.waiting[k].requests);
        HOLDS(class_status->waiting_tokens == c->ledger.waiting[k].tokens);
        HOLDS(class_status->max_requests == (o->max_queue_requests * percent + 99) / 100);
        HOLDS(class_status->max_tokens == (o->max_queue_tokens * percent + 99) / 100);
        tokens += class_status->waiting_tokens;
    }
    HOLDS(status->waiting_tokens == tokens);
    HOLDS(status->ejections == c->health.ejections && status->hangs == c->health.hangs);
}

static void check_nodes(struct world *w, const struct core *c, const struct core_status *status)
{
    int n = status->n_nodes, workers = 0, running = 0;
    for (const struct core_node *node = core_first_node(c); node; node = core_node_next(node)) {
        HOLDS(n > 0);
        if (n-- > 0) check_node_status(w, node, &status->nodes[n]); // the list begins with the node attached last
        bool is_worker = node->hello.role == NODE_WORKER;
        workers += is_worker;
        running += is_worker ? node->sched.account.requests.count : 0;
    }
    HOLDS(n == 0 && status->model_fingerprint == (workers ? 1 : 0) && status->running == running);
}

static void check_totals(struct world *w, const struct core_totals *t)
{
    uint64_t decided = 0;
    for (int k = 0; k < SKIP_COUNT; k++)
        decided += t->skipped[k];
    HOLDS(t->requests == t->done + t->failed + t->cancelled + t->refused + (uint64_t)clients_in_router(w));
    HOLDS(decided <= t->requests && t->kept_tokens <= t->prompt_tokens);
}

void oracle_status(struct world *w, const struct core *c)
{
    struct core_status status;
    core_get_status(c, &status);
    check_nodes(w, c, &status);
    check_classes(w, c, &status);
    check_totals(w, &status.totals);
    HOLDS(status.ready == (c->open_nodes[NODE_WORKER] > 0 && !status.draining) &&
          status.draining == sim_router_drains(w->router));
    HOLDS(status.waiting + status.running == clients_in_router(w) + c->shadows.n_running);
    HOLDS(c->speeds[NODE_SPECULATOR].updated_us == c->speeds[NODE_WORKER].updated_us);
    for (int role = 0; role < 2; role++) {
        HOLDS(estimate_pool(&c->view, (enum node_role)role).work_us >= 0);
        const struct bin_totals *bins = role ? &status.prefill_bins : &status.score_bins;
        HOLDS(bins->items >= bins->bins && bins->capacity_tokens >= bins->tokens && bins->scan_cost >= bins->items);
    }
    core_status_fini(&status);
}
