// SPDX-License-Identifier: Apache-2.0
// What the prefix caches of all nodes of a pool are likely to hold: the prompt blocks of the requests that were
// dispatched to each node. Requests with a shared prefix go to a node that has it, a bin counts only the rows that are
// left to compute, and KV blocks that sequences share are charged once (global prefix sharing: BatchLLM, arXiv
// 2412.03594).
//
// One tree of prefix chains serves all nodes: an edge is a run of blocks and the records of the nodes that hold it, so
// a prefix held by a thousand nodes is stored once, and one walk finds all of them. A node's record follows the node's
// own cache, which the router does not see: blocks that requests on the node use are held; the others are evicted,
// those whose last request left first, each chain from its end.
//
// Memory: a record and the runs of its node take PREFIX_RECORD_BYTES at most. Blocks that do not fit are evicted, or
// not recorded if too many are held: a request then holds a shorter run, and the blocks behind it are charged as its
// own.
//
// The tree compares 32 bits of each block's hash. Two prefixes that agree in them are one to the index: see
// prefix_chain.h for what a collision costs.
//
// The index owns edges and records. One thread: the core's.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "router/sched/prefix_chain.h"

enum { PREFIX_RECORD_BYTES = 144 * 1024 };

struct sched_node;
struct prefix_index;
struct prefix_record; // of one node
struct prefix_run;    // a run of blocks from the start of a chain, held by a request on a node

struct prefix_index *prefix_index_create(void);
void prefix_index_free(struct prefix_index *index); // NULL is fine; all records are closed before

// The nodes that hold the start of the chain, and how many of its leading blocks each has: at most `max`, those with
// the most blocks first, of equals the node attached first. Returns their number. Costs O(runs of the chain + max).
struct prefix_hit {
    struct sched_node *node;
    int blocks;
};
int prefix_index_lookup(const struct prefix_index *index, const uint64_t *chain, int n, struct prefix_hit *hits,
                        int max);

int prefix_index_most(const struct prefix_index *index, const uint64_t *chain, int n); // no node has more blocks of it
int prefix_index_held(const struct prefix_index *index, const uint64_t *chain, int n); // most held by one node

// --- the record of a node

// `blocks`: the capacity of the node's cache. `node` is only returned by lookups.
struct prefix_record *prefix_record_open(struct prefix_index *index, struct sched_node *node, int blocks);
void prefix_record_close(struct prefix_record *record); // the node is gone and holds nothing. NULL is fine

int prefix_record_match(const struct prefix_record *record, const uint64_t *chain, int n); // leading blocks recorded
int prefix_record_held(const struct prefix_record *record, const uint64_t *chain, int n);  // leading blocks held
int64_t prefix_record_blocks_held(const struct prefix_record *record); // by any request, each block counted once

// A request with this chain comes to the node: records its blocks and holds them. Returns the run that is held, which
// may be shorter than the chain; NULL for none.
const struct prefix_run *prefix_record_hold(struct prefix_record *record, const uint64_t *chain, int n);
void prefix_record_release(struct prefix_record *record, const struct prefix_run *run); // it leaves; NULL is fine
int prefix_run_blocks(const struct prefix_run *run);                                    // 0 for NULL
