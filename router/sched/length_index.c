// SPDX-License-Identifier: Apache-2.0
// The key is (rows, age). Requests are numbered in order of arrival, so among equal rows the lower number has the
// higher key.
#include "router/sched/length_index.h"

#include "router/sched/request_tree.h"

struct length_key {
    int64_t rows;
    uint64_t number;
};

static struct length_key length_key_of(const struct sched_request *r)
{
    return (struct length_key){r->need.rows, r->number};
}

static bool length_is_below(const struct sched_request *r, const void *key)
{
    const struct length_key *k = key;
    return r->need.rows != k->rows ? r->need.rows < k->rows : r->number > k->number;
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

struct sched_request *length_index_longest(const struct length_index *index, const struct request_need *max)
{
    struct length_key key = {(int64_t)max->rows + 1, UINT64_MAX};
    return request_tree_before(index->root, BY_LENGTH, length_is_below, &key, max);
}

struct sched_request *length_index_next(const struct length_index *index, const struct sched_request *r,
                                        const struct request_need *max)
{
    struct length_key key = length_key_of(r);
    return request_tree_before(index->root, BY_LENGTH, length_is_below, &key, max);
}
