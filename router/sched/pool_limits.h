// SPDX-License-Identifier: Apache-2.0
// The largest requests that the nodes of a pool can hold, not counting draining nodes. Tells in O(log nodes) whether
// any node can hold a request. The list leaves out a node if another node has at least as much context and as many KV
// entries. The list is short, because most nodes of a pool are equal. Plain data of the node index; one thread.
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct sched_node;

struct pool_limit {
    int context_tokens;
    int64_t entries; // KV entries
};

struct pool_limits {
    struct pool_limit *list; // [n] by descending context, and so by ascending number of KV entries; owned
    int n, capacity;
};

void pool_limits_update(struct pool_limits *limits, struct sched_node *const *nodes, int n);
void pool_limits_fini(struct pool_limits *limits);

bool pool_limits_hold(const struct pool_limits *limits, int context_tokens, int64_t entries);
int pool_limits_context(const struct pool_limits *limits); // longest context; 0: every node drains, or there is no node
