// SPDX-License-Identifier: Apache-2.0
#include "router/core/core_metrics.h"

#include <math.h>
#include <stdlib.h>

#include "lib/base/mem.h"
#include "router/core/core_state.h"
#include "router/sched/estimate.h"

// Returns the time until the queue is empty: the larger of the estimate and the time at the measured speed. The
// estimate covers prefill only. The measured speed includes everything that makes requests wait.
static double queue_us_of(const struct core *c, enum node_role role, double estimate_us)
{
    int64_t rows = c->waiting[role].rows;
    if (!waiting_set_count(&c->waiting[role])) return 0;
    if (!c->open_nodes[role]) return INFINITY;
    double measured_us = pool_speed_queue_us(&c->speeds[role], rows);
    if (!isfinite(measured_us)) return estimate_us;
    return isfinite(estimate_us) ? fmax(estimate_us, measured_us) : measured_us;
}

static struct pool_metrics pool_of(const struct core *c, enum node_role role, int64_t now_us)
{
    struct pool_estimate estimate = estimate_pool(&c->view, role);
    struct pool_metrics pool = {
        .nodes = c->open_nodes[role],
        .waiting = waiting_set_count(&c->waiting[role]),
        .waiting_rows = c->waiting[role].rows,
        .queue_us = queue_us_of(c, role, estimate.queue_us),
        .work_us = estimate.work_us,
        .busy_us = c->ledger.pools[role].busy_us,
        .attached_us = c->ledger.pools[role].gone_us,
    };
    for (const struct core_node *node = core_first_node(c); node; node = core_node_next(node)) {
        if (node->sched.role != role) continue;
        pool.running += node->sched.account.requests.count;
        pool.attached_us += (uint64_t)(now_us - node->attached_us);
    }
    return pool;
}

void core_get_pools(const struct core *c, int64_t now_us, struct pool_metrics pools[NODE_ROLES])
{
    for (enum node_role role = NODE_SPECULATOR; role <= NODE_WORKER; role++)
        pools[role] = pool_of(c, role, now_us);
}

static void copy_nodes(const struct node_measures_list *list, struct core_metrics *metrics)
{
    const struct node_measures *node;
    for (node = list->first; node; node = node->next)
        metrics->n_nodes++;
    metrics->nodes = mem_alloc_array((size_t)metrics->n_nodes, sizeof *metrics->nodes);
    int i = metrics->n_nodes; // the list begins with the latest node
    for (node = list->first; node; node = node->next) {
        metrics->nodes[--i] = *node;
        metrics->nodes[i].gpus = node_gpus_copy(&node->gpus);
    }
}

static void copy_tenants(const struct tenant_usages *usages, struct core_metrics *metrics)
{
    metrics->n_tenants = usages->n;
    metrics->tenants = mem_alloc_array((size_t)usages->n, sizeof *metrics->tenants);
    for (int i = 0; i < usages->n; i++)
        metrics->tenants[i] = usages->tenants[i];
}

void core_get_metrics(const struct core *c, int64_t now_us, struct core_metrics *metrics)
{
    *metrics = (struct core_metrics){.measures = c->ledger.measures};
    core_get_status(c, &metrics->status);
    core_get_pools(c, now_us, metrics->pools);
    copy_nodes(&c->ledger.nodes, metrics);
    copy_tenants(&c->ledger.usages, metrics);
}

const struct recent_bins *core_get_recent_bins(const struct core *c)
{
    return c->recent;
}

void core_metrics_fini(struct core_metrics *metrics)
{
    core_status_fini(&metrics->status);
    for (int i = 0; i < metrics->n_nodes; i++)
        node_gpus_fini(&metrics->nodes[i].gpus);
    free(metrics->nodes);
    free(metrics->tenants);
    metrics->nodes = NULL;
    metrics->tenants = NULL;
    metrics->n_nodes = metrics->n_tenants = 0;
}
