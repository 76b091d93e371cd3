// SPDX-License-Identifier: Apache-2.0
// A treap (Seidel and Aragon): a search tree by (rows, age), a heap by a hash of the request's number. Requests are
// numbered in the order they come, so of equal rows the lower number is the larger key.
#include "router/length_index.h"

#include <stddef.h>

static uint64_t weight_of(const struct request *r) // the finaliser of splitmix64: numbers in a row look random
{
    uint64_t x = r->number + UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

static bool is_below(const struct request *r, int64_t rows, uint64_t number)
{
    return r->index_rows != rows ? r->index_rows < rows : r->number > number;
}

// Everything below the key goes to *low_p, the rest to *high_p.
static void split(struct request *tree, int64_t rows, uint64_t number, struct request **low_p, struct request **high_p)
{
    while (tree) {
        if (is_below(tree, rows, number)) {
            *low_p = tree;
            low_p = &tree->longer;
            tree = tree->longer;
        } else {
            *high_p = tree;
            high_p = &tree->shorter;
            tree = tree->shorter;
        }
    }
    *low_p = *high_p = NULL;
}

static struct request *merge(struct request *low, struct request *high)
{
    struct request *root, **link = &root;
    while (low && high) {
        if (weight_of(low) > weight_of(high)) {
            *link = low;
            link = &low->longer;
            low = low->longer;
        } else {
            *link = high;
            link = &high->shorter;
            high = high->shorter;
        }
    }
    *link = low ? low : high;
    return root;
}

void length_index_add(struct length_index *index, struct request *r, int rows)
{
    struct request **link = &index->root;
    uint64_t weight = weight_of(r);
    while (*link && weight_of(*link) > weight)
        link = is_below(*link, rows, r->number) ? &(*link)->longer : &(*link)->shorter;
    r->index_rows = rows;
    split(*link, rows, r->number, &r->shorter, &r->longer);
    *link = r;
    index->count++;
}

void length_index_remove(struct length_index *index, struct request *r)
{
    struct request **link = &index->root;
    while (*link != r)
        link = is_below(*link, r->index_rows, r->number) ? &(*link)->longer : &(*link)->shorter;
    *link = merge(r->shorter, r->longer);
    r->shorter = r->longer = NULL;
    index->count--;
}

static struct request *highest_below(const struct length_index *index, int64_t rows, uint64_t number)
{
    struct request *found = NULL;
    for (struct request *r = index->root; r;) {
        if (is_below(r, rows, number)) {
            found = r;
            r = r->longer;
        } else {
            r = r->shorter;
        }
    }
    return found;
}

struct request *length_index_longest(const struct length_index *index, int64_t rows)
{
    return highest_below(index, rows + 1, UINT64_MAX);
}

struct request *length_index_next(const struct length_index *index, const struct request *r)
{
    return highest_below(index, r->index_rows, r->number);
}

struct request *length_index_shortest(const struct length_index *index)
{
    struct request *r = index->root;
    while (r && r->shorter)
        r = r->shorter;
    return r ? length_index_longest(index, r->index_rows) : NULL;
}
