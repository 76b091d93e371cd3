// SPDX-License-Identifier: Apache-2.0
#include "router/sched/pool_limits.h"

#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "router/sched/view.h"

// Returns the number of limits with at least this context.
static int count_long(const struct pool_limits *limits, int context_tokens)
{
    int low = 0, high = limits->n;
    while (low < high) {
        int middle = (low + high) / 2;
        if (limits->list[middle].context_tokens >= context_tokens) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

bool pool_limits_hold(const struct pool_limits *limits, int context_tokens, int64_t entries)
{
    int n = count_long(limits, context_tokens);
    return n && limits->list[n - 1].entries >= entries;
}

int pool_limits_context(const struct pool_limits *limits)
{
    return limits->n ? limits->list[0].context_tokens : 0;
}

static void limit_add(struct pool_limits *limits, struct pool_limit limit)
{
    if (pool_limits_hold(limits, limit.context_tokens, limit.entries)) return;
    int first = count_long(limits, limit.context_tokens + 1), end = first;
    while (end < limits->n && limits->list[end].entries <= limit.entries)
        end++;
    MEM_GROW(limits->list, limits->n, limits->capacity);
    memmove(&limits->list[first + 1], &limits->list[end], (size_t)(limits->n - end) * sizeof limit);
    limits->n += 1 - (end - first);
    limits->list[first] = limit;
}

void pool_limits_update(struct pool_limits *limits, struct sched_node *const *nodes, int n)
{
    limits->n = 0;
    for (int i = 0; i < n; i++) {
        const struct node_limits *l = &nodes[i]->limits;
        if (!nodes[i]->draining)
            limit_add(limits, (struct pool_limit){l->context_tokens, (int64_t)l->kv_blocks * l->block_tokens});
    }
}

void pool_limits_fini(struct pool_limits *limits)
{
    free(limits->list);
}
