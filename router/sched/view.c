// SPDX-License-Identifier: Apache-2.0
#include "router/sched/view.h"

bool sched_node_can_hold(const struct sched_node *node, const struct sched_request *r)
{
    const struct node_limits *limits = &node->limits;
    const struct request_spec *spec = r->spec;
    if (node->draining) return false;
    int64_t prompt_and_output = (int64_t)spec->n_tokens + spec->sampling.max_tokens;
    if (!r->usage->kept_tokens) {
        // The look-ahead decodes its first token from the prompt's last row: one entry less than steps.
        if (node->role == NODE_SPECULATOR)
            return (int64_t)spec->n_tokens + spec->prefill.look_ahead - 1 <= limits->context_tokens;
        return prompt_and_output <= limits->context_tokens;
    }
    int64_t entries = (int64_t)r->usage->kept_tokens + spec->sampling.max_tokens;
    return node->role == NODE_WORKER && prompt_and_output <= limits->context_tokens &&
           entries <= (int64_t)limits->kv_blocks * limits->block_tokens;
}

int64_t sched_node_blocks_left(const struct sched_node *node)
{
    return node->role == NODE_WORKER ? node->limits.kv_blocks - node->account.kv_blocks : INT64_MAX;
}

bool sched_node_shares_blocks(const struct sched_node *node)
{
    return node->role == NODE_WORKER && node->prefixes && node->limits.block_tokens == PREFIX_BLOCK;
}

int sched_node_blocks_after(const struct sched_node *node, const struct sched_request *r, int shared)
{
    if (node->role != NODE_WORKER) return 0;
    int blocks = sched_request_kv_blocks(r, node->limits.block_tokens);
    return sched_node_shares_blocks(node) ? blocks - sched_request_shareable_blocks(r, shared) : blocks;
}

int sched_node_blocks_needed(const struct sched_node *node, const struct sched_request *r)
{
    int held = sched_node_shares_blocks(node) ? prefix_record_held(node->prefixes, r->prefix, r->n_prefix) : 0;
    return sched_node_blocks_after(node, r, held);
}

bool sched_node_has_blocks(const struct sched_node *node, const struct sched_request *r)
{
    int64_t left = sched_node_blocks_left(node);
    if (sched_node_shares_blocks(node) && r->index_blocks > left) return false;
    return sched_node_blocks_needed(node, r) <= left;
}

int sched_request_cached_blocks(const struct sched_request *r, const struct sched_node *node)
{
    return node->prefixes ? prefix_record_match(node->prefixes, r->prefix, r->n_prefix) : 0;
}

int sched_request_rows_on(const struct sched_request *r, const struct sched_node *node)
{
    return sched_request_rows_after(r, sched_request_cached_blocks(r, node));
}

bool sched_pool_can_hold(const struct sched_view *view, enum node_role role, const struct sched_request *r)
{
    for (const struct sched_node *node = view->nodes; node; node = node->next) {
        if (node->role == role && sched_node_can_hold(node, r)) return true;
    }
    return false;
}

int sched_pool_context(const struct sched_view *view, enum node_role role)
{
    int longest = 0;
    for (const struct sched_node *node = view->nodes; node; node = node->next) {
        if (node->role != role || node->draining) continue;
        if (node->limits.context_tokens > longest) longest = node->limits.context_tokens;
    }
    return longest;
}
