// SPDX-License-Identifier: Apache-2.0
// The core's own state, shared by its files and nobody else:
//   core.c           what clients do, time, looking in
//   core_requests.c  the life of one request: the only place that moves requests between lists, nodes and counters
//   core_nodes.c     attaching, losing and hearing from nodes
//   core_queue.c     who waits, in the orders that bins are filled in
//   core_bins.c      which requests go next, to which node
#pragma once

#include "router/core.h"
#include "router/cost.h"
#include "router/length_index.h"
#include "router/prefix_index.h"
#include "router/request_table.h"

struct core_bin { // handed out, and a request in it has neither been scored, given its first token nor ended
    uint64_t id;
    int open;
};

struct core_node {
    struct node_hello hello;
    void *link;
    bool draining;
    bool passed; // wanted nothing in this round of handing out
    int64_t attached_us, heard_us;
    int kv_blocks_free;           // as its last heartbeat told
    struct request_list requests; // on it
    int bins;                     // outstanding
    int64_t bin_tokens;           // in them, still to be computed
    int64_t kv_blocks;            // expected to be needed by what is on it
    uint64_t tokens_in, tokens_out, cached_tokens;
    struct prefix_index *prefixes; // NULL: it has no prefix cache
    struct cost_model cost; // of its passes
    struct core_node *next;
};

// One tenant's requests of one priority in one pool. Lives while a request that waits or runs there is of it.
struct core_share {
    struct core_pool *pool;
    char *tenant;
    int level;
    int refs;                    // requests
    struct length_index waiting; // those that may be packed
    double served;               // virtual tokens: rows handed out and tokens generated, over the tenant's weight
    double weight;
    int place;                // in its level's heap while something waits; -1: not there
    struct core_share *next;  // of its bucket
    struct core_share *aside; // next of those that a bin being filled has no room for
};

struct core_level {
    struct core_share **heap; // with something to pack; the one served least on top
    int n, capacity;
    double floor; // where a share begins when no other is there
};

// The nodes of one role and the queue in front of them.
struct core_pool {
    enum node_role role;
    // Waiting: SCORING for speculators, READY for worker groups.
    struct request_list queue;     // first come first
    struct request_list urgent;    // whose time has come; earliest due first
    int64_t tokens, urgent_tokens; // rows that all of them, and the urgent, take in bins
    struct core_level levels[PRIORITY_LEVELS];
    int indexed;                // requests in the levels
    struct core_share **shares; // hashed by tenant
    size_t buckets;
    int n_shares;
    int nodes; // attached and not draining
    struct bin_totals totals;
};

struct core {
    struct core_options options;
    struct core_ops ops;
    struct request_table table;
    struct request_timers timers;
    struct core_pool pools[2]; // by enum node_role
    struct core_node *nodes;
    int running; // requests on worker groups
    struct waiting {
        int requests;
        int64_t tokens;       // of their prompts
    } waiting[QUEUE_CLASSES]; // all others
    int64_t workers_gone_us;  // when a worker group last went away
    uint64_t last_bin;
    int64_t now_us; // of the last tick
    bool ready, draining;
    // The earliest due urgent request that no worker group has KV blocks for, and the group that takes nothing else
    // until it has: else small requests would take each block that comes free, for ever.
    struct request *starved;
    struct core_node *reserved;
    struct core_totals totals;
};

// --- core_requests.c

// To the core: known to the table, still TOKENISED.
void core_request_admit(struct core *c, struct request *r);
// Ends it: off its node (telling the node if `tell_node`), out of every list, `done` called, freed.
void core_request_finish(struct core *c, struct request *r, enum finish_reason reason, enum status status,
                         const char *message, bool tell_node, int64_t now_us);
void core_request_fail(struct core *c, struct request *r, enum status status, const char *message, int64_t now_us);
// Off the node or queue it is in, without a change of state.
void core_request_leave(struct core *c, struct request *r, int64_t now_us);
void core_request_wait_for_score(struct core *c, struct request *r, int64_t now_us);
void core_request_keep_all(struct core *c, struct request *r, enum skip_reason reason, int64_t now_us);
void core_request_scored(struct core *c, struct request *r, const struct score_result *result, int64_t now_us);
void core_request_replay(struct core *c, struct request *r, int64_t now_us);
// From its queue into a bin of the node; `bin_tokens` and `kv_blocks` are what it will be accounted with.
void core_request_place(struct core *c, struct request *r, struct core_node *node, struct core_bin *bin,
                        int64_t now_us);
void core_request_handed(struct request *r, int64_t now_us); // the bin is with the node
void core_request_step(struct core *c, struct request *r, const struct sequence_result *result, int64_t now_us);
// No speculator can take it any more: keep everything, or end it when scoring was all that was asked for.
void core_request_unscorable(struct core *c, struct request *r, enum skip_reason reason, int64_t now_us);
void core_request_due(struct core *c, struct request *r, int64_t now_us); // its timer has come
void core_request_retime(struct core *c, struct request *r);              // its timer may have changed

int core_request_rows(const struct request *r); // rows its next pass takes, by state
int core_request_rows_on(const struct request *r, const struct core_node *node); // less what its prefix cache may spare
int core_request_blocks(const struct request *r,
                        const struct core_node *node); // KV blocks it is expected to need there

// --- core_queue.c

int core_priority_level(int32_t priority);
enum queue_class core_priority_class(int32_t priority);
struct core_pool *core_queue_of(struct core *c, const struct request *r); // where it waits, by state
int core_pool_waiting(const struct core_pool *pool);
void core_queue_add(struct core *c, struct request *r);
void core_queue_remove(struct core *c, struct request *r);
void core_queue_make_urgent(struct core_pool *pool, struct request *r);
// Lets what the policy allows be packed: under `none` and `batch` the next once all before are gone.
void core_queue_open(const struct core *c, struct core_pool *pool);
// Into the bin being filled, charged to its tenant; or not after all.
void core_queue_pick(struct request *r);
void core_queue_put_back(struct request *r);
void core_queue_fini(struct core_pool *pool);
// Into and out of its level's heap, and more tokens served.
void core_share_enter(struct core_share *share);
void core_share_leave(struct core_share *share);
void core_share_charge(struct core_share *share, double tokens);
void core_share_release(struct core *c, struct request *r); // its request is done with it

// --- core_nodes.c

bool core_node_can_hold(const struct core_node *node, const struct request *r); // ever, by state; draining ones: no
bool core_pool_can_hold(const struct core *c, enum node_role role, const struct request *r);
int core_pool_context(const struct core *c, enum node_role role); // the longest of its nodes; 0: no node
void core_nodes_check_silence(struct core *c, int64_t now_us); // at the start of a tick
void core_update_ready(struct core *c);

// --- core_bins.c

void core_hand_out(struct core *c, int64_t now_us);
