// SPDX-License-Identifier: Apache-2.0
// The nodes of one pool, ordered by the time at which they are predicted to finish their work and one more prompt.
// Finds the node that gets the next bin in O(log nodes). A node that declined is asked again only if something has
// changed for it: it has more room, enough rows wait, or a request that fits arrives or becomes overdue.
//
// A treap with its links in the nodes (Seidel and Aragon, 1996). Each subtree knows the most room of its nodes, so a
// search steps over whole subtrees. Accounts of nodes change more often than nodes are chosen: changed nodes are
// collected, and ordered again before the next search. Core has an index for each role. One thread.
#pragma once

#include "router/sched/pool_limits.h"
#include "router/sched/view.h"

struct node_index {
    enum node_role role;
    struct sched_node **nodes; // [n_nodes] in the order of adding
    struct pool_limits limits; // limits of the nodes that take work
    struct sched_node *root;
    struct sched_node *changed; // list
    struct sched_node *again;   // list; declined in favour of another node, asked again in the next round
    int n_nodes, capacity;
    int n_known;        // nodes with known costs
    bool by_time;       // nodes are compared by time; otherwise by tokens, while some costs are unknown
    double prompt_rows; // rows of the prompt by which nodes are compared: about the mean
    uint64_t last_ordinal, round;
    uint64_t changes;          // changes of nodes so far
    uint64_t plans, visits;    // nodes asked, and steps of searches, for measurements
    uint64_t estimate_visits;  // nodes examined for estimates
    uint64_t request_searches; // searches for a node for one request
};

void node_index_fini(struct node_index *index); // call when all its nodes were removed
void node_index_add(struct node_index *index, struct sched_node *node);
void node_index_remove(struct sched_node *node); // no effect if it is in no index
void node_index_set_draining(struct sched_node *node, bool draining);
// Call after its account, cost model or reservation has changed.
void node_index_note_change(struct sched_node *node);

void node_index_start_round(struct node_index *index, const struct sched_view *view);
// Returns the node that is predicted to finish first among the nodes that may take the waiting requests, or NULL.
struct sched_node *node_index_next(struct node_index *index, const struct sched_view *view);
// Returns a node with room for the request that declined before the request became packable or overdue, or NULL. For an
// overdue request any such node, otherwise an idle one.
struct sched_node *node_index_next_for(struct node_index *index, const struct sched_view *view,
                                       const struct sched_request *r);
// Records that a plan for the node was empty: `rows_missing` more rows have to wait until another plan is made.
// `elsewhere`: a request waits for another node.
void node_index_decline(struct sched_node *node, const struct sched_view *view, int64_t rows_missing, bool elsewhere);

// Writes the first `max` nodes of the order to `nodes`. Returns their number.
int node_index_first(struct node_index *index, const struct sched_view *view, const struct sched_node **nodes, int max);

// Returns true if a node of the pool has the KV blocks for the request now, even if it cannot take a bin for another
// reason.
bool node_index_has_blocks(struct node_index *index, const struct sched_view *view, const struct sched_request *r);
