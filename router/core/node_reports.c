// SPDX-License-Identifier: Apache-2.0
// Handles the messages in which nodes report their work and requests: core_heartbeat() and similar functions of core.h.
// Nodes are not trusted, so every number is checked before it is used.
#include "router/core/core_state.h"
#include "router/core/request_selection.h"
#include "router/core/request_steps.h"

// Returns how many requests the node's heartbeat should count but does not. Messages of a stream come in order, so
// every result sent before the heartbeat has been read. Requests that the node has yet to cancel can only make its
// count too high, so they hide a loss but do not fake one.
static int requests_lost(const struct core_node *node, const struct node_heartbeat *heartbeat)
{
    int64_t n = node->sched.account.requests.count; // the list is in the order of bins
    const struct sched_request *r = node->sched.account.requests.last;
    for (; r && request_of(r)->account.bin_id > heartbeat->last_bin; r = r->prev)
        n--;
    return heartbeat->requests < n ? (int)(n - heartbeat->requests) : 0;
}

void core_heartbeat(struct core *c, struct core_node *node, const struct node_heartbeat *heartbeat, int64_t now_us)
{
    node->heard_us = now_us;
    node->kv_blocks_free = heartbeat->kv_blocks_free;
    node->held_prompts = heartbeat->held_prompts;
    node->held_kv_blocks = heartbeat->held_kv_blocks;
    node->measures->counts.preemptions = heartbeat->preemptions;
    node_gpus_update(&node->measures->gpus, heartbeat->gpus, heartbeat->n_gpus, node->hello.ranks);
    node_counts_progress(node, heartbeat->progress, now_us);
    // The count visits all requests of the node. It is skipped for heartbeats that come much too often, so that one
    // node cannot occupy the core.
    if (now_us - node->health.counted_us < c->options.heartbeat_us / 4) return;
    node->health.counted_us = now_us;
    node->health.lost = requests_lost(node, heartbeat);
    c->health.pending |= node->health.lost > 0;
}

void core_passed(struct core *c, struct core_node *node, const struct pass_cost *pass, int64_t now_us)
{
    node->heard_us = now_us;
    node_progressed(node, now_us);
    if (node_pass_is_possible(node, pass)) ledger_pass_reported(&c->ledger, node, pass, now_us);
}

void core_pass_latency(struct core_node *node, int64_t latency_us)
{
    histogram_add(&node->measures->latency, latency_us);
}

void core_other_rows(struct core_node *node, int rows)
{
    node->sched.other_rows = rows;
}

// Returns the request of a result, or NULL if the request is no longer on the node. A cancel, a timeout or a loss may
// come before the result.
static struct request *request_on(const struct core *c, const struct core_node *node, uint64_t number)
{
    struct request *r = request_table_find(&c->table, number);
    return r && r->account.node == node ? r : NULL;
}

void core_scored(struct core *c, struct core_node *node, const struct score_result *result, int64_t now_us)
{
    node->heard_us = now_us;
    node_progressed(node, now_us);
    struct request *r = request_on(c, node, result->request);
    if (!r || r->state != REQUEST_SCORING) return;
    if (!result->error) node_answered(node);
    core_request_scored(c, r, result, now_us);
}

void core_step(struct core *c, struct core_node *node, const struct sequence_result *results, int n, int64_t now_us)
{
    node->heard_us = now_us;
    node_progressed(node, now_us);
    for (int i = 0; i < n; i++) {
        struct request *r = request_on(c, node, results[i].request);
        if (!r || (r->state != REQUEST_PREFILL && r->state != REQUEST_DECODE)) continue;
        if (results[i].bin && results[i].bin != r->account.bin_id) continue; // the node had not read a cancel yet
        if (r->account.bin && results[i].n_tokens) node_answered(node);
        core_request_step(c, r, &results[i], now_us);
    }
}
