// SPDX-License-Identifier: Apache-2.0
// The nodes of one pool, ordered by the time at which they are predicted to finish their work and one more prompt, to
// find the one that gets the next bin in O(log nodes). A node that declined is asked again only when something has
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
    struct pool_limits limits; // of those that take work
    struct sched_node *root;
    struct sched_node *changed; // list
    struct sched_node *again;   // list; declined in favour of another node, asked again in the next round
    int n_nodes, capacity;
    int n_known;        // nodes with known costs
    bool by_time;       // nodes are compared by time; else by tokens, while the costs of some are not known
    double prompt_rows; // rows of the prompt by which nodes are compared: about the mean
    uint64_t last_ordinal, round;
    uint64_t changes;          // of nodes, so far
    uint64_t plans, visits;    // nodes asked, and steps of searches, for measurements
    uint64_t estimate_visits;  // nodes that estimates were made of
    uint64_t request_searches; // searches for a node for one request
};

void node_index_fini(struct node_index *index); // its nodes were removed
void node_index_add(struct node_index *index, struct sched_node *node);
void node_index_remove(struct sched_node *node); // nothing if it is in no index
void node_index_set_draining(struct sched_node *node, bool draining);
void node_index_note_change(struct sched_node *node); // its account, cost model or reservation has changed

void node_index_start_round(struct node_index *index, const struct sched_view *view);
// Of the nodes that may take what waits, the one that is predicted to finish first. NULL: none.
struct sched_node *node_index_next(struct node_index *index, const struct sched_view *view);
// A node with room for the request that declined before the request became packable or overdue: an idle one, for an
// overdue request any. NULL: none.
struct sched_node *node_index_next_for(struct node_index *index, const struct sched_view *view,
                                       const struct sched_request *r);
// A plan for the node was empty: `rows_missing` more rows have to wait until another one is made. `elsewhere`: a
// request waits for another node.
void node_index_decline(struct sched_node *node, const struct sched_view *view, int64_t rows_missing, bool elsewhere);

// Writes the first `max` nodes of the order to `nodes`; returns their number.
int node_index_first(struct node_index *index, const struct sched_view *view, const struct sched_node **nodes, int max);

// Whether a node of the pool has the KV blocks for the request now, whatever else keeps it from a bin.
bool node_index_has_blocks(struct node_index *index, const struct sched_view *view, const struct sched_request *r);
