// SPDX-License-Identifier: Apache-2.0
// See request_tree.h: a search tree by the key, a heap by a hash of the request's number.
#include "router/sched/tree.h"

#include <stddef.h>

static uint64_t weight_of(const struct request *r) // the finaliser of splitmix64: numbers in a row look random
{
    uint64_t x = r->number + UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

// What most stands for, of this request alone.
static int64_t need_of(const struct request *r, enum request_order order)
{
    return order == BY_PREFIX ? r->index_rows : r->index_blocks;
}

static int64_t least_of(const struct request *tree, enum request_order order)
{
    return tree ? tree->least[order] : INT64_MAX;
}

// The links have changed.
static struct request *refresh(struct request *tree, enum request_order order)
{
    int64_t least = need_of(tree, order), low = least_of(tree->lower[order], order);
    int64_t high = least_of(tree->higher[order], order);
    if (low < least) least = low;
    tree->least[order] = high < least ? high : least;
    return tree;
}

// Everything below the key goes to *low_p, the rest to *high_p.
static void split(struct request *tree, enum request_order order, request_below *below, const void *key,
                  struct request **low_p, struct request **high_p)
{
    if (!tree) {
        *low_p = *high_p = NULL;
    } else if (below(tree, key)) {
        split(tree->higher[order], order, below, key, &tree->higher[order], high_p);
        *low_p = refresh(tree, order);
    } else {
        split(tree->lower[order], order, below, key, low_p, &tree->lower[order]);
        *high_p = refresh(tree, order);
    }
}

static struct request *merge(enum request_order order, struct request *low, struct request *high)
{
    if (!low || !high) return low ? low : high;
    if (weight_of(low) > weight_of(high)) {
        low->higher[order] = merge(order, low->higher[order], high);
        return refresh(low, order);
    }
    high->lower[order] = merge(order, low, high->lower[order]);
    return refresh(high, order);
}

void request_tree_add(struct request **root, enum request_order order, struct request *r, request_below *below,
                      const void *key)
{
    uint64_t weight = weight_of(r);
    int64_t need = need_of(r, order);
    while (*root && weight_of(*root) > weight) {
        if (need < (*root)->least[order]) (*root)->least[order] = need;
        root = below(*root, key) ? &(*root)->higher[order] : &(*root)->lower[order];
    }
    split(*root, order, below, key, &r->lower[order], &r->higher[order]);
    *root = refresh(r, order);
}

void request_tree_remove(struct request **root, enum request_order order, struct request *r, request_below *below,
                         const void *key)
{
    struct request *tree = *root;
    if (tree == r) {
        *root = merge(order, r->lower[order], r->higher[order]);
        r->lower[order] = r->higher[order] = NULL;
    } else {
        request_tree_remove(below(tree, key) ? &tree->higher[order] : &tree->lower[order], order, r, below, key);
        refresh(tree, order);
    }
}

// Where a whole tree stands on the right side of the key, `least` tells whether it has one: nothing is gone through in
// vain beyond the path to the key.
struct request *request_tree_before(struct request *root, enum request_order order, request_below *below,
                                    const void *key, int64_t most)
{
    if (!root || root->least[order] > most) return NULL;
    if (below(root, key)) {
        struct request *r = request_tree_before(root->higher[order], order, below, key, most);
        if (r) return r;
        if (need_of(root, order) <= most) return root;
    }
    return request_tree_before(root->lower[order], order, below, key, most);
}

struct request *request_tree_from(struct request *root, enum request_order order, request_below *below, const void *key,
                                  int64_t most)
{
    if (!root || root->least[order] > most) return NULL;
    if (!below(root, key)) {
        struct request *r = request_tree_from(root->lower[order], order, below, key, most);
        if (r) return r;
        if (need_of(root, order) <= most) return root;
    }
    return request_tree_from(root->higher[order], order, below, key, most);
}
