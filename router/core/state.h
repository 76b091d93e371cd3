// SPDX-License-Identifier: Apache-2.0
// The core's own state, shared by its files and nobody else:
//   core.c           what clients do, time, looking in
//   core_requests.c  the life of one request: the only place that moves requests between lists, nodes and counters
//   core_nodes.c     attaching, losing and hearing from nodes
//   core_queue.c     who waits, in the orders that bins are filled in
//   core_bins.c      which requests go next, to which node
//   core_estimate.c  how long things take, and what follows from it
#pragma once

#include "router/core/core.h"
#include "router/core/request_table.h"
#include "router/sched/cost.h"
#include "router/sched/due_index.h"
#include "router/sched/length_index.h"
#include "router/sched/prefix_groups.h"
#include "router/sched/prefix_index.h"

struct core_bin { // handed out, and a request in it has neither been scored, given its first token nor ended
    uint64_t id;
    int open;
};

// The chain of a request that a node was handed while kin of it waited: its next bins go on with them
// (prefix_groups.h).
enum { PREFIX_TAILS = 16 };
struct prefix_tail {
    uint64_t share;  // its number
    uint64_t bin;    // that it was in; 0: none
    uint64_t *chain; // [n] owned
    int n;
};

struct core_node {
    struct node_hello hello;
    void *link;
    bool draining;
    bool passed;         // wanted nothing in this round of handing out
    int64_t searched_us; // when all of the queue was last looked through for it
    // All that waits was looked at with so many KV blocks left and bins outstanding, and nothing was handed out: nor
    // will be with no more blocks and no fewer bins, unless something comes, or turns urgent, that it has the blocks
    // for.
    bool vain;
    int64_t vain_blocks;
    int vain_bins;
    int64_t attached_us, heard_us;
    int kv_blocks_free;           // as its last heartbeat told
    struct request_list requests; // on it
    int bins;                     // outstanding
    int in_bins;                  // of its requests, those of which one waits
    int64_t bins_out;             // handed to it in all
    double stay;                  // bins that it is handed while a request is on it, on average
    int64_t bin_tokens;           // in them, still to be computed;
    double bin_pairs;             // and the pairs that go with them
    int64_t kv_blocks;            // expected to be needed by what is on it
    uint64_t tokens_in, tokens_out, cached_tokens;
    struct prefix_index *prefixes;        // NULL: it has no prefix cache
    struct prefix_tail kin[PREFIX_TAILS]; // where its bins left off
    struct cost_model cost;               // of its passes
    struct core_node *next;
};

// One tenant's requests of one priority in one pool. Lives while a request that waits or runs there is of it.
struct tenant_queue {
    struct core_pool *pool;
    uint64_t number; // unique in its pool, never used again: unlike its address
    char *tenant;
    int level;
    int refs;                    // requests
    struct length_index waiting; // those that may be packed
    double served;               // virtual tokens: rows handed out and tokens generated, over the tenant's weight
    double weight;
    int place;                  // in its level's heap while something waits; -1: not there
    struct tenant_queue *next;  // of its bucket
    struct tenant_queue *aside; // next of those that a bin being filled has no room for
};

struct core_level {
    struct tenant_queue **heap; // with something to pack; the one served least on top
    int n, capacity;
    double floor;          // where a share begins when no other is there
    struct cost_work work; // of all that waits in it and is not urgent
};

// What waits and is not urgent, by when it will be: a ring of slots of time that is once around in max_wait.
enum { DUE_SLOTS = 64 };

// The nodes of one role and the queue in front of them.
struct core_pool {
    enum node_role role;
    // Waiting: SCORING for speculators, READY for worker groups.
    struct request_list queue;    // first come first
    struct request_list urgent;   // whose time has come; earliest due first
    int64_t tokens;               // rows that all of them take in bins
    struct cost_work urgent_work; // and the urgent
    struct cost_work due[DUE_SLOTS];
    int64_t due_slot_us; // how long a slot of `due` is
    double computed;     // share of such rows that lately had to be computed: prefix caches spared the rest
    bool timed;          // in this round of handing out the costs of all nodes are known: what is least is time
    struct core_level levels[PRIORITY_LEVELS];
    struct prefix_groups kin;     // of what is in the levels,
    struct due_index due_next;    // and of the urgent among it
    int indexed;                  // requests in them
    struct tenant_queue **shares; // hashed by tenant
    size_t buckets;
    int n_shares;
    uint64_t last_share;
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

void core_request_set_prefix(struct request *r, const struct token_range *kept, int n_kept); // what its next pass reads
int core_request_rows(const struct request *r);                   // rows its next pass takes, by state
int core_request_rows_after(const struct request *r, int blocks); // less so many blocks of prefix that are there
int core_request_rows_on(const struct request *r, const struct core_node *node); // less what its prefix cache may spare
int core_request_known_blocks(const struct request *r, const struct core_node *node); // that it is likely to hold
int core_request_blocks(const struct request *r, int block_tokens); // KV blocks it is expected to need

// --- core_queue.c

int core_priority_level(int32_t priority);
enum queue_class core_priority_class(int32_t priority);
struct core_pool *core_queue_of(struct core *c, const struct request *r); // where it waits, by state
int core_pool_waiting(const struct core_pool *pool);
void core_queue_add(struct core *c, struct request *r);
void core_queue_remove(struct core *c, struct request *r);
void core_queue_make_urgent(struct core *c, struct request *r);
// What waits and is due between the two, to the length of a slot; not what is urgent.
struct cost_work core_pool_due_before(const struct core_pool *pool, int64_t now_us, int64_t due_us);
// Lets what the policy allows be packed: under `none` and `batch` the next once all before are gone.
void core_queue_open(const struct core *c, struct core_pool *pool);
// Into the bin being filled, charged to its tenant; or not after all.
void core_queue_pick(struct request *r);
void core_queue_put_back(struct request *r);
void core_queue_fini(struct core_pool *pool);
// Into and out of its level's heap, and more tokens served.
void tenant_queue_enter(struct tenant_queue *share);
void tenant_queue_leave(struct tenant_queue *share);
void tenant_queue_charge(struct tenant_queue *share, double tokens);
void tenant_queue_release(struct core *c, struct request *r); // its request is done with it

// --- core_nodes.c

bool core_node_can_hold(const struct core_node *node, const struct request *r); // ever, by state; draining ones: no
bool core_pool_can_hold(const struct core *c, enum node_role role, const struct request *r);
int64_t core_node_blocks_left(const struct core_node *node);                    // a speculator: never short of
int core_node_blocks_of(const struct core_node *node, const struct request *r); // that it is expected to need there
int core_pool_context(const struct core *c, enum node_role role);               // the longest of its nodes; 0: no node
void core_nodes_check_silence(struct core *c, int64_t now_us);                  // at the start of a tick
void core_update_ready(struct core *c);

// --- core_estimate.c

struct core_estimate {
    double wait_us, own_us; // until its turn comes, and from then on
};
// Whether the costs of all nodes of the pool are known for a prompt of so many rows.
bool core_costs_known(const struct core *c, enum node_role role, int64_t rows);
// Until the first token of a request that is not in a queue yet; false: of a pool it needs no node's costs are known.
bool core_first_token_estimate(const struct core *c, const struct request *r, bool speculated, int64_t now_us,
                               struct core_estimate *estimate_p);
// By what is known; while it is not, true for one request at a time.
bool core_speculation_pays(const struct core *c, const struct request *r, int64_t now_us);
// When a request that joins its queue now should be handed out at the latest.
int64_t core_request_due_us(const struct core *c, const struct request *r, int64_t now_us);
// By the node's costs, known or not: when it is done with what it has and a prompt of so many rows after `cached`.
double core_node_finish_us(const struct core_node *node, int64_t rows, int64_t cached);
// How large a bin has to be so that a larger one would hardly be cheaper.
int64_t core_node_enough_rows(const struct core *c, const struct core_node *node);

// --- core_bins.c

void core_hand_out(struct core *c, int64_t now_us);
void core_node_forget_kin(struct core_node *node); // where its bins left off
