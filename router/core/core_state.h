// SPDX-License-Identifier: Apache-2.0
// The state of the core, for the files of router/core/ only. Each field names the file that writes it; the other files
// only read it.
#pragma once

#include "router/core/ledger.h"
#include "router/core/node.h"
#include "router/core/pool_speed.h"
#include "router/core/recent_bins.h"
#include "router/core/request_table.h"
#include "router/core/selection_cache.h"
#include "router/core/shadow.h"
#include "router/sched/node_index.h"
#include "router/sched/waiting_set.h"

// A worker group that was lost because it hung. It is remembered in case it attaches again.
struct suspect {
    char node_id[128];
    uint64_t instance; // the group's process; a new process with the same id is not suspected
    int ejections;     // ejections in a row, see struct node_health
};
enum { SUSPECTS_MAX = 16 };

// A process that an operator has drained. It is remembered in case it attaches again.
struct drained_process {
    char node_id[128];
    uint64_t instance;
};
enum { DRAINED_MAX = 64 };

// Default limit of the dispatch work of a tick for one pool, in units of dispatch.c: work_done(). This work takes about
// a millisecond. A tick with no limit would delay other events by 0.1 s if a thousand nodes were idle.
enum { CORE_TICK_WORK = 2048 };

struct core_health {
    struct suspect suspects[SUSPECTS_MAX]; // ring: a new entry replaces the oldest one
    unsigned n_suspects;                   // number of entries ever added
    // true: this tick checks the nodes, because a node attached, lost requests or missed a score's deadline. Set by
    // nodes.c, node_reports.c and requests.c.
    bool pending;
    int64_t checked_us,        // time of the last check of the nodes
        compared_us;           // time of the last comparison of their speeds
    uint64_t ejections, hangs; // number of ejections and of hangs, over all nodes
};

struct core {
    struct core_options options; // core_create()
    struct core_ops ops;         // core_create()

    struct request_table table;             // requests.c; all requests that have not ended
    struct request_timers timers;           // requests.c
    struct ledger ledger;                   // ledger.c
    struct slow_requests slow;              // requests.c
    struct waiting_set waiting[NODE_ROLES]; // requests.c adds and removes requests; dispatch.c plans bins from them

    // The part of the state that sched/ reads. nodes.c writes `nodes`, core.c now_us, ledger.c computed_share,
    // dispatch.c reservation. nodes.c and requests.c clear the reservation when its node or request goes.
    struct sched_view view;
    struct node_index nodes[NODE_ROLES];   // nodes.c adds and removes nodes; dispatch.c asks them in this order
    struct recent_bins recent[NODE_ROLES]; // dispatch.c
    struct selection_cache *selections;    // request_selection.c
    uint64_t scorer; // nodes.c; the scorer (node.h) that all speculators have; 0: they differ, or none is attached

    struct core_health health;    // health.c
    struct shadows shadows;       // shadow.c, shadow_run.c
    int open_nodes[NODE_ROLES];   // nodes.c; number of attached nodes that neither drain nor are ejected
    struct loading_node *loading; // loading.c; nodes that load their weights
    int n_loading;                // loading.c
    int64_t silence_us;           // nodes.c, loading.c; earliest time at which a node can have been silent for too long
    // nodes.c; the calibration that all attached speculators have. fingerprint 0: they have none, or different ones.
    struct node_calibration calibration;
    uint64_t model_fingerprint; // nodes.c; model of the worker group attached last; 0: no group has attached
    int64_t workers_gone_us;    // nodes.c; the last time that a worker group was lost, began to drain or left; 0: never
    int workers_gone_context;   // nodes.c; longest context of the worker groups that left within the grace period
    struct drained_process drained[DRAINED_MAX]; // nodes.c; ring: a new entry replaces the oldest one
    unsigned n_drained;                          // nodes.c; number of entries ever added
    bool advances_wait;                          // drafting.c; true: core_drafting_flush() has advances to send
    bool ready;                                  // nodes.c
    bool draining;                               // core.c
    uint64_t last_bin;                           // dispatch.c
    struct pool_speed speeds[NODE_ROLES];        // core.c
    bool in_round[NODE_ROLES];    // dispatch.c; true: the dispatch round of the pool goes on in the next tick
    uint64_t settled[NODE_ROLES]; // dispatch.c; pool_changes() at the end of the pool's last round
};

// Returns the first node of the list: the node attached last.
static inline struct core_node *core_first_node(const struct core *c)
{
    return core_node_of(c->view.nodes);
}

// Returns the end of the grace period (core_options.worker_grace_us), or 0 if no worker group has ever left.
static inline int64_t core_grace_end_us(const struct core *c)
{
    return c->workers_gone_us ? c->workers_gone_us + c->options.worker_grace_us : 0;
}

// Counts the requests that are on no worker group.
static inline int core_waiting_requests(const struct core *c)
{
    return c->table.count - c->ledger.running;
}

static inline void core_clear_reservation(struct core *c)
{
    if (c->view.reservation.node) node_index_note_change(&core_node_of(c->view.reservation.node)->sched);
    c->view.reservation = (struct reservation){NULL, NULL, 0};
}
