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
#include "router/sched/node_index.h"
#include "router/sched/waiting_set.h"

// A worker group that was lost because it hung. It is remembered in case it attaches again.
struct suspect {
    char node_id[128];
    uint64_t instance; // of its process: a new process is not suspected
    int ejections;
};
enum { SUSPECTS_MAX = 16 };

// A process that an operator has drained. It is remembered in case it attaches again.
struct drained_process {
    char node_id[128];
    uint64_t instance;
};
enum { DRAINED_MAX = 64 };

// The work of a tick (dispatch.c: work_done()), about a millisecond. A thousand idle nodes would otherwise delay other
// events by a tenth of a second.
enum { CORE_TICK_WORK = 2048 };

struct core_health {
    struct suspect suspects[SUSPECTS_MAX]; // the latest replaces the oldest
    unsigned n_suspects;                   // ever added
    bool pending; // nodes.c, node_reports.c, requests.c; a node attached, lost requests or missed a score's deadline
    int64_t checked_us, compared_us; // the last time that nodes were checked, and that their speeds were compared
    uint64_t ejections, hangs;       // totals
};

struct core {
    struct core_options options; // core_create()
    struct core_ops ops;         // core_create()

    struct request_table table;             // requests.c; all requests that have not ended
    struct request_timers timers;           // requests.c
    struct ledger ledger;                   // ledger.c
    struct waiting_set waiting[NODE_ROLES]; // requests.c adds and removes, the bin planner picks for dispatch.c

    // The part of the state that sched/ reads. nodes.c writes `nodes`, core.c now_us, ledger.c computed_share,
    // dispatch.c reservation. nodes.c and requests.c clear the reservation when its node or request goes.
    struct sched_view view;
    struct node_index nodes[NODE_ROLES];   // nodes.c adds and removes nodes; the order in which dispatch.c asks them
    struct recent_bins recent[NODE_ROLES]; // dispatch.c
    struct selection_cache *selections;    // request_selection.c
    uint64_t scorer; // nodes.c; the scorer of all attached speculators; 0: they differ, or there is none

    struct core_health health;  // health.c
    int open_nodes[NODE_ROLES]; // nodes.c; attached, neither draining nor ejected
    int64_t silence_us;         // nodes.c; no node is silent for too long before this time
    // nodes.c; the calibration of all attached speculators. fingerprint 0: they have none, or different ones.
    struct node_calibration calibration;
    uint64_t model_fingerprint; // nodes.c; of the worker group attached last; 0: no group yet
    int64_t workers_gone_us;    // nodes.c; the last time that a worker group was lost, began to drain or left; 0: never
    int workers_gone_context;   // nodes.c; the longest context of groups that went within the time of grace
    struct drained_process drained[DRAINED_MAX]; // nodes.c; the latest replaces the oldest
    unsigned n_drained;                          // nodes.c; ever added
    bool advances_wait;                          // drafting.c; a node has advances to send
    bool ready;                                  // nodes.c
    bool draining;                               // core.c
    uint64_t last_bin;                           // dispatch.c
    struct pool_speed speeds[NODE_ROLES];        // core.c
    bool in_round[NODE_ROLES];                   // dispatch.c; work of the round is left for the next tick
    uint64_t settled[NODE_ROLES]; // dispatch.c; number of changes of the pool at the end of its last round
};

// Returns the first node of the list: the node attached last.
static inline struct core_node *core_first_node(const struct core *c)
{
    return core_node_of(c->view.nodes);
}

// Returns the end of the time of grace. Until then requests that no attached worker group can hold wait for a group to
// come back. This holds for new and queued requests.
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
