// SPDX-License-Identifier: Apache-2.0
// The blocks that the prefix caches of a pool's nodes are likely to hold: the prompt blocks of the requests that were
// dispatched to each node. With it, requests with a shared prefix go to a node that has the prefix, a bin counts only
// the rows that are left to compute, and KV blocks that sequences share are charged once (global prefix sharing:
// BatchLLM, arXiv 2412.03594).
//
// One tree of prefix chains serves all nodes. An edge is a run of blocks and the records of the nodes that hold it, so
// a prefix held by a thousand nodes is stored once, and one walk finds all of them. A node's record follows the node's
// own cache, which the router does not see. Blocks that requests on the node use are held. The rest is evicted in the
// order in which its last requests left, each chain from its end.
//
// Memory: a record and the runs of its node take at most PREFIX_RECORD_BYTES. Blocks that do not fit are evicted, or
// not recorded if too many are held. A request then holds a shorter run, and the blocks after it are charged as its
// own.
//
// The tree compares 32 bits of each block's hash. Two prefixes that agree in them are the same for the index: see
// prefix_chain.h for the cost of a collision.
//
// The index owns edges and records. One thread: the core's.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "router/sched/prefix_chain.h"

enum { PREFIX_RECORD_BYTES = 144 * 1024 };

struct sched_node;
struct prefix_index;
struct prefix_record; // the blocks of one node
struct prefix_run;    // a run of blocks from the start of a chain, held by a request on a node

struct prefix_index *prefix_index_create(void);
void prefix_index_free(struct prefix_index *index); // may be NULL; all records must be closed

// Finds the nodes that hold the start of the chain, and how many of its leading blocks each has. Writes at most `max`
// hits: most blocks first, of equals the node attached first. Returns their number. Costs O(runs of the chain + max).
struct prefix_hit {
    struct sched_node *node;
    int blocks;
};
int prefix_index_lookup(const struct prefix_index *index, const uint64_t *chain, int n, struct prefix_hit *hits,
                        int max);

// Returns the most leading blocks recorded for one node.
int prefix_index_most(const struct prefix_index *index, const uint64_t *chain, int n);
// Returns the most leading blocks held on one node.
int prefix_index_held(const struct prefix_index *index, const uint64_t *chain, int n);

// --- the record of a node

// Opens the record of a node. `blocks`: the capacity of its cache. `node` is only returned by lookups.
struct prefix_record *prefix_record_open(struct prefix_index *index, struct sched_node *node, int blocks);
void prefix_record_close(struct prefix_record *record); // call when the node is gone and holds nothing; may be NULL

int prefix_record_match(const struct prefix_record *record, const uint64_t *chain, int n); // leading blocks recorded
int prefix_record_held(const struct prefix_record *record, const uint64_t *chain, int n);  // leading blocks held
// Blocks held by any request, each counted once.
int64_t prefix_record_blocks_held(const struct prefix_record *record);

// Records and holds the blocks of a request with this chain that comes to the node. Returns the held run, which may be
// shorter than the chain, or NULL for none.
const struct prefix_run *prefix_record_hold(struct prefix_record *record, const uint64_t *chain, int n);
// Call when the request leaves; `run` may be NULL.
void prefix_record_release(struct prefix_record *record, const struct prefix_run *run);
int prefix_run_blocks(const struct prefix_run *run); // 0 for NULL
