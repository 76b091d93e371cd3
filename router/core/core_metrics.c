// SPDX-License-Identifier: Apache-2.0
#include "router/core/core_metrics.h"

#include <stdlib.h>

#include "base/mem.h"
#include "router/core/core_state.h"
#include "router/sched/estimate.h"

static struct pool_metrics pool_of(const struct core *c, enum node_role role)
{
    struct pool_metrics pool = {
        .waiting = waiting_set_count(&c->waiting[role]),
        .waiting_rows = c->waiting[role].rows,
        .work_us = estimate_pool_us(&c->view, role),
    };
    for (const struct core_node *node = core_first_node(c); node; node = core_node_next(node)) {
        if (node->sched.role != role) continue;
        pool.running += node->sched.account.requests.count;
    }
    return pool;
}

static void copy_nodes(const struct node_measures_list *list, struct core_metrics *metrics)
{
    const struct node_measures *node;
    for (node = list->first; node; node = node->next)
        metrics->n_nodes++;
    metrics->nodes = mem_alloc_array((size_t)metrics->n_nodes, sizeof *metrics->nodes);
    int i = metrics->n_nodes; // the list begins with the latest
    for (node = list->first; node; node = node->next)
        metrics->nodes[--i] = *node;
}

void core_get_metrics(const struct core *c, struct core_metrics *metrics)
{
    *metrics = (struct core_metrics){.measures = c->ledger.measures};
    core_get_status(c, &metrics->status);
    for (enum node_role role = NODE_SPECULATOR; role <= NODE_WORKER; role++)
        metrics->pools[role] = pool_of(c, role);
    copy_nodes(&c->ledger.nodes, metrics);
}

const struct recent_bins *core_get_recent_bins(const struct core *c)
{
    return c->recent;
}

void core_metrics_fini(struct core_metrics *metrics)
{
    core_status_fini(&metrics->status);
    free(metrics->nodes);
    metrics->nodes = NULL;
    metrics->n_nodes = 0;
}
