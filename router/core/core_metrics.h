// SPDX-License-Identifier: Apache-2.0
// A copy of everything that metrics show about the core, so that another thread can format it. The cost of a copy is
// proportional to the number of nodes. Use on the core's thread only.
#pragma once

#include "router/core/core.h"
#include "router/core/measures.h"
#include "router/core/recent_bins.h"
#include "router/core/tenant_usage.h"

struct pool_metrics {
    int nodes;            // nodes that take work
    int waiting, running; // requests that wait for the pool; requests on its nodes
    int64_t waiting_rows; // rows that the waiting requests will take in bins
    double queue_us,      // time until the waiting requests are dispatched; 0: no request waits; INFINITY: not known
        work_us;          // see estimate_pool(); INFINITY: not known
    uint64_t busy_us,     // counter: time that nodes of the pool spent in passes
        attached_us;      // counter: time for which nodes of the pool were attached, summed over the nodes
};
void core_get_pools(const struct core *c, int64_t now_us, struct pool_metrics pools[NODE_ROLES]);

struct core_metrics {
    struct core_status status; // includes all attached nodes
    struct core_measures measures;
    struct pool_metrics pools[NODE_ROLES];
    struct node_measures *nodes; // [n_nodes] measures of attached nodes and of nodes that are gone; owned
    int n_nodes;
    struct tenant_usage *tenants; // [n_tenants] owned; the core owns their names, which live as long as the core
    int n_tenants;                // 0: tenants are not counted
};

// Returns an array [NODE_ROLES] with the bins dispatched last to each pool. Borrowed from the core.
const struct recent_bins *core_get_recent_bins(const struct core *c);

void core_get_metrics(const struct core *c, int64_t now_us, struct core_metrics *metrics);
void core_metrics_fini(struct core_metrics *metrics);
