// SPDX-License-Identifier: Apache-2.0
#include "router/sched/due_index.h"

#include <limits.h>

#include "router/sched/request_tree.h"

struct due_key {
    int64_t due_us;
    uint64_t number;
};

static struct due_key due_key_of(const struct sched_request *r)
{
    return (struct due_key){r->due_us, r->number};
}

static bool due_is_below(const struct sched_request *r, const void *key)
{
    const struct due_key *k = key;
    return r->due_us != k->due_us ? r->due_us < k->due_us : r->number < k->number;
}

void due_index_add(struct due_index *index, struct sched_request *r)
{
    struct due_key key = due_key_of(r);
    request_tree_add(&index->root, BY_DUE, r, due_is_below, &key);
}

void due_index_remove(struct due_index *index, struct sched_request *r)
{
    struct due_key key = due_key_of(r);
    request_tree_remove(&index->root, BY_DUE, r, due_is_below, &key);
}

struct sched_request *due_index_before(const struct due_index *index, const struct sched_request *r)
{
    static const struct request_need any = {INT_MAX, INT_MAX, INT_MAX};
    struct due_key key = due_key_of(r);
    return request_tree_before(index->root, BY_DUE, due_is_below, &key, &any);
}

struct sched_request *due_index_next(const struct due_index *index, const struct sched_request *r,
                                     const struct request_need *max)
{
    struct due_key key = r ? (struct due_key){r->due_us, r->number + 1} : (struct due_key){INT64_MIN, 0};
    return request_tree_from(index->root, BY_DUE, due_is_below, &key, max);
}
