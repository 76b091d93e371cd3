// SPDX-License-Identifier: Apache-2.0
// Guesses which blocks the prefix caches of a pool's nodes hold. The index records the prompt blocks of the requests
// that were dispatched to each node (global prefix sharing: BatchLLM, arXiv 2412.03594). It has three uses. Requests go
// to a node that has their prefix. A bin counts only the rows that are not cached. KV blocks that sequences share are
// charged once.
//
// One radix tree of prefix chains serves all nodes of the pool. An edge stores a run of blocks and the records of the
// nodes that have these blocks. So a prefix that a thousand nodes have is stored once, and one walk finds all these
// nodes.
//
// A node's record imitates the node's own cache, which the router does not see. A block is held while a request on the
// node uses it. When the record is full, the least recently used of the other blocks are evicted. Each chain is evicted
// from its end.
//
// Memory: a record and its part of the tree take at most PREFIX_RECORD_BYTES. Blocks that do not fit are evicted. If
// the held blocks leave no room, new blocks are not recorded. The request then holds a shorter run, and its further
// blocks are charged to it alone.
//
// The tree compares only 32 bits of each block's hash. Two prefixes with equal bits count as the same prefix. See
// prefix_chain.h for the cost of such a collision.
//
// The index owns edges and records. One thread: the core's.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "router/sched/prefix_chain.h"

enum { PREFIX_RECORD_BYTES = 144 * 1024 };

struct sched_node;
struct prefix_index;
struct prefix_record; // the recorded blocks of one node
struct prefix_run;    // a run of blocks from the start of a chain, held by a request on a node

struct prefix_index *prefix_index_create(void);
void prefix_index_free(struct prefix_index *index); // may be NULL; all records must be closed

// Finds the nodes that have the start of the chain recorded, and how many leading blocks each of them has. Writes at
// most `max` hits, ordered by descending number of blocks, then by the time of attaching. Returns the number of hits.
// Costs O(runs of the chain + max).
struct prefix_hit {
    struct sched_node *node;
    int blocks;
};
int prefix_index_lookup(const struct prefix_index *index, const uint64_t *chain, int n, struct prefix_hit *hits,
                        int max);

// Returns the largest number of leading blocks of the chain that any one node has recorded.
int prefix_index_most(const struct prefix_index *index, const uint64_t *chain, int n);
// Returns the largest number of leading blocks of the chain that requests on any one node hold.
int prefix_index_held(const struct prefix_index *index, const uint64_t *chain, int n);

// --- the record of a node

// Opens the record of a node. `blocks` is the capacity of the node's cache. Look-ups return `node`; the index does not
// use it otherwise.
struct prefix_record *prefix_record_open(struct prefix_index *index, struct sched_node *node, int blocks);
void prefix_record_close(struct prefix_record *record); // no request may hold blocks of the record; NULL is fine

int prefix_record_match(const struct prefix_record *record, const uint64_t *chain, int n); // leading blocks recorded
int prefix_record_held(const struct prefix_record *record, const uint64_t *chain, int n);  // leading blocks held
// Returns the number of blocks that requests hold. A block counts once, however many requests hold it.
int64_t prefix_record_blocks_held(const struct prefix_record *record);

// Call when a request with this chain is dispatched to the node. Records the blocks and holds them. Returns the held
// run, which may be shorter than the chain. Returns NULL if no block is held.
const struct prefix_run *prefix_record_hold(struct prefix_record *record, const uint64_t *chain, int n);
// Call when the request leaves the node. `run` may be NULL.
void prefix_record_release(struct prefix_record *record, const struct prefix_run *run);
// Returns the number of blocks of the run that no other request holds.
int prefix_record_held_alone(const struct prefix_record *record, const struct prefix_run *run);
int prefix_run_blocks(const struct prefix_run *run); // blocks from the start of the chain; 0 for NULL
