// SPDX-License-Identifier: Apache-2.0
// The scheduler's view of nodes and the cluster. sched/ includes nothing of core/: core embeds a struct sched_node in
// each of its nodes and a struct sched_request in each of its requests, and passes a struct sched_view that refers to
// all of them. Core writes these structs, and only core/ledger.c writes fields marked as accounts. sched/ only reads
// them. One thread.
#pragma once

#include "lib/base/hash.h"
#include "router/sched/cost.h"
#include "router/sched/prefix_index.h"
#include "router/sched/request_list.h"
#include "router/sched/sched_request.h"

enum node_role { NODE_SPECULATOR, NODE_WORKER, NODE_ROLES };

// The rule for which requests may share a bin. BIN_DATASET is for use; the other policies are for comparison.
enum bin_policy {
    BIN_DATASET, // all waiting requests
    // an arrival batch: the first `batch_requests` waiting requests; the next batch begins when all of them are
    // dispatched
    BIN_BATCH,
    BIN_NONE, // one request per bin, first come first served
};

// --- a node

struct node_limits {
    int context_tokens, token_budget, block_tokens, kv_blocks, max_seqs;
    int more_stages;    // pipeline stages after the first; each of them has a pass of its own
    double fill_passes; // passes by which a result comes later than with one stage, at most more_stages
};

// The work on a node. A bin is outstanding until all its prompts that fit a pass have been scored, have a first token
// or have ended. A long prompt has more rows than a pass: it is computed in chunks that share passes with the following
// bins.
struct node_account {
    struct request_list requests; // requests on the node
    int bins;                     // outstanding bins
    int requests_in_bins;         // requests whose score or first token has not come yet
    int64_t bin_tokens;           // remaining rows of these requests
    double bin_attention_pairs;   // attention pairs of these rows
    int long_prompts;             // long prompts still to be computed
    int64_t long_tokens;          // part of bin_tokens that belongs to long prompts
    double long_attention_pairs;  // part of bin_attention_pairs that belongs to long prompts
    int64_t kv_blocks;            // KV blocks that the requests are expected to need; a shared block counts once
    int64_t context_blocks; // like kv_blocks, but a shared block counts for each request: the blocks attention reads
    int running_alone;      // requests that run alone (sched_request.h) and have no token yet
};

// Summary of the nodes in one subtree of a node index. KV blocks are counted in blocks of PREFIX_BLOCK tokens.
struct node_room {
    // Most free KV blocks of: any node; an open node that would not be asked otherwise; an idle node that declined. -1:
    // there is no such node.
    int64_t blocks, open_blocks, idle_blocks;
    int64_t asks_rows; // smallest node_place.asks_rows of an open node
    int context;       // longest context
};

// The place of a node in the index of its pool. Only node_index.c writes it. To ask a node means to plan a bin for it.
// The node declines if the plan is empty.
struct node_place {
    struct node_index *index;
    // Key of the order: predicted finish time (or outstanding rows while costs are unknown), then the number of
    // requests on the node, then the node added last.
    double finish;
    int requests;
    uint64_t ordinal;
    bool is_known, is_open;      // the node's costs are known; node_is_open()
    bool takes_any;              // the node gets a bin of any size
    int64_t blocks_left, blocks; // free KV blocks; node_blocks_for_others(); in blocks of PREFIX_BLOCK tokens
    int64_t asks_rows; // the node is asked while at least this many rows wait; INT64_MAX: the node is not asked
    // True after the node has declined, until it is asked again. The node is asked again once it has more room than the
    // least room since it declined. The fields least_* and most_* store that least room.
    bool has_declined;
    uint64_t declined_round, declined_joined; // node_index.round and waiting_set.joined when the node declined
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
    int other_rows;                 // decode rows and draft rows of other routers in the latest pass
    struct cost_model cost;         // accounts; cost of the node's passes
    struct cost_share share;        // accounts; time share of prompts in passes with decoding sequences
    struct prefix_record *prefixes; // the node's record in the prefix index; NULL: the node has no prefix cache
    struct prefix_tails *tails;     // see prefix_tails.h; NULL: the node has no prefix cache
    struct node_place place;
    const struct sched_node *next;
};

// Returns the prompt rows that fit one pass of the node after the rows of its decoding sequences. It is at least half
// of the token budget.
int64_t sched_node_pass_rows(const struct sched_node *node);
// Returns the rows that fit the node's next bin. A long prompt on the node takes half of each pass.
int64_t sched_node_bin_rows(const struct sched_node *node);

// Returns the largest number of tokens that the request's sequence can have on a node of this role.
int sched_request_context(const struct sched_request *r, enum node_role role);

// Returns true if the node could hold the request while it has no other requests. The context must fit the whole
// prompt. If the kept tokens are known, the KV blocks must fit them and the output. Returns false for a draining node.
bool sched_node_can_hold(const struct sched_node *node, const struct sched_request *r);
int64_t sched_node_blocks_left(const struct sched_node *node); // free KV blocks; INT64_MAX for a speculator
// Converts a number of the node's KV blocks to blocks of PREFIX_BLOCK tokens, rounded up by at most 2 blocks.
int64_t sched_index_blocks(const struct sched_node *node, int64_t blocks);
// Returns the share of a worker group that a request with `blocks` KV blocks takes: the larger of its share of the
// sequence slots and its share of the KV blocks. It is a request's dominant share (Ghodsi et al., NSDI 2011).
double sched_node_share(const struct sched_node *node, int64_t blocks);
bool sched_node_shares_blocks(const struct sched_node *node); // true: sequences with the same prefix share KV blocks
// Returns the KV blocks that the request needs, less the blocks that it would share with requests on the node. Returns
// 0 for a speculator.
int sched_node_blocks_needed(const struct sched_node *node, const struct sched_request *r);
// Like sched_node_blocks_needed(), but assumes that requests on the node hold `shared` leading blocks of the prompt.
int sched_node_blocks_after(const struct sched_node *node, const struct sched_request *r, int shared);
// Returns the number of free KV blocks that a node must have so that a search of the waiting set finds the request. It
// is sched_node_blocks_needed(), or r->need.blocks if that is larger and the node shares blocks.
int sched_node_blocks_asked(const struct sched_node *node, const struct sched_request *r);
// Returns the number of leading blocks that the node's cache holds, according to the prefix index.
int sched_request_cached_blocks(const struct sched_request *r, const struct sched_node *node);
// Returns the number of rows that the node has to compute for the request.
int sched_request_rows_on(const struct sched_request *r, const struct sched_node *node);

// --- the cluster

struct sched_options {
    enum bin_policy policy;
    int batch_requests; // size of a batch of BIN_BATCH
    int64_t max_wait_us;
    int tail_tokens;
    int bins_ahead;
    int64_t score_timeout_us; // longest wait of a prompt for a speculator
    struct hash_key hash_key; // key of the hashes in prefix chains, tables and trees
};

// A reservation of KV blocks. If no worker group has the free blocks for an overdue request, one group is reserved for
// it. Otherwise small requests could use up every block that becomes free, for ever. Until the overdue request starts,
// the group lends other requests only the blocks beyond its need, and each such block only once. For a request that
// runs alone, the whole group is reserved. `request` and `node` are NULL if there is no reservation.
struct reservation {
    const struct sched_request *request;
    const struct sched_node *node;
    int64_t lent_blocks; // blocks lent to other requests so far
};

// A running mean of the keep rates that speculators chose for a quality.
struct rate_mean {
    double rate;
    int64_t added_us; // time when the last rate was added; 0: never
};
void rate_mean_add(struct rate_mean *mean, double rate, int64_t now_us);
// Returns the mean, or a default if no rate was added for ten minutes. Otherwise a mean at which speculation does not
// pay would never change, because no further prompt would be scored.
double rate_mean_get(const struct rate_mean *mean, int64_t now_us);

struct sched_view {
    struct sched_options options;
    int64_t now_us;                            // time of the last tick
    const struct sched_node *nodes;            // latest node first
    struct node_index *pools;                  // [NODE_ROLES] the nodes of each pool
    const struct waiting_set *waiting;         // [NODE_ROLES] the waiting requests of each pool
    struct prefix_index *prefixes[NODE_ROLES]; // blocks in the caches of each pool
    double computed_share[NODE_ROLES];         // accounts; share of lately dispatched rows that were in no cache
    struct rate_mean quality_rate;             // accounts
    struct reservation reservation;
};

// Returns the limit of outstanding bins. Each further stage of a pipeline needs a bin more, to be as busy as the first.
static inline int sched_node_bins_ahead(const struct sched_view *view, const struct sched_node *node)
{
    return view->options.bins_ahead + node->limits.more_stages;
}

bool sched_pool_can_hold(const struct sched_view *view, enum node_role role, const struct sched_request *r);
// Returns the longest context of the pool's nodes that take work, or 0 if there is none.
int sched_pool_context(const struct sched_view *view, enum node_role role);
