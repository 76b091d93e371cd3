// SPDX-License-Identifier: Apache-2.0
// By (due, age).
#include "router/sched/due_index.h"

#include <stddef.h>

#include "router/sched/tree.h"

struct key {
    int64_t due_us;
    uint64_t number;
};

static struct key key_of(const struct request *r)
{
    return (struct key){r->due_us, r->number};
}

static bool is_below(const struct request *r, const void *key)
{
    const struct key *k = key;
    return r->due_us != k->due_us ? r->due_us < k->due_us : r->number < k->number;
}

void due_index_add(struct due_index *index, struct request *r)
{
    struct key key = key_of(r);
    request_tree_add(&index->root, BY_DUE, r, is_below, &key);
}

void due_index_remove(struct due_index *index, struct request *r)
{
    struct key key = key_of(r);
    request_tree_remove(&index->root, BY_DUE, r, is_below, &key);
}

struct request *due_index_before(const struct due_index *index, const struct request *r)
{
    struct key key = key_of(r);
    return request_tree_before(index->root, BY_DUE, is_below, &key, INT64_MAX);
}

struct request *due_index_next(const struct due_index *index, const struct request *r, int64_t blocks)
{
    struct key key = r ? (struct key){r->due_us, r->number + 1} : (struct key){INT64_MIN, 0};
    return request_tree_from(index->root, BY_DUE, is_below, &key, blocks);
}
