// SPDX-License-Identifier: Apache-2.0
#include "router/sched/node_choice.h"

#include "router/sched/node_time.h"

bool node_is_open(const struct sched_view *view, const struct sched_node *node)
{
    const struct node_account *account = &node->account;
    return !node->draining && account->bins < sched_node_bins_ahead(view, node) && account->running_alone == 0 &&
           account->requests.count < node->limits.max_seqs;
}

int64_t node_min_bin_rows(const struct sched_view *view, const struct sched_node *node)
{
    if (!node->account.bins || view->options.policy != BIN_DATASET) return 1;
    int64_t rows = node_time_min_bin_rows(view, node), most = sched_node_bin_rows(node);
    return rows < most ? rows : most;
}

int64_t node_blocks_for_others(const struct sched_view *view, const struct sched_node *node)
{
    const struct reservation *reservation = &view->reservation;
    int64_t left = sched_node_blocks_left(node);
    if (reservation->node != node) return left;
    if (reservation->request->runs_alone) return 0;
    int64_t needed = sched_node_blocks_asked(node, reservation->request);
    int64_t beyond = node->limits.kv_blocks - needed - reservation->lent_blocks;
    return beyond < 0 ? 0 : beyond < left ? beyond : left;
}

bool node_has_room(const struct sched_view *view, const struct sched_node *node, const struct sched_request *r)
{
    return node_is_open(view, node) && sched_node_can_hold(node, r) &&
           sched_node_blocks_asked(node, r) <= node_blocks_for_others(view, node);
}
