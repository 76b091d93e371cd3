// SPDX-License-Identifier: Apache-2.0
// The trees are ordered by (number of the tenant queue, chain, age). Chains are compared like words in a dictionary.
#include "router/sched/prefix_groups.h"

#include <limits.h>
#include <stddef.h>

#include "router/sched/prefix_chain.h"
#include "router/sched/request_tree.h"
#include "router/sched/tenant_queue.h"

struct prefix_key {
    const struct tenant_queue *tenant_queue;
    const uint64_t *chain;
    int n;
    uint64_t number;
};

static struct prefix_key prefix_key_of(const struct sched_request *r)
{
    return (struct prefix_key){r->tenant_queue, r->prefix, r->n_prefix, r->number};
}

static bool prefix_is_below(const struct sched_request *r, const void *key)
{
    const struct prefix_key *k = key;
    if (r->tenant_queue != k->tenant_queue) return r->tenant_queue->number < k->tenant_queue->number;
    int common = prefix_chain_common(r->prefix, r->n_prefix, k->chain, k->n);
    if (common < r->n_prefix && common < k->n) return r->prefix[common] < k->chain[common];
    return r->n_prefix != k->n ? r->n_prefix < k->n : r->number < k->number;
}

static size_t tree_index(const struct tenant_queue *queue, const uint64_t *chain)
{
    return (chain[0] ^ queue->number) % PREFIX_TREES;
}

void prefix_groups_add(struct prefix_groups *groups, struct sched_request *r)
{
    if (!r->n_prefix) return;
    struct prefix_key key = prefix_key_of(r);
    request_tree_add(&groups->roots[tree_index(r->tenant_queue, r->prefix)], BY_PREFIX, r, prefix_is_below, &key);
}

void prefix_groups_remove(struct prefix_groups *groups, struct sched_request *r)
{
    if (!r->n_prefix) return;
    struct prefix_key key = prefix_key_of(r);
    request_tree_remove(&groups->roots[tree_index(r->tenant_queue, r->prefix)], BY_PREFIX, r, prefix_is_below, &key);
}

static int shared_with(const struct sched_request *r, const struct sched_request *other)
{
    if (!other || other->tenant_queue != r->tenant_queue) return 0;
    return prefix_chain_common(r->prefix, r->n_prefix, other->prefix, other->n_prefix);
}

int prefix_groups_shared(const struct prefix_groups *groups, const struct sched_request *r)
{
    if (!r->n_prefix) return 0;
    const struct request_need any = {INT_MAX, INT_MAX, INT_MAX};
    struct prefix_key key = prefix_key_of(r);
    struct sched_request *root = groups->roots[tree_index(r->tenant_queue, r->prefix)];
    int below = shared_with(r, request_tree_before(root, BY_PREFIX, prefix_is_below, &key, &any));
    int above = shared_with(r, request_tree_from(root, BY_PREFIX, prefix_is_below, &key, &any));
    return below > above ? below : above;
}

// Returns how many rows a request may have so that sharing `blocks` blocks still pays.
static int rows_paid_by(int blocks)
{
    return PREFIX_PAYS_ROWS * PREFIX_BLOCK * blocks;
}

bool prefix_group_pays(int rows, int shared_blocks)
{
    return rows <= rows_paid_by(shared_blocks);
}

// The type of request_tree_before() and request_tree_from(). Each searches on one side of the key.
typedef struct sched_request *tree_search_fn(struct sched_request *root, enum request_order order,
                                             request_below_fn *below, const void *key, const struct request_need *max);

// Returns the nearest request on one side of the key for which sharing pays, or NULL. On entry, *blocks_p is the number
// of blocks that the previous request shares with the chain; no request farther away shares more. On return, it is the
// number for the returned request. A neighbour of another tenant queue, or a neighbour that shares no block, ends the
// search.
static struct sched_request *walk_nearest(struct prefix_walk *walk, tree_search_fn *search,
                                          const struct prefix_key *key, int *blocks_p)
{
    while (walk->scan_cost < PREFIX_SCAN_MAX) {
        walk->scan_cost++;
        struct request_need max = {rows_paid_by(*blocks_p), INT_MAX, INT_MAX};
        struct sched_request *r = search(*walk->root, BY_PREFIX, prefix_is_below, key, &max);
        if (!r || r->tenant_queue != walk->tenant_queue) break;
        *blocks_p = prefix_chain_common(r->prefix, r->n_prefix, walk->chain, walk->n);
        if (!*blocks_p) return NULL;
        if (prefix_group_pays(r->need.rows, *blocks_p)) return r;
    }
    *blocks_p = 0;
    return NULL;
}

void prefix_walk_start(struct prefix_walk *walk, const struct prefix_groups *groups, const struct tenant_queue *queue,
                       const uint64_t *chain, int n)
{
    *walk = (struct prefix_walk){.tenant_queue = queue, .chain = chain, .n = n, .lower_blocks = n, .higher_blocks = n};
    if (!n) return;
    struct prefix_key key = {queue, chain, n, 0};
    walk->root = &groups->roots[tree_index(queue, chain)];
    walk->higher = walk_nearest(walk, request_tree_from, &key, &walk->higher_blocks);
    walk->lower = walk_nearest(walk, request_tree_before, &key, &walk->lower_blocks);
}

struct sched_request *prefix_walk_next(struct prefix_walk *walk)
{
    bool up = walk->higher_blocks >= walk->lower_blocks;
    struct sched_request *r = up ? walk->higher : walk->lower;
    if (!r) return NULL;
    struct prefix_key key = prefix_key_of(r);
    walk->blocks = up ? walk->higher_blocks : walk->lower_blocks;
    if (up) {
        key.number++; // among equal chains, the next request is younger
        walk->higher = walk_nearest(walk, request_tree_from, &key, &walk->higher_blocks);
    } else {
        walk->lower = walk_nearest(walk, request_tree_before, &key, &walk->lower_blocks);
    }
    return r;
}
