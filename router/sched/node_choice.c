// SPDX-License-Identifier: Apache-2.0
#include "router/sched/node_choice.h"

#include <stddef.h>

#include "router/sched/estimate.h"
#include "router/sched/waiting_set.h"

struct dispatch_round dispatch_round_start(const struct sched_view *view, enum node_role role)
{
    const struct waiting_set *set = &view->waiting[role];
    int waiting = waiting_set_count(set);
    bool costs_known = waiting && estimate_costs_known(view, role, set->rows / waiting);
    return (struct dispatch_round){view, role, costs_known};
}

double dispatch_round_finish(const struct dispatch_round *round, const struct sched_node *node, int64_t rows,
                             int64_t cached)
{
    if (!round->costs_known) return (double)(node->account.bin_tokens + rows);
    return estimate_node_finish_us(node, rows, cached);
}

const struct sched_node *dispatch_round_next_node(const struct dispatch_round *round)
{
    const struct sched_view *view = round->view;
    const struct waiting_set *set = &view->waiting[round->role];
    const struct sched_node *best = NULL;
    double best_finish = 0;
    int64_t mean_rows = set->rows / waiting_set_count(set);
    for (const struct sched_node *node = view->nodes; node; node = node->next) {
        const struct node_account *account = &node->account;
        if (node->role != round->role || node->draining || node->declined) continue;
        if (account->bins >= view->options.bins_ahead || account->requests.count >= node->limits.max_seqs) continue;
        if (view->reservation.node == node) continue;
        double finish = round->costs_known ? estimate_node_finish_us(node, mean_rows, 0) : (double)account->bin_tokens;
        bool tie = best && finish <= best_finish && account->requests.count < best->account.requests.count;
        if (best && finish >= best_finish && !tie) continue;
        best = node;
        best_finish = finish;
    }
    return best;
}

struct reservation reservation_update(const struct sched_view *view)
{
    const struct reservation none = {NULL, NULL};
    const struct sched_request *r = view->waiting[NODE_WORKER].overdue.first;
    while (r && !sched_pool_can_hold(view, NODE_WORKER, r))
        r = r->next;
    if (!r) return none;
    const struct sched_node *emptiest = NULL;
    for (const struct sched_node *node = view->nodes; node; node = node->next) {
        if (node->role != NODE_WORKER || !sched_node_can_hold(node, r)) continue;
        if (sched_node_has_blocks(node, r)) return none;
        if (!emptiest || sched_node_blocks_left(node) > sched_node_blocks_left(emptiest)) emptiest = node;
    }
    return view->reservation.request == r ? view->reservation : (struct reservation){r, emptiest};
}
