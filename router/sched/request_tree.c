// SPDX-License-Identifier: Apache-2.0
// The treap of request_tree.h: a binary search tree by the key that is also a heap by the request's tree_weight. The
// weights are hashes, so the tree is balanced with high probability.
#include "router/sched/request_tree.h"

#include <stddef.h>

bool request_need_is_met(const struct request_need *need, const struct request_need *max)
{
    return need->rows <= max->rows && need->blocks <= max->blocks && need->context <= max->context;
}

static int smaller(int a, int b)
{
    return a < b ? a : b;
}

void request_need_include(struct request_need *min, const struct request_need *other)
{
    min->rows = smaller(min->rows, other->rows);
    min->blocks = smaller(min->blocks, other->blocks);
    min->context = smaller(min->context, other->context);
}

// Updates the root's subtree_min after one of its children has changed. Returns the root.
static struct sched_request *root_refresh(struct sched_request *root, enum request_order order)
{
    struct request_need min = root->need;
    if (root->lower[order]) request_need_include(&min, &root->lower[order]->subtree_min[order]);
    if (root->higher[order]) request_need_include(&min, &root->higher[order]->subtree_min[order]);
    root->subtree_min[order] = min;
    return root;
}

// Splits the tree in two: requests below the key go to *low_p, the other requests to *high_p.
static void tree_split(struct sched_request *tree, enum request_order order, request_below_fn *below, const void *key,
                       struct sched_request **low_p, struct sched_request **high_p)
{
    if (!tree) {
        *low_p = *high_p = NULL;
    } else if (below(tree, key)) {
        tree_split(tree->higher[order], order, below, key, &tree->higher[order], high_p);
        *low_p = root_refresh(tree, order);
    } else {
        tree_split(tree->lower[order], order, below, key, low_p, &tree->lower[order]);
        *high_p = root_refresh(tree, order);
    }
}

static struct sched_request *tree_merge(enum request_order order, struct sched_request *low, struct sched_request *high)
{
    if (!low || !high) return low ? low : high;
    if (low->tree_weight > high->tree_weight) {
        low->higher[order] = tree_merge(order, low->higher[order], high);
        return root_refresh(low, order);
    }
    high->lower[order] = tree_merge(order, low, high->lower[order]);
    return root_refresh(high, order);
}

void request_tree_add(struct sched_request **root, enum request_order order, struct sched_request *r,
                      request_below_fn *below, const void *key)
{
    while (*root && (*root)->tree_weight > r->tree_weight) {
        request_need_include(&(*root)->subtree_min[order], &r->need);
        root = below(*root, key) ? &(*root)->higher[order] : &(*root)->lower[order];
    }
    tree_split(*root, order, below, key, &r->lower[order], &r->higher[order]);
    *root = root_refresh(r, order);
}

void request_tree_remove(struct sched_request **root, enum request_order order, struct sched_request *r,
                         request_below_fn *below, const void *key)
{
    struct sched_request *tree = *root;
    if (tree == r) {
        *root = tree_merge(order, r->lower[order], r->higher[order]);
    } else {
        request_tree_remove(below(tree, key) ? &tree->higher[order] : &tree->lower[order], order, r, below, key);
        root_refresh(tree, order);
    }
}

// Finds the last fitting request below the key. subtree_min tells whether a subtree may have a fitting request, so few
// subtrees are searched in vain.
struct sched_request *request_tree_before(struct sched_request *root, enum request_order order, request_below_fn *below,
                                          const void *key, const struct request_need *max)
{
    if (!root || !request_need_is_met(&root->subtree_min[order], max)) return NULL;
    if (below(root, key)) {
        struct sched_request *r = request_tree_before(root->higher[order], order, below, key, max);
        if (r) return r;
        if (request_need_is_met(&root->need, max)) return root;
    }
    return request_tree_before(root->lower[order], order, below, key, max);
}

struct sched_request *request_tree_from(struct sched_request *root, enum request_order order, request_below_fn *below,
                                        const void *key, const struct request_need *max)
{
    if (!root || !request_need_is_met(&root->subtree_min[order], max)) return NULL;
    if (!below(root, key)) {
        struct sched_request *r = request_tree_from(root->lower[order], order, below, key, max);
        if (r) return r;
        if (request_need_is_met(&root->need, max)) return root;
    }
    return request_tree_from(root->higher[order], order, below, key, max);
}
