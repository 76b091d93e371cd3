// SPDX-License-Identifier: Apache-2.0
// What sched/ knows of a request, of a node and of the cluster. sched/ includes nothing of core/: core embeds a struct
// sched_request in each request and a struct sched_node in each node, and passes a struct sched_view of all of them.
//
// Writers: core sets the facts (core/ledger.c alone those marked as accounts), the waiting set sets the keys and links of
// a request that waits. The functions of sched/ that decide take everything but the waiting set as const. One thread.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "model/generation.h"
#include "router/sched/cost.h"
#include "router/sched/prefix_index.h"
#include "router/sched/request_list.h"

enum node_role { NODE_SPECULATOR, NODE_WORKER, NODE_ROLES };

// Which requests may share a bin. BIN_DATASET is the one to use, the others are there to be compared with it.
enum bin_policy {
    BIN_DATASET, // all that wait
    BIN_BATCH,   // an arrival batch: the first `batch_requests` that wait, closed until all of them are dispatched
    BIN_NONE,    // one request per bin, first come first served
};

// Larger priorities go first. Values beyond PRIORITY_MAX on either side count as PRIORITY_MAX.
enum { PRIORITY_MAX = 8, PRIORITY_LEVELS = 2 * PRIORITY_MAX + 1 };
int sched_priority_level(int32_t priority); // 0 is the lowest

// --- a request

// What the client asked for. Constant once the request is TOKENISED.
struct request_spec {
    int32_t *tokens; // [n_tokens] the whole prompt; owned
    int n_tokens;
    struct sampling sampling; // resolved: max_tokens is set
    struct prefill prefill;
    struct token_range *pinned; // kept whatever their importance; owned
    int n_pinned;
    bool score_only; // a Score call: ends when the speculator has answered
    bool want_importance;
    int32_t priority;
    char *tenant; // owned, may be NULL
    int64_t arrived_us;
    int64_t ttft_deadline_us; // a first token after it is of no use; on clock_now_us(), INT64_MAX: none
    bool deadline_of_call;    // ttft_deadline_us is the call's deadline, which is earlier than the request's own
};

// What the request has used so far. Accounts. kept_tokens is 0 until the kept tokens are known.
struct request_usage {
    int prompt_tokens, scored_tokens, kept_tokens, cached_tokens, completion_tokens, replays;
};

struct request_timing { // accounts, in microseconds
    int64_t queue_us, score_us, pack_wait_us, prefill_us, ttft_us, total_us;
};

// The orders in which waiting requests are indexed: length_index.h, prefix_groups.h, due_index.h (overdue ones only).
enum request_order { BY_LENGTH, BY_PREFIX, BY_DUE, REQUEST_ORDERS };

struct sched_request {
    // Facts. The first four are set when the request is created.
    uint64_t number; // unique; the smaller the older
    const struct request_spec *spec;
    const struct request_usage *usage;
    const struct request_timing *timing;
    uint64_t *prefix; // [n_prefix] the prefix chain of the rows of its next pass, see prefix_index.h; owned
    int n_prefix;

    // Keys, set by the waiting set while the request waits.
    struct tenant_queue *tenant_queue; // also kept while the request is on a node, to charge its tenant
    int64_t due_us;                    // when it should be dispatched at the latest; 0: at once
    bool overdue;                      // due_us has passed: it goes into the next bin, whatever its priority
    bool packable;                     // in the indexes
    int index_rows, index_blocks;      // rows of its next pass; KV blocks of PREFIX_BLOCK tokens it is expected to need

    // Links, set by request_list.c and request_tree.c.
    struct request_list *list;
    struct sched_request *prev, *next;
    struct sched_request *lower[REQUEST_ORDERS], *higher[REQUEST_ORDERS];
    int64_t subtree_min[REQUEST_ORDERS];
};

int sched_request_rows(const struct sched_request *r); // of its next pass: the whole prompt, or kept tokens and output
int sched_request_rows_after(const struct sched_request *r, int cached_blocks); // less the blocks that a cache holds
int sched_request_kv_blocks(const struct sched_request *r, int block_tokens);   // expected to be needed

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

// The last plan for the node found no eligible request with so many KV blocks left and bins outstanding. With no more
// blocks and no fewer bins the next one will not either, until a request that would fit the blocks arrives or becomes
// overdue. Set and cleared by core/dispatch.c and core/requests.c.
struct no_eligible_note {
    bool set;
    int64_t blocks_left;
    int bins;
};

struct sched_node {
    enum node_role role;
    struct node_limits limits;
    bool draining;               // gets no new work
    struct node_account account; // accounts
    struct cost_model cost;      // accounts; of its passes
    struct prefix_index *prefixes;    // NULL: the node has no prefix cache
    struct prefix_tails *tails;       // NULL without a prefix cache, see prefix_tails.h
    struct no_eligible_note no_eligible;
    int64_t scanned_us; // when the whole waiting set was last scanned for it
    bool declined;      // a plan for it came out empty in this round of dispatching
    const struct sched_node *next;
};

// Whether the node could ever hold the request: whole for a prompt that is not scored yet, else its kept tokens.
bool sched_node_can_hold(const struct sched_node *node, const struct sched_request *r); // draining nodes: no
int64_t sched_node_blocks_left(const struct sched_node *node);                          // speculator: INT64_MAX
int sched_node_blocks_needed(const struct sched_node *node, const struct sched_request *r); // speculator: 0
int sched_request_cached_blocks(const struct sched_request *r, const struct sched_node *node); // by its prefix index
int sched_request_rows_on(const struct sched_request *r, const struct sched_node *node);       // rows to be computed

// --- the cluster

struct sched_options {
    enum bin_policy policy;
    int batch_requests; // of BIN_BATCH
    int64_t max_wait_us;
    int tail_tokens;
    int bins_ahead;
};

// An overdue request that no worker group has the KV blocks for, and the group that gets no other request until it has
// them. Without it, small requests would take each block that comes free, for ever. Both NULL: none.
struct reservation {
    const struct sched_request *request;
    const struct sched_node *node;
};

struct sched_view {
    struct sched_options options;
    int64_t now_us;                     // of the last tick
    const struct sched_node *nodes;     // the latest first
    const struct waiting_set *waiting;  // [NODE_ROLES] the requests in front of each pool
    double computed_share[NODE_ROLES];  // accounts; share of dispatched rows that lately had to be computed
    struct reservation reservation;
};

bool sched_pool_can_hold(const struct sched_view *view, enum node_role role, const struct sched_request *r);
int sched_pool_context(const struct sched_view *view, enum node_role role); // of the node with the longest; 0: no node
