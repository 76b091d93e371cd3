// SPDX-License-Identifier: Apache-2.0
// An ordered index of waiting requests. It is a treap (Seidel and Aragon, 1996): a binary search tree balanced by
// random weights. Each operation takes O(log n). No function can fail, because the links are members of the requests.
// The weights are hashes under the key of the process, so that no client can unbalance a tree by sending and cancelling
// requests. A request is in at most one tree of each order. Trees do not own the requests. One thread.
//
// The callback `below` defines the order: it returns true if a request sorts below a key. No two requests of a tree
// have equal keys. Each subtree has the minimum of each need (rows, blocks, context) of its requests. So a search steps
// over a whole subtree if its requests need too much.
#pragma once

#include "router/sched/sched_request.h"

// Returns true if no part of `need` is larger than the same part of `max`.
bool request_need_is_met(const struct request_need *need, const struct request_need *max);
// Lowers each part of *min to the same part of *other if that part is smaller.
void request_need_include(struct request_need *min, const struct request_need *other);

typedef bool request_below_fn(const struct sched_request *r, const void *key);

// Add and remove a request. r->need must not change while the request is in a tree. `key` is the key of `r`.
void request_tree_add(struct sched_request **root, enum request_order order, struct sched_request *r,
                      request_below_fn *below, const void *key);
void request_tree_remove(struct sched_request **root, enum request_order order, struct sched_request *r,
                         request_below_fn *below, const void *key);

// Search only the requests that need at most `max`. request_tree_before() returns the last such request below the key.
// request_tree_from() returns the first such request that is not below the key. Both return NULL if there is none.
struct sched_request *request_tree_before(struct sched_request *root, enum request_order order, request_below_fn *below,
                                          const void *key, const struct request_need *max);
struct sched_request *request_tree_from(struct sched_request *root, enum request_order order, request_below_fn *below,
                                        const void *key, const struct request_need *max);
