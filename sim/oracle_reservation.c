// SPDX-License-Identifier: Apache-2.0
#include "sim/oracle_reservation.h"

#include "router/sched/node_index.h"
#include "router/sched/reservation.h"
#include "router/sched/waiting_set.h"

// larger pools and queues are not checked: there the router examines only a part of them
enum { OVERDUE_MAX = 64, NODES_MAX = 16 };

static const char *problem;

const char *oracle_reservation_problem(void)
{
    const char *last = problem;
    problem = NULL;
    return last;
}

static bool is_held_by_some(const struct sched_view *view, const struct sched_request *r)
{
    for (const struct sched_node *node = view->nodes; node; node = node->next)
        if (node->role == NODE_WORKER && sched_node_can_hold(node, r)) return true;
    return false;
}

// Returns the first overdue request that some group can hold.
static const struct sched_request *first_overdue(const struct sched_view *view)
{
    const struct sched_request *r = view->waiting[NODE_WORKER].overdue.first;
    while (r && (!r->packable || !is_held_by_some(view, r)))
        r = r->next;
    return r;
}

// Returns true if a group has the blocks for the request now, or is idle if the request must run alone.
static bool may_start(const struct sched_view *view, const struct sched_request *r)
{
    for (const struct sched_node *node = view->nodes; node; node = node->next) {
        if (node->role != NODE_WORKER || !sched_node_can_hold(node, r)) continue;
        if (r->runs_alone ? !node->account.requests.count
                          : sched_node_blocks_asked(node, r) <= sched_node_blocks_left(node))
            return true;
    }
    return false;
}

// Returns true if no other group that can hold the request has more blocks left. For a request that must run alone,
// compares the groups by their number of requests.
static bool is_emptiest(const struct sched_view *view, const struct sched_node *node, const struct sched_request *r)
{
    if (!node || node->role != NODE_WORKER || !sched_node_can_hold(node, r)) return false;
    for (const struct sched_node *other = view->nodes; other; other = other->next) {
        if (other->role != NODE_WORKER || !sched_node_can_hold(other, r)) continue;
        if (r->runs_alone ? other->account.requests.count < node->account.requests.count
                          : sched_node_blocks_left(other) > sched_node_blocks_left(node))
            return false;
    }
    return true;
}

struct reservation __real_reservation_update(const struct sched_view *view, struct node_index *workers);
struct reservation __wrap_reservation_update(const struct sched_view *view, struct node_index *workers);

struct reservation __wrap_reservation_update(const struct sched_view *view, struct node_index *workers)
{
    const struct reservation before = view->reservation, now = __real_reservation_update(view, workers);
    if (workers->n_nodes > NODES_MAX || view->waiting[NODE_WORKER].overdue.count > OVERDUE_MAX) return now;
    const struct sched_request *r = first_overdue(view);
    if (r && may_start(view, r)) r = NULL;
    if (now.request != r) problem = "the reservation is not for the first overdue request";
    if (!r || now.request != r) return now;
    bool is_kept = before.request == r && before.node == now.node && before.lent_blocks == now.lent_blocks;
    bool is_new = before.request != r && now.lent_blocks == 0 && is_emptiest(view, now.node, r);
    if (!is_kept && !is_new) problem = "the reserved group is not the emptiest";
    return now;
}
