// SPDX-License-Identifier: Apache-2.0
// What the scheduler reads of a node and of the cluster. sched/ includes nothing of core/: core embeds a struct
// sched_node in each of its nodes and a struct sched_request in each of its requests, and passes a struct sched_view of
// all of them. Core writes them, core/ledger.c alone the parts marked as accounts; sched/ takes them as const. One
// thread.
#pragma once

#include "base/hash.h"
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

// The work on a node. A bin is outstanding until all its requests have been scored, have a first token or have ended.
struct node_account {
    struct request_list requests; // on the node
    int bins;                     // outstanding
    int requests_in_bins;         // requests of which an outstanding bin waits for a result
    int64_t bins_received;        // in all
    double residence_bins;        // mean number of bins the node receives while a request is on it
    int64_t bin_tokens;           // rows of outstanding bins still to be computed
    double bin_attention_pairs;   // and their attention pairs
    int64_t kv_blocks;            // expected to be needed by the requests on it
};

// The last plan for the node found no eligible request, with `blocks_left` KV blocks and `bins` outstanding bins. The
// next plan will find none either unless the node has more blocks or fewer bins, or a request that fits the blocks
// arrives or becomes overdue. Set and cleared by core/dispatch.c and core/requests.c.
struct no_eligible_note {
    bool set;
    int64_t blocks_left;
    int bins;
};

struct sched_node {
    enum node_role role;
    struct node_limits limits;
    bool draining;                 // gets no new work: it drains or is ejected
    struct node_account account;   // accounts
    struct cost_model cost;        // accounts; of its passes
    struct cost_share share;       // accounts; of prompts, while other sequences decode
    struct prefix_index *prefixes; // NULL: the node has no prefix cache
    struct prefix_tails *tails;    // NULL without a prefix cache, see prefix_tails.h
    struct no_eligible_note no_eligible;
    int64_t scanned_us; // when the whole waiting set was last scanned for it
    bool declined;      // a plan for it came out empty in this round of dispatching
    const struct sched_node *next;
};

// Whether the node could ever hold the request: whole for a prompt that is not scored yet, else its kept tokens.
bool sched_node_can_hold(const struct sched_node *node, const struct sched_request *r);        // draining nodes: no
int64_t sched_node_blocks_left(const struct sched_node *node);                                 // speculator: INT64_MAX
int sched_node_blocks_needed(const struct sched_node *node, const struct sched_request *r);    // speculator: 0
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

// An overdue request that no worker group has the KV blocks for, and the group that gets no other request until it has
// them. Without it, small requests would take each block that comes free, for ever. Both NULL: none.
struct reservation {
    const struct sched_request *request;
    const struct sched_node *node;
};

struct sched_view {
    struct sched_options options;
    int64_t now_us;                    // of the last tick
    const struct sched_node *nodes;    // the latest first
    const struct waiting_set *waiting; // [NODE_ROLES] the requests in front of each pool
    double computed_share[NODE_ROLES]; // accounts; share of dispatched rows that lately had to be computed
    struct reservation reservation;
};

bool sched_pool_can_hold(const struct sched_view *view, enum node_role role, const struct sched_request *r);
int sched_pool_context(const struct sched_view *view, enum node_role role); // of the node with the longest; 0: no node
