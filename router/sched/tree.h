// SPDX-License-Identifier: Apache-2.0
// Waiting requests in some order: a treap (Seidel and Aragon) whose links live in the requests, O(log n), nothing can
// fail. A request is in one tree of each order at most. Does not own the requests. One thread.
//
// What an order sorts by is told by a function: whether a request stands below a key. No two requests of a tree have
// the same key. Every subtree knows the least that a request in it needs (in the order of beginnings: its rows, in the
// others: its KV blocks), so that who needs more than there is is stepped over, however many they are.
#pragma once

#include "router/core/request.h"

typedef bool request_below(const struct request *r, const void *key);

// index_rows and index_blocks stay as they are until it is removed.
void request_tree_add(struct request **root, enum request_order order, struct request *r, request_below *below,
                      const void *key);
void request_tree_remove(struct request **root, enum request_order order, struct request *r, request_below *below,
                         const void *key);

// Of those that need `most` or less: the highest that is below the key, and the lowest that is not. NULL: none.
struct request *request_tree_before(struct request *root, enum request_order order, request_below *below,
                                    const void *key, int64_t most);
struct request *request_tree_from(struct request *root, enum request_order order, request_below *below, const void *key,
                                  int64_t most);
