// SPDX-License-Identifier: Apache-2.0
// The largest requests that the open nodes of a pool can hold: tells in O(log nodes) whether one of them can hold a
// request. Lists only limits that no other node exceeds in both respects. These are few, because the nodes of a pool
// are mostly equal. Plain data of the node index; one thread.
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct sched_node;

struct pool_limit {
    int context_tokens;
    int64_t entries; // KV entries
};

struct pool_limits {
    struct pool_limit *list; // [n] the longest context first, so the fewest entries first
    int n, capacity;
};

void pool_limits_update(struct pool_limits *limits, struct sched_node *const *nodes, int n);
void pool_limits_fini(struct pool_limits *limits);

bool pool_limits_hold(const struct pool_limits *limits, int context_tokens, int64_t entries);
int pool_limits_context(const struct pool_limits *limits); // longest context; 0: no node is open
