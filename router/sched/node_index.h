// SPDX-License-Identifier: Apache-2.0
// The nodes of one pool, ordered by the time at which they are predicted to finish their work and one more prompt.
// Finds the node that gets the next bin in O(log nodes). To ask a node means to plan a bin for it. The node declines if
// the plan is empty. The node is asked again only after a change: the node has more room, enough rows wait, or a
// request that fits arrives or becomes overdue.
//
// The index is a treap with its links in the nodes (Seidel and Aragon, 1996). Each subtree stores the most room of its
// nodes, so a search steps over whole subtrees. Nodes' accounts change more often than nodes are chosen. So changed
// nodes are only collected, and are sorted before the next search. Core has one index per role. One thread.
#pragma once

#include "router/sched/pool_limits.h"
#include "router/sched/view.h"

struct node_index {
    enum node_role role;
    struct sched_node **nodes; // [n_nodes] in the order of adding
    struct pool_limits limits; // limits of the nodes that take work
    struct sched_node *root;
    struct sched_node *changed; // list of nodes that changed since the last search
    // list of nodes that declined because requests wait for another node; asked again in the next round
    struct sched_node *again;
    int n_nodes, capacity;
    int n_known;  // number of nodes with known costs
    bool by_time; // true: nodes are compared by time; false: by outstanding rows, while some costs are unknown
    // rows of the assumed next prompt by which nodes are compared; about the mean of waiting requests
    double prompt_rows;
    uint64_t last_ordinal, round;
    uint64_t changes;          // changes of nodes so far
    uint64_t plans, visits;    // number of times that a node was asked; steps of searches; both for metrics
    uint64_t estimate_visits;  // nodes examined for estimates
    uint64_t request_searches; // searches for a node for one request
};

void node_index_fini(struct node_index *index); // call after all nodes were removed
void node_index_add(struct node_index *index, struct sched_node *node);
void node_index_remove(struct sched_node *node); // no effect if the node is in no index
void node_index_set_draining(struct sched_node *node, bool draining);
// Call after the node's account, cost model, limits or reservation has changed.
void node_index_note_change(struct sched_node *node);

void node_index_start_round(struct node_index *index, const struct sched_view *view);
// Returns the node that is predicted to finish first among the nodes that should be asked, or NULL if there is none.
struct sched_node *node_index_next(struct node_index *index, const struct sched_view *view);
// Returns a node that has room for the request but has not been asked since the request became packable or overdue. If
// the request is not overdue, the node must be idle. Returns NULL if there is no such node.
struct sched_node *node_index_next_for(struct node_index *index, const struct sched_view *view,
                                       const struct sched_request *r);
// Records that a plan for the node was empty. The node is asked again when `rows_missing` more rows wait. `elsewhere`
// is true if a request fits the node but waits for another node.
void node_index_decline(struct sched_node *node, const struct sched_view *view, int64_t rows_missing, bool elsewhere);

// Writes up to `max` nodes to `nodes`, in the order of the index. Returns their number.
int node_index_first(struct node_index *index, const struct sched_view *view, const struct sched_node **nodes, int max);

// Returns true if a node of the pool has the KV blocks for the request now, even if it cannot take a bin for another
// reason.
bool node_index_has_blocks(struct node_index *index, const struct sched_view *view, const struct sched_request *r);
