// SPDX-License-Identifier: Apache-2.0
#include "sim/oracle_index.h"

#include <math.h>

#include "router/core/dispatch.h"
#include "router/sched/node_choice.h"
#include "router/sched/node_time.h"
#include "sim/oracle_waiting.h"

// Checks that a node's place in the index follows from its accounts, unless the change is still in the list of changes.
static void check_place(struct world *w, const struct core *c, const struct sched_node *node)
{
    const struct node_place *p = &node->place;
    const struct node_index *index = &c->nodes[node->role];
    HOLDS(p->index == index);
    if (p->is_changed) return;
    HOLDS(p->is_placed && p->requests == node->account.requests.count);
    double finish =
        index->by_time ? node_time_finish_us(node, (int64_t)index->prompt_rows, 0) : (double)node->account.bin_tokens;
    HOLDS(fabs(p->finish - finish) <= 1e-9 * finish);
    HOLDS(p->is_known == node_time_is_known(&c->view, node, (int64_t)index->prompt_rows));
    HOLDS(p->blocks_left == sched_index_blocks(node, sched_node_blocks_left(node)));
    HOLDS(p->blocks == sched_index_blocks(node, node_blocks_for_others(&c->view, node)));
    HOLDS(p->is_open == (!node->draining && node->account.bins < c->options.bins_ahead + node->limits.more_stages &&
                         !node->account.running_alone && node->account.requests.count < node->limits.max_seqs));
}

static int64_t most_of(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

// Counts the nodes of the tree. Checks that each node knows the most room in its subtree.
static int check_tree(struct world *w, const struct sched_node *node)
{
    if (!node || w->failed) return 0;
    const struct node_place *p = &node->place;
    bool declined = p->is_open && p->takes_any && p->asks_rows == INT64_MAX;
    struct node_room most = {.blocks = p->blocks_left,
                             .open_blocks = p->is_open && p->asks_rows > 0 ? p->blocks : -1,
                             .idle_blocks = declined ? p->blocks : -1,
                             .asks_rows = p->is_open ? p->asks_rows : INT64_MAX,
                             .context = node->limits.context_tokens};
    const struct sched_node *below[] = {p->lower, p->higher};
    for (int i = 0; i < 2; i++) {
        if (!below[i]) continue;
        const struct node_room *room = &below[i]->place.subtree;
        HOLDS(i ? below[i]->place.finish >= p->finish : below[i]->place.finish <= p->finish);
        most.blocks = most_of(most.blocks, room->blocks);
        most.open_blocks = most_of(most.open_blocks, room->open_blocks);
        most.idle_blocks = most_of(most.idle_blocks, room->idle_blocks);
        most.asks_rows = -most_of(-most.asks_rows, -room->asks_rows);
        most.context = (int)most_of(most.context, room->context);
    }
    HOLDS(p->subtree.blocks == most.blocks && p->subtree.open_blocks == most.open_blocks);
    HOLDS(p->subtree.idle_blocks == most.idle_blocks && p->subtree.asks_rows == most.asks_rows);
    HOLDS(p->subtree.context == most.context);
    return 1 + check_tree(w, p->lower) + check_tree(w, p->higher);
}

// Checks that a node is in the list of nodes to ask again, or of changed nodes, exactly if it is marked.
static void check_lists(struct world *w, const struct core *c, const struct node_index *index)
{
    int again = 0, changed = 0;
    for (const struct sched_node *node = index->again; node; node = node->place.again_next, again++)
        HOLDS(node->place.is_again && node->place.index == index);
    for (const struct sched_node *node = index->changed; node; node = node->place.changed_next, changed++)
        HOLDS(node->place.is_changed && node->place.index == index);
    for (const struct sched_node *node = c->view.nodes; node; node = node->next) {
        again -= node->place.index == index && node->place.is_again;
        changed -= node->place.index == index && node->place.is_changed;
    }
    HOLDS(again == 0 && changed == 0);
}

void oracle_index(struct world *w, const struct core *c, enum node_role role)
{
    const struct node_index *index = &c->nodes[role];
    int n = 0, placed = 0, known = 0;
    for (const struct sched_node *node = c->view.nodes; node; node = node->next) {
        if (node->role != role) continue;
        check_place(w, c, node);
        n++;
        placed += node->place.is_placed;
        known += node->place.is_known;
    }
    check_lists(w, c, index);
    HOLDS(n == index->n_nodes && known == index->n_known && check_tree(w, index->root) == placed);
}

void oracle_index_tick(struct world *w, const struct core *c, enum node_role role)
{
    const struct node_index *index = &c->nodes[role];
    if (core_dispatch_is_pending(c))
        return; // a node that attaches during a round is counted when the next round begins
    bool is_searched = waiting_set_count(&c->waiting[role]) > 0 && !index->changed && index->n_nodes;
    if (is_searched) HOLDS(index->by_time == (index->n_known == index->n_nodes));
}
