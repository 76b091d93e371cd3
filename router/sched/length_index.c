// SPDX-License-Identifier: Apache-2.0
// By (rows, age). Requests are numbered in the order they come, so of equal rows the lower number is the higher key.
#include "router/sched/length_index.h"

#include <stddef.h>

#include "router/sched/tree.h"

struct key {
    int64_t rows;
    uint64_t number;
};

static struct key key_of(const struct request *r)
{
    return (struct key){r->index_rows, r->number};
}

static bool is_below(const struct request *r, const void *key)
{
    const struct key *k = key;
    return r->index_rows != k->rows ? r->index_rows < k->rows : r->number > k->number;
}

void length_index_add(struct length_index *index, struct request *r)
{
    struct key key = key_of(r);
    request_tree_add(&index->root, BY_LENGTH, r, is_below, &key);
    index->count++;
}

void length_index_remove(struct length_index *index, struct request *r)
{
    struct key key = key_of(r);
    request_tree_remove(&index->root, BY_LENGTH, r, is_below, &key);
    index->count--;
}

struct request *length_index_longest(const struct length_index *index, int64_t rows, int64_t blocks)
{
    struct key key = {rows + 1, UINT64_MAX};
    return request_tree_before(index->root, BY_LENGTH, is_below, &key, blocks);
}

struct request *length_index_next(const struct length_index *index, const struct request *r, int64_t blocks)
{
    struct key key = key_of(r);
    return request_tree_before(index->root, BY_LENGTH, is_below, &key, blocks);
}

struct request *length_index_shortest(const struct length_index *index, int64_t blocks)
{
    struct key none = {INT64_MIN, UINT64_MAX};
    const struct request *r = request_tree_from(index->root, BY_LENGTH, is_below, &none, blocks);
    return r ? length_index_longest(index, r->index_rows, blocks) : NULL;
}
