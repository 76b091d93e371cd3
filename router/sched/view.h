// SPDX-License-Identifier: Apache-2.0
// The scheduler's view of nodes and the cluster. sched/ includes nothing of core/: core embeds a struct sched_node in
// each of its nodes and a struct sched_request in each of its requests, and passes a struct sched_view of all of them.
// Core writes them, and only core/ledger.c writes fields marked as accounts; sched/ takes them as const. One thread.
#pragma once

#include "lib/base/hash.h"
#include "router/sched/cost.h"
#include "router/sched/prefix_index.h"
#include "router/sched/request_list.h"
#include "router/sched/sched_request.h"

enum node_role { NODE_SPECULATOR, NODE_WORKER, NODE_ROLES };

// The rule for which requests may share a bin. BIN_DATASET is the one to use; the others are for comparison.
enum bin_policy {
    BIN_DATASET, // all waiting requests
    // an arrival batch: the first `batch_requests` waiting requests, closed until all of them are dispatched
    BIN_BATCH,
    BIN_NONE, // one request per bin, first come first served
};

// --- a node

struct node_limits {
    int context_tokens, token_budget, block_tokens, kv_blocks, max_seqs;
};

// The work on a node. A bin is outstanding until all its prompts that fit a pass have been scored, have a first token
// or have ended. A long prompt has more rows than a pass: it is computed in chunks that share passes with the following
// bins.
struct node_account {
    struct request_list requests; // requests on the node
    int bins;                     // outstanding bins
    int requests_in_bins;         // requests for which an outstanding bin waits
    int64_t bin_tokens;           // rows of outstanding bins still to be computed
    double bin_attention_pairs;   // attention pairs of these rows
    int long_prompts;             // long prompts still to be computed
    int64_t long_tokens;          // part of bin_tokens in long prompts
    double long_attention_pairs;  // part of bin_attention_pairs in long prompts
    int64_t kv_blocks;            // blocks that the node's requests are expected to need, shared ones counted once
    int64_t context_blocks; // the same, with shared blocks counted for each request: the blocks that attention reads
    int running_alone;      // requests that run alone and have no token yet
};

// The most room among the nodes of a part of an index; the least for asks_rows. KV blocks are of PREFIX_BLOCK tokens.
struct node_room {
    // most of all nodes; of open nodes; of idle nodes that declined; -1: none
    int64_t blocks, open_blocks, idle_blocks;
    int64_t asks_rows;
    int context;
};

// The place of a node in the index of its pool. Written by node_index.c alone.
struct node_place {
    struct node_index *index;
    double finish; // key: predicted time or rows, then requests on the node, then the latest first
    int requests;
    uint64_t ordinal;
    bool is_known, is_open;
    bool takes_any;              // takes a bin of any size
    int64_t blocks_left, blocks; // free in all; free for requests other than the one it is reserved for
    int64_t asks_rows;           // the node is asked while this many rows wait; INT64_MAX: never
    // the node is asked again once it has more than the least room since then, which the fields below keep
    bool has_declined;
    uint64_t declined_round, declined_joined; // as the index and the waiting set count
    int64_t least_blocks, least_pass_rows;
    int least_slots, most_bins, most_long_prompts;
    bool is_placed, is_changed, is_again;
    struct sched_node *lower, *higher, *changed_next, *again_next;
    struct node_room subtree;
};

struct sched_node {
    enum node_role role;
    struct node_limits limits;
    bool draining;                  // gets no new work because it drains or is ejected
    struct node_account account;    // accounts
    struct cost_model cost;         // accounts; costs of its passes
    struct cost_share share;        // accounts; share of prompts while other sequences decode
    struct prefix_record *prefixes; // record in the index of its pool; NULL: the node has no prefix cache
    struct prefix_tails *tails;     // see prefix_tails.h; NULL if the node has no prefix cache
    struct node_place place;
    const struct sched_node *next;
};

// Returns the prompt rows of one pass of the node in addition to the rows of its decoding sequences, at least half of
// the token budget.
int64_t sched_node_pass_rows(const struct sched_node *node);
// Rows of the next bin: a long prompt takes half of each pass.
int64_t sched_node_bin_rows(const struct sched_node *node);

int sched_request_context(const struct sched_request *r, enum node_role role); // tokens of its longest sequence

// Returns true if the node could ever hold the request: the whole prompt if it is not scored yet, else its kept tokens.
bool sched_node_can_hold(const struct sched_node *node, const struct sched_request *r); // draining nodes: no
int64_t sched_node_blocks_left(const struct sched_node *node);                          // speculator: INT64_MAX
// Converts blocks of the node to blocks of PREFIX_BLOCK tokens, rounded up.
int64_t sched_index_blocks(const struct sched_node *node, int64_t blocks);
bool sched_node_shares_blocks(const struct sched_node *node); // between sequences with the same prefix
// Returns the KV blocks that the request needs, less the blocks that it would share with requests on the node.
// Speculator: 0.
int sched_node_blocks_needed(const struct sched_node *node, const struct sched_request *r);
// Returns the same if `shared` leading blocks of its prompt were on the node and the node shares blocks.
int sched_node_blocks_after(const struct sched_node *node, const struct sched_request *r, int shared);
// Returns the blocks that the node must have left for the request to be found in the waiting set: its need, but no less
// than its known need when it joined the set.
int sched_node_blocks_asked(const struct sched_node *node, const struct sched_request *r);
int sched_request_cached_blocks(const struct sched_request *r, const struct sched_node *node); // by the prefix index
int sched_request_rows_on(const struct sched_request *r, const struct sched_node *node);       // rows to be computed

// --- the cluster

struct sched_options {
    enum bin_policy policy;
    int batch_requests; // size of a batch of BIN_BATCH
    int64_t max_wait_us;
    int tail_tokens;
    int bins_ahead;
    int64_t score_timeout_us; // longest wait of a prompt for a speculator
    struct hash_key hash_key; // for prefix chains, tables and trees
};

// An overdue request that no worker group has the KV blocks for, and the group that keeps them for it. Until it starts,
// other requests get at most the blocks beyond its need, each once. Otherwise small requests would take each free
// block, for ever. A request that runs alone needs the whole group. Both NULL: none.
struct reservation {
    const struct sched_request *request;
    const struct sched_node *node;
    int64_t lent_blocks; // blocks lent to other requests so far
};

// A running mean of the keep rates that speculators chose for a quality.
struct rate_mean {
    double rate;
    int64_t added_us; // time of the last rate; 0: none
};
void rate_mean_add(struct rate_mean *mean, double rate, int64_t now_us);
// Returns the default rate if none came for ten minutes: speculation that was found not to pay is then tried again.
double rate_mean_get(const struct rate_mean *mean, int64_t now_us);

struct sched_view {
    struct sched_options options;
    int64_t now_us;                            // time of the last tick
    const struct sched_node *nodes;            // latest node first
    struct node_index *pools;                  // [NODE_ROLES] the nodes of each pool
    const struct waiting_set *waiting;         // [NODE_ROLES] the waiting requests of each pool
    struct prefix_index *prefixes[NODE_ROLES]; // blocks in the caches of each pool
    double computed_share[NODE_ROLES];         // accounts; share of dispatched rows that lately had to be computed
    struct rate_mean quality_rate;             // accounts
    struct reservation reservation;
};

bool sched_pool_can_hold(const struct sched_view *view, enum node_role role, const struct sched_request *r);
// Returns the longest context of the pool's nodes; 0: no node.
int sched_pool_context(const struct sched_view *view, enum node_role role);
