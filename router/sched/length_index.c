// SPDX-License-Identifier: Apache-2.0
// Requests are numbered in the order in which they arrive, so of equal rows the lower number is the higher key.
#include "router/sched/length_index.h"

#include <stddef.h>

#include "router/sched/request_tree.h"

struct length_key {
    int64_t rows;
    uint64_t number;
};

static struct length_key length_key_of(const struct sched_request *r)
{
    return (struct length_key){r->index_rows, r->number};
}

static bool length_is_below(const struct sched_request *r, const void *key)
{
    const struct length_key *k = key;
    return r->index_rows != k->rows ? r->index_rows < k->rows : r->number > k->number;
}

void length_index_add(struct length_index *index, struct sched_request *r)
{
    struct length_key key = length_key_of(r);
    request_tree_add(&index->root, BY_LENGTH, r, length_is_below, &key);
    index->count++;
}

void length_index_remove(struct length_index *index, struct sched_request *r)
{
    struct length_key key = length_key_of(r);
    request_tree_remove(&index->root, BY_LENGTH, r, length_is_below, &key);
    index->count--;
}

struct sched_request *length_index_longest(const struct length_index *index, int64_t rows, int64_t blocks)
{
    struct length_key key = {rows + 1, UINT64_MAX};
    return request_tree_before(index->root, BY_LENGTH, length_is_below, &key, blocks);
}

struct sched_request *length_index_next(const struct length_index *index, const struct sched_request *r, int64_t blocks)
{
    struct length_key key = length_key_of(r);
    return request_tree_before(index->root, BY_LENGTH, length_is_below, &key, blocks);
}

struct sched_request *length_index_shortest(const struct length_index *index, int64_t blocks)
{
    struct length_key none = {INT64_MIN, UINT64_MAX};
    const struct sched_request *r = request_tree_from(index->root, BY_LENGTH, length_is_below, &none, blocks);
    return r ? length_index_longest(index, r->index_rows, blocks) : NULL; // the oldest of that many rows
}
