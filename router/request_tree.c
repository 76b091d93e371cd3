// SPDX-License-Identifier: Apache-2.0
// See request_tree.h: a search tree by the key, a heap by a hash of the request's number.
#include "router/request_tree.h"

#include <stddef.h>

static uint64_t weight_of(const struct request *r) // the finaliser of splitmix64: numbers in a row look random
{
    uint64_t x = r->number + UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

// Everything below the key goes to *low_p, the rest to *high_p.
static void split(struct request *tree, enum request_order order, request_below *below, const void *key,
                  struct request **low_p, struct request **high_p)
{
    while (tree) {
        if (below(tree, key)) {
            *low_p = tree;
            low_p = &tree->higher[order];
            tree = tree->higher[order];
        } else {
            *high_p = tree;
            high_p = &tree->lower[order];
            tree = tree->lower[order];
        }
    }
    *low_p = *high_p = NULL;
}

static struct request *merge(enum request_order order, struct request *low, struct request *high)
{
    struct request *root, **link = &root;
    while (low && high) {
        if (weight_of(low) > weight_of(high)) {
            *link = low;
            link = &low->higher[order];
            low = low->higher[order];
        } else {
            *link = high;
            link = &high->lower[order];
            high = high->lower[order];
        }
    }
    *link = low ? low : high;
    return root;
}

void request_tree_add(struct request **root, enum request_order order, struct request *r, request_below *below,
                      const void *key)
{
    uint64_t weight = weight_of(r);
    while (*root && weight_of(*root) > weight)
        root = below(*root, key) ? &(*root)->higher[order] : &(*root)->lower[order];
    split(*root, order, below, key, &r->lower[order], &r->higher[order]);
    *root = r;
}

void request_tree_remove(struct request **root, enum request_order order, struct request *r, request_below *below,
                         const void *key)
{
    while (*root != r)
        root = below(*root, key) ? &(*root)->higher[order] : &(*root)->lower[order];
    *root = merge(order, r->lower[order], r->higher[order]);
    r->lower[order] = r->higher[order] = NULL;
}

struct request *request_tree_before(struct request *root, enum request_order order, request_below *below,
                                    const void *key)
{
    struct request *found = NULL;
    while (root) {
        if (below(root, key)) {
            found = root;
            root = root->higher[order];
        } else {
            root = root->lower[order];
        }
    }
    return found;
}

struct request *request_tree_from(struct request *root, enum request_order order, request_below *below, const void *key)
{
    struct request *found = NULL;
    while (root) {
        if (below(root, key)) {
            root = root->higher[order];
        } else {
            found = root;
            root = root->lower[order];
        }
    }
    return found;
}
