// SPDX-License-Identifier: Apache-2.0
// What the scheduler reads of a node and of the cluster. sched/ includes nothing of core/: core embeds a struct
// sched_node in each of its nodes and a struct sched_request in each of its requests, and passes a struct sched_view of
// all of them. Core writes them, core/ledger.c alone the parts marked as accounts; sched/ takes them as const. One
// thread.
#pragma once

#include "lib/base/hash.h"
#include "router/sched/cost.h"
#include "router/sched/prefix_index.h"
#include "router/sched/request_list.h"
#include "router/sched/sched_request.h"

enum node_role { NODE_SPECULATOR, NODE_WORKER, NODE_ROLES };

// Which requests may share a bin. BIN_DATASET is the one to use, the others are there to be compared with it.
enum bin_policy {
    BIN_DATASET, // all that wait
    BIN_BATCH,   // an arrival batch: the first `batch_requests` that wait, closed until all of them are dispatched
    BIN_NONE,    // one request per bin, first come first served
};

// --- a node

struct node_limits {
    int context_tokens, token_budget, block_tokens, kv_blocks, max_seqs;
};

// The work on a node. A bin is outstanding until all its prompts that fit a pass have been scored, have a first token
// or have ended. A long prompt has more rows than a pass: it is computed in chunks beside the bins that follow.
struct node_account {
    struct request_list requests; // on the node
    int bins;                     // outstanding
    int requests_in_bins;         // requests of which an outstanding bin waits for a result
    int64_t bin_tokens;           // rows of outstanding bins still to be computed
    double bin_attention_pairs;   // and their attention pairs
    int long_prompts;             // still to be computed
    int64_t long_tokens;          // their part of bin_tokens
    double long_attention_pairs;  // and of bin_attention_pairs
    int64_t kv_blocks;            // expected to be needed by the requests on it, shared ones counted once
    int64_t context_blocks;       // the same with shared blocks counted for each request: what attention reads
    int running_alone;            // a request that runs alone, without a token yet
};

// The most that the nodes of a part of an index have; the least for asks_rows. KV blocks are of PREFIX_BLOCK tokens.
struct node_room {
    int64_t blocks, open_blocks, idle_blocks; // of all nodes; of open ones; of idle ones that declined; -1: none
    int64_t asks_rows;
    int context;
};

// The place of a node in the index of its pool. Written by node_index.c alone.
struct node_place {
    struct node_index *index;
    double finish; // the key: predicted time or rows, then requests on the node, then the latest first
    int requests;
    uint64_t ordinal;
    bool is_known, is_open;
    bool takes_any;              // a bin of any size
    int64_t blocks_left, blocks; // in all; for requests other than the one it is reserved for
    int64_t asks_rows;           // the node is asked while this many rows wait; INT64_MAX: never
    bool has_declined;           // it is asked again when it has more than the least since then, which is below
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
    bool draining;                  // gets no new work: it drains or is ejected
    struct node_account account;    // accounts
    struct cost_model cost;         // accounts; of its passes
    struct cost_share share;        // accounts; of prompts, while other sequences decode
    struct prefix_record *prefixes; // in the index of its pool; NULL: the node has no prefix cache
    struct prefix_tails *tails;     // NULL without a prefix cache, see prefix_tails.h
    struct node_place place;
    const struct sched_node *next;
};

// Prompt rows of one pass of the node, beside the rows of its decoding sequences; half of the token budget at least.
int64_t sched_node_pass_rows(const struct sched_node *node);
int64_t sched_node_bin_rows(const struct sched_node *node); // of the next bin: a long prompt takes half of each pass

int sched_request_context(const struct sched_request *r, enum node_role role); // tokens of its longest sequence

// Whether the node could ever hold the request: whole for a prompt that is not scored yet, else its kept tokens.
bool sched_node_can_hold(const struct sched_node *node, const struct sched_request *r); // draining nodes: no
int64_t sched_node_blocks_left(const struct sched_node *node);                          // speculator: INT64_MAX
// Blocks of the node in blocks of PREFIX_BLOCK tokens, rounded up.
int64_t sched_index_blocks(const struct sched_node *node, int64_t blocks);
bool sched_node_shares_blocks(const struct sched_node *node); // between sequences with the same prefix
// Less those that it would share with requests on the node. Speculator: 0.
int sched_node_blocks_needed(const struct sched_node *node, const struct sched_request *r);
// The same with `shared` leading blocks of its prompt there, if the node shares blocks.
int sched_node_blocks_after(const struct sched_node *node, const struct sched_request *r, int shared);
// What the node must have left for the request to be found in the waiting set: what it needs, though no less than was
// known to be needed when it joined the set.
int sched_node_blocks_asked(const struct sched_node *node, const struct sched_request *r);
int sched_request_cached_blocks(const struct sched_request *r, const struct sched_node *node); // by its prefix index
int sched_request_rows_on(const struct sched_request *r, const struct sched_node *node);       // rows to be computed

// --- the cluster

struct sched_options {
    enum bin_policy policy;
    int batch_requests; // of BIN_BATCH
    int64_t max_wait_us;
    int tail_tokens;
    int bins_ahead;
    int64_t score_timeout_us; // a prompt waits this long for a speculator at most
    struct hash_key hash_key; // of prefix chains, tables and trees
};

// An overdue request that no worker group has the KV blocks for, and the group that keeps them for it: others get at
// most the blocks beyond its need, each once, until it starts. Without it, small requests would take each block that
// comes free, for ever. A request that runs alone needs the whole group. Both NULL: none.
struct reservation {
    const struct sched_request *request;
    const struct sched_node *node;
    int64_t lent_blocks; // to others so far
};

// A running mean of the keep rates that speculators chose for a quality.
struct rate_mean {
    double rate;
    int64_t added_us; // the last one; 0: none
};
void rate_mean_add(struct rate_mean *mean, double rate, int64_t now_us);
// The default rate after ten minutes without one: speculation that was found not to pay is then tried again.
double rate_mean_get(const struct rate_mean *mean, int64_t now_us);

struct sched_view {
    struct sched_options options;
    int64_t now_us;                            // of the last tick
    const struct sched_node *nodes;            // the latest first
    struct node_index *pools;                  // [NODE_ROLES] the nodes of each pool
    const struct waiting_set *waiting;         // [NODE_ROLES] the requests in front of each pool
    struct prefix_index *prefixes[NODE_ROLES]; // what the caches of each pool hold
    double computed_share[NODE_ROLES];         // accounts; share of dispatched rows that lately had to be computed
    struct rate_mean quality_rate;             // accounts
    struct reservation reservation;
};

bool sched_pool_can_hold(const struct sched_view *view, enum node_role role, const struct sched_request *r);
int sched_pool_context(const struct sched_view *view, enum node_role role); // of the node with the longest; 0: no node
