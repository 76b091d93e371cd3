// SPDX-License-Identifier: Apache-2.0
// A copy of everything that metrics show of the core, so that another thread can write it. Taking it costs in
// proportion to the number of nodes. Use on the core's thread only.
#pragma once

#include "router/core/core.h"
#include "router/core/measures.h"
#include "router/core/recent_bins.h"

struct pool_metrics {
    int nodes;            // nodes that take work
    int waiting, running; // requests
    int64_t waiting_rows; // rows of the waiting requests in bins
    // queue_us: time until the waiting requests are dispatched, by the slower of the estimate and the measured speed
    // (pool_speed.h); 0: no request waits. work_us: see estimate_pool(). Infinite: not known.
    double queue_us, work_us;
    uint64_t busy_us, attached_us; // counters: time of its nodes' passes; time its nodes were attached
};
void core_get_pools(const struct core *c, int64_t now_us, struct pool_metrics pools[NODE_ROLES]);

struct core_metrics {
    struct core_status status; // with all attached nodes
    struct core_measures measures;
    struct pool_metrics pools[NODE_ROLES];
    struct node_measures *nodes; // [n_nodes] includes nodes that are gone; owned
    int n_nodes;
};

// Returns the bins dispatched last, of all roles [NODE_ROLES]. Use on the core's thread only.
const struct recent_bins *core_get_recent_bins(const struct core *c);

void core_get_metrics(const struct core *c, int64_t now_us, struct core_metrics *metrics);
void core_metrics_fini(struct core_metrics *metrics);
