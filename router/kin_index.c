// SPDX-License-Identifier: Apache-2.0
// By (share, chain, age): chains as words are in a dictionary.
#include "router/kin_index.h"

#include <stddef.h>

#include "router/prefix_index.h"
#include "router/request_tree.h"

struct key {
    const struct core_share *share;
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

static size_t tree_of(const struct core_share *share, const uint64_t *chain)
{
    return (chain[0] ^ (uintptr_t)share / 64) % KIN_TREES;
}

void kin_index_add(struct kin_index *index, struct request *r)
{
    struct key key = key_of(r);
    if (r->n_prefix) request_tree_add(&index->roots[tree_of(r->share, r->prefix)], BY_PREFIX, r, is_below, &key);
}

void kin_index_remove(struct kin_index *index, struct request *r)
{
    struct key key = key_of(r);
    if (r->n_prefix) request_tree_remove(&index->roots[tree_of(r->share, r->prefix)], BY_PREFIX, r, is_below, &key);
}

// A neighbour that is of another tenant, or begins otherwise, is no kin, and nobody beyond it is.
static int blocks_of(const struct kin_walk *walk, struct request **r_p)
{
    const struct request *r = *r_p;
    int blocks = r && r->share == walk->share ? prefix_chain_common(r->prefix, r->n_prefix, walk->chain, walk->n) : 0;
    if (!blocks) *r_p = NULL;
    return blocks;
}

static void go_lower(struct kin_walk *walk, const struct key *key)
{
    walk->lower = request_tree_before(*walk->root, BY_PREFIX, is_below, key);
    walk->lower_blocks = blocks_of(walk, &walk->lower);
}

static void go_higher(struct kin_walk *walk, const struct key *key)
{
    walk->higher = request_tree_from(*walk->root, BY_PREFIX, is_below, key);
    walk->higher_blocks = blocks_of(walk, &walk->higher);
}

void kin_walk_start(struct kin_walk *walk, const struct kin_index *index, const struct core_share *share,
                    const uint64_t *chain, int n)
{
    *walk = (struct kin_walk){.share = share, .chain = chain, .n = n};
    if (!n) return;
    struct key key = {share, chain, n, 0};
    walk->root = &index->roots[tree_of(share, chain)];
    go_lower(walk, &key);
    go_higher(walk, &key);
}

struct request *kin_walk_next(struct kin_walk *walk)
{
    bool up = walk->higher_blocks >= walk->lower_blocks;
    struct request *r = up ? walk->higher : walk->lower;
    if (!r) return NULL;
    struct key key = key_of(r);
    walk->blocks = up ? walk->higher_blocks : walk->lower_blocks;
    if (up) {
        key.number++; // the next of those that begin alike is younger
        go_higher(walk, &key);
    } else {
        go_lower(walk, &key);
    }
    return r;
}
