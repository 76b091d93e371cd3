// SPDX-License-Identifier: Apache-2.0
#include "router/sched/view.h"

#include "router/sched/node_index.h"

#include <limits.h>

int sched_request_context(const struct sched_request *r, enum node_role role)
{
    // The prompt's last row yields the first look-ahead token, so the look-ahead needs one KV entry fewer than it has
    // steps.
    int more = role == NODE_SPECULATOR ? r->spec->prefill.look_ahead - 1 : sampling_output_max(&r->spec->sampling);
    return more < INT_MAX - r->spec->n_tokens ? r->spec->n_tokens + more : INT_MAX;
}

// Returns the number of KV entries of a request at its end, or 0 if its kept tokens are unknown. The last generated
// token needs no entry, because it is never fed to the model.
static int64_t entries_needed(const struct sched_request *r)
{
    return r->usage->kept_tokens ? (int64_t)r->usage->kept_tokens + r->spec->sampling.max_tokens - 1 : 0;
}

bool sched_node_can_hold(const struct sched_node *node, const struct sched_request *r)
{
    const struct node_limits *limits = &node->limits;
    if (node->draining || sched_request_context(r, node->role) > limits->context_tokens) return false;
    if (r->usage->kept_tokens && node->role != NODE_WORKER) return false;
    return entries_needed(r) <= (int64_t)limits->kv_blocks * limits->block_tokens;
}

int64_t sched_node_pass_rows(const struct sched_node *node)
{
    int64_t budget = node->limits.token_budget, decodes = node->account.requests.count - node->account.requests_in_bins;
    return budget - (decodes < budget / 2 ? decodes : budget / 2);
}

int64_t sched_node_bin_rows(const struct sched_node *node)
{
    int64_t rows = sched_node_pass_rows(node);
    return node->account.long_prompts ? rows - rows / 2 : rows;
}

int64_t sched_node_blocks_left(const struct sched_node *node)
{
    return node->role == NODE_WORKER ? node->limits.kv_blocks - node->account.kv_blocks : INT64_MAX;
}

double sched_node_share(const struct sched_node *node, int64_t blocks)
{
    double slot = 1.0 / node->limits.max_seqs, kv = (double)blocks / node->limits.kv_blocks;
    return slot > kv ? slot : kv;
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

int64_t sched_index_blocks(const struct sched_node *node, int64_t blocks)
{
    int block_tokens = node->limits.block_tokens;
    if (node->role != NODE_WORKER || block_tokens == PREFIX_BLOCK) return blocks;
    return blocks * block_tokens / PREFIX_BLOCK + 2;
}

int sched_node_blocks_needed(const struct sched_node *node, const struct sched_request *r)
{
    int held = sched_node_shares_blocks(node) ? prefix_record_held(node->prefixes, r->prefix, r->n_prefix) : 0;
    return sched_node_blocks_after(node, r, held);
}

int sched_node_blocks_asked(const struct sched_node *node, const struct sched_request *r)
{
    int needed = sched_node_blocks_needed(node, r);
    return sched_node_shares_blocks(node) && r->need.blocks > needed ? r->need.blocks : needed;
}

int sched_request_cached_blocks(const struct sched_request *r, const struct sched_node *node)
{
    return node->prefixes ? prefix_record_match(node->prefixes, r->prefix, r->n_prefix) : 0;
}

int sched_request_rows_on(const struct sched_request *r, const struct sched_node *node)
{
    return sched_request_rows_after(r, sched_request_cached_blocks(r, node));
}

void rate_mean_add(struct rate_mean *mean, double rate, int64_t now_us)
{
    enum { PROMPTS = 32 };
    double before = rate_mean_get(mean, now_us);
    mean->rate = before + (rate - before) / PROMPTS;
    mean->added_us = now_us;
}

double rate_mean_get(const struct rate_mean *mean, int64_t now_us)
{
    const double default_rate = 0.3;
    const int64_t forget_us = 600 * INT64_C(1000000);
    return mean->added_us && now_us - mean->added_us < forget_us ? mean->rate : default_rate;
}

bool sched_pool_can_hold(const struct sched_view *view, enum node_role role, const struct sched_request *r)
{
    if (r->usage->kept_tokens && role != NODE_WORKER) return false;
    return pool_limits_hold(&view->pools[role].limits, sched_request_context(r, role), entries_needed(r));
}

int sched_pool_context(const struct sched_view *view, enum node_role role)
{
    return pool_limits_context(&view->pools[role].limits);
}
