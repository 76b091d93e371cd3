// SPDX-License-Identifier: Apache-2.0
#include "router/sched/reservation.h"

#include <limits.h>
#include <stddef.h>

#include "router/sched/node_index.h"
#include "router/sched/waiting_set.h"

enum { RESERVATION_SCAN_MAX = 64 }; // limit of examined overdue requests that fit no group

// Returns the first overdue request that fits some worker group.
static const struct sched_request *first_overdue(const struct sched_view *view)
{
    const struct request_need any = {INT_MAX, INT_MAX, INT_MAX};
    const struct sched_request *r = due_index_next(&view->waiting[NODE_WORKER].due_next, NULL, &any);
    for (int i = 0; i < RESERVATION_SCAN_MAX && r && !sched_pool_can_hold(view, NODE_WORKER, r); i++)
        r = due_index_next(&view->waiting[NODE_WORKER].due_next, r, &any);
    return r;
}

static bool is_better(const struct sched_node *node, const struct sched_node *best, bool runs_alone)
{
    if (!best) return true;
    if (runs_alone) return node->account.requests.count < best->account.requests.count;
    return sched_node_blocks_left(node) > sched_node_blocks_left(best);
}

static const struct sched_node *emptiest_node(const struct sched_view *view, const struct sched_request *r)
{
    const struct sched_node *best = NULL;
    for (const struct sched_node *node = view->nodes; node; node = node->next) {
        if (node->role != NODE_WORKER || !sched_node_can_hold(node, r)) continue;
        if (is_better(node, best, r->runs_alone)) best = node;
    }
    return best;
}

static bool may_start(const struct sched_view *view, struct node_index *workers, const struct sched_request *r)
{
    if (!r->runs_alone) return node_index_has_blocks(workers, view, r);
    const struct sched_node *node = emptiest_node(view, r);
    return node && node->account.requests.count == 0;
}

struct reservation reservation_update(const struct sched_view *view, struct node_index *workers)
{
    const struct reservation none = {NULL, NULL, 0};
    const struct sched_request *r = first_overdue(view);
    if (!r || may_start(view, workers, r)) return none;
    if (view->reservation.request == r) return view->reservation;
    return (struct reservation){r, emptiest_node(view, r), 0};
}
