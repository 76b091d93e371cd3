// SPDX-License-Identifier: Apache-2.0
// By (share, chain, age): chains as words are in a dictionary.
#include "router/sched/prefix_groups.h"

#include <stddef.h>

#include "router/sched/prefix_index.h"
#include "router/sched/tree.h"

struct key {
    const struct tenant_queue *share;
    const uint64_t *chain;
    int n;
    uint64_t number;
};

static struct key key_of(const struct request *r)
{
    return (struct key){r->share, r->prefix, r->n_prefix, r->number};
}

static bool is_below(const struct request *r, const void *key)
{
    const struct key *k = key;
    if (r->share != k->share) return (uintptr_t)r->share < (uintptr_t)k->share;
    int same = prefix_chain_common(r->prefix, r->n_prefix, k->chain, k->n);
    if (same < r->n_prefix && same < k->n) return r->prefix[same] < k->chain[same];
    return r->n_prefix != k->n ? r->n_prefix < k->n : r->number < k->number;
}

static size_t tree_of(const struct tenant_queue *share, const uint64_t *chain)
{
    return (chain[0] ^ (uintptr_t)share / 64) % KIN_TREES;
}

void prefix_groups_add(struct prefix_groups *index, struct request *r)
{
    struct key key = key_of(r);
    if (r->n_prefix) request_tree_add(&index->roots[tree_of(r->share, r->prefix)], BY_PREFIX, r, is_below, &key);
}

void prefix_groups_remove(struct prefix_groups *index, struct request *r)
{
    struct key key = key_of(r);
    if (r->n_prefix) request_tree_remove(&index->roots[tree_of(r->share, r->prefix)], BY_PREFIX, r, is_below, &key);
}

static int64_t worth_rows(int blocks) // at most
{
    return (int64_t)KIN_WORTH * PREFIX_BLOCK * blocks;
}

bool prefix_group_pays(int rows, int blocks)
{
    return rows <= worth_rows(blocks);
}

// request_tree_before or request_tree_from: on which side of the key.
typedef struct request *side(struct request *root, enum request_order order, request_below *below, const void *key,
                             int64_t most);

// The nearest on one side. It has no more than *blocks_p in common with the chain, which is then set to how many; who
// is too long to be worth that is stepped over. A neighbour that is of another tenant, or begins otherwise, is no kin,
// and nobody beyond it is.
static struct request *nearest(struct prefix_walk *walk, side *find, const struct key *key, int *blocks_p)
{
    while (walk->looks < PREFIX_SCAN_MAX) {
        walk->looks++;
        struct request *r = find(*walk->root, BY_PREFIX, is_below, key, worth_rows(*blocks_p));
        if (!r || r->share != walk->share) break;
        *blocks_p = prefix_chain_common(r->prefix, r->n_prefix, walk->chain, walk->n);
        if (!*blocks_p) return NULL;
        if (prefix_group_pays(r->index_rows, *blocks_p)) return r;
    }
    *blocks_p = 0;
    return NULL;
}

void prefix_walk_start(struct prefix_walk *walk, const struct prefix_groups *index, const struct tenant_queue *share,
                       const uint64_t *chain, int n)
{
    *walk = (struct prefix_walk){.share = share, .chain = chain, .n = n, .lower_blocks = n, .higher_blocks = n};
    if (!n) return; // nothing is lower or higher
    struct key key = {share, chain, n, 0};
    walk->root = &index->roots[tree_of(share, chain)];
    walk->higher = nearest(walk, request_tree_from, &key, &walk->higher_blocks);
    walk->lower = nearest(walk, request_tree_before, &key, &walk->lower_blocks);
}

struct request *prefix_walk_next(struct prefix_walk *walk)
{
    bool up = walk->higher_blocks >= walk->lower_blocks;
    struct request *r = up ? walk->higher : walk->lower;
    if (!r) return NULL;
    struct key key = key_of(r);
    walk->blocks = up ? walk->higher_blocks : walk->lower_blocks;
    if (up) {
        key.number++; // the next of those that begin alike is younger
        walk->higher = nearest(walk, request_tree_from, &key, &walk->higher_blocks);
    } else {
        walk->lower = nearest(walk, request_tree_before, &key, &walk->lower_blocks);
    }
    return r;
}
