// SPDX-License-Identifier: Apache-2.0
// An ordered index of waiting requests: a treap (Seidel and Aragon, 1996) with its links in the requests. O(log n),
// nothing can fail. Its weights are hashes under the key of the process, so that no client can shape a tree by sending
// and cancelling requests. A request is in at most one tree of each order. Trees do not own the requests. One thread.
//
// A callback defines the order: it says whether a request sorts below a key. No two requests of a tree have equal keys.
// Each subtree knows the smallest needs of its requests, so a search steps over whole subtrees of requests that need
// too much.
#pragma once

#include "router/sched/sched_request.h"

bool request_need_is_met(const struct request_need *need, const struct request_need *max);
// Takes the smaller value of each.
void request_need_include(struct request_need *min, const struct request_need *other);

typedef bool request_below_fn(const struct sched_request *r, const void *key);

// Add and remove a request. Its need must not change while it is in a tree.
void request_tree_add(struct sched_request **root, enum request_order order, struct sched_request *r,
                      request_below_fn *below, const void *key);
void request_tree_remove(struct sched_request **root, enum request_order order, struct sched_request *r,
                         request_below_fn *below, const void *key);

// Return the last request below the key, and the first request not below it, that need at most `max`, or NULL.
struct sched_request *request_tree_before(struct sched_request *root, enum request_order order, request_below_fn *below,
                                          const void *key, const struct request_need *max);
struct sched_request *request_tree_from(struct sched_request *root, enum request_order order, request_below_fn *below,
                                        const void *key, const struct request_need *max);
