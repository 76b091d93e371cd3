// SPDX-License-Identifier: Apache-2.0
// The router's mind: all requests that are not finished, all nodes, and the decision what goes where. A state machine
// without threads, sockets or clocks: events come in as calls with the time, actions go out through `core_ops`. One
// thread owns it (see loop.h); tests step it by hand.
//
// - Dataset-level prepacking (arXiv 2404.09529): whenever a node has room, a bin is filled from the whole queue of its
//   pool and handed out (late binding); the rest stays packable. Whole prompts are packed for speculators, kept tokens
//   for worker groups. A request that has waited max_wait goes into the next bin first: packing starves nobody.
// - What passes cost each node is learned from what they report, and decides who is speculated, who would miss its
//   deadline and is refused, which node gets a bin and how large it has to be (core_estimate.c).
// - Speculators are optional: without one, or on any fault or timeout, everything is kept and the reason counted.
// - A lost worker group's requests go back to READY with the tokens already streamed appended: a pause, no repeat.
#pragma once

#include <stdint.h>

#include "router/core/request.h"

struct core;
struct core_node; // an attached node, as the core sees it

enum node_role { NODE_SPECULATOR, NODE_WORKER };

// What a node said in its Hello, checked for sanity by the caller.
struct node_hello {
    char node_id[128], host[128], dtype[16], version[32];
    enum node_role role;
    int ranks;
    uint64_t model_fingerprint, tokenizer_fingerprint;
    int vocab_size, context_tokens, token_budget, block_tokens, kv_blocks, max_seqs;
    bool prefix_cache;
};

struct core_ops { // called on the core's thread; must not block; never call back into the core
    void (*send_score_bin)(void *link, uint64_t bin, struct request *const *requests, int n);
    void (*send_prefill_bin)(void *link, uint64_t bin, struct request *const *requests, int n);
    void (*send_cancel)(void *link, const uint64_t *numbers, int n);
    void (*node_lost)(void *link, const char *reason); // silence or takeover: end its stream; `link` is not used after
    void (*ready_changed)(void *user, bool ready);     // a request would be served now, or no longer
    void *user;
};

// Which requests may share a bin; all but the first are there to be compared with it.
enum bin_policy {
    BIN_DATASET, // those of the whole queue
    BIN_BATCH,   // those of an arrival batch: the first `batch_requests` of the queue, closed until all of it went out
    BIN_NONE,    // none: one request a bin, first come first served
};

// Priorities are numbers, larger goes first; beyond these they count as these. By sign they are classes, which bound
// the queue: each leaves a share of it to the classes above.
enum { PRIORITY_MAX = 8, PRIORITY_LEVELS = 2 * PRIORITY_MAX + 1 };
enum queue_class { QUEUE_LOW, QUEUE_NORMAL, QUEUE_HIGH, QUEUE_CLASSES };

struct tenant_weight {
    const char *tenant;
    double weight; // tokens it gets for each one of a tenant that is not named
};

struct core_options {
    int max_queue_requests;                     // requests that are on no worker group; more: EXHAUSTED
    int64_t max_queue_tokens;                   // their prompt tokens
    int queue_reserve_percent;                  // of both, kept free by each class for each above; under 50
    const struct tenant_weight *tenant_weights; // borrowed
    int n_tenant_weights;
    int64_t max_wait_us;      // a request that waited this long, in both queues together, goes into the next bin first
    int64_t score_timeout_us; // a speculator's answer later than this: keep everything
    int64_t worker_grace_us;  // how long requests wait for a first worker group to come back before UNAVAILABLE
    int64_t heartbeat_us;     // a node silent for three of these, while the router itself ran, is lost
    int min_tokens;           // under auto, shorter prompts are not speculated; longer ones if it pays
    int tail_tokens;          // last tokens kept beyond the budget, at most a quarter of the prompt
    int bins_ahead;           // bins handed to a node before it has answered the first: 2 keeps it busy
    enum bin_policy policy;
    int batch_requests; // of BIN_BATCH
    uint64_t tokenizer_fingerprint;
    int vocab_size;
};

struct core *core_create(const struct core_options *options, const struct core_ops *ops);
void core_free(struct core *c); // every request left ends as CANCELLED first

// --- clients. core_submit takes the request over; a refusal is told through sink.done like any other end
// (EXHAUSTED, UNAVAILABLE, OUT_OF_RANGE, DEADLINE, INVALID for an id that is running already).
void core_submit(struct core *c, struct request *r, int64_t now_us);
// By number (the call is gone: nothing to tell beyond sink.done) or by the client's id (Abort); false: not found.
bool core_cancel(struct core *c, uint64_t number, int64_t now_us);
bool core_abort(struct core *c, const char *id, int64_t now_us);

// --- nodes. core_attach refuses with a sentence in status_message() (wrong tokenizer, other model, no room).
// A second node of the same id takes the first one's place (the first is lost). Node pointers stay valid until
// core_detach or ops->node_lost for that link.
enum status core_attach(struct core *c, const struct node_hello *hello, void *link, int64_t now_us,
                        struct core_node **node_p);
void core_detach(struct core *c, struct core_node *node, const char *reason, int64_t now_us);
void core_heartbeat(struct core *c, struct core_node *node, int kv_blocks_free, int running, int waiting,
                    int64_t now_us);
void core_draining(struct core *c, struct core_node *node, int64_t now_us); // no new work for it

// What one pass cost the node, as it reports it: the time of `rows` rows that attend to `pairs` entries in all.
struct pass_cost {
    int64_t rows, pairs, us;
};
void core_passed(struct core *c, struct core_node *node, const struct pass_cost *pass, int64_t now_us);

struct score_result {
    uint64_t request;
    const struct token_range *kept; // borrowed, like all below
    int n_kept;
    const float *importance; // or NULL
    int n_importance;
    const char *error; // or NULL
    int cached_tokens;
};
void core_scored(struct core *c, struct core_node *node, const struct score_result *result, int64_t now_us);

struct sequence_result {
    uint64_t request;
    const int32_t *tokens;
    const struct token_logprob *logprobs; // or NULL
    int n_tokens;
    bool finished;
    enum finish_reason reason; // when finished
    const char *error;         // with FINISH_REASON_ERROR
    int cached_tokens;
};
void core_step(struct core *c, struct core_node *node, const struct sequence_result *results, int n, int64_t now_us);

// --- time. Deadlines, lost nodes, overdue requests; then hands out what can be handed out. Call it after every batch
// of events and at least when core_next_deadline_us() comes.
void core_tick(struct core *c, int64_t now_us);
int64_t core_next_deadline_us(const struct core *c); // INT64_MAX: nothing is waiting for time

// Stops accepting (UNAVAILABLE for new requests); core_idle tells when the last one has ended.
void core_drain(struct core *c);
bool core_idle(const struct core *c);

// --- looking in
struct node_status {
    struct node_hello hello;
    const char *state; // "ready", "draining"
    int kv_blocks_free, running;
    uint64_t tokens_in, tokens_out, cached_tokens;
    double pass_fixed_us, pass_row_us, pass_pair_us; // cost of a pass as learned (cost.h); all 0: not known yet
    int64_t attached_us;                             // since
};
struct bin_totals {
    uint64_t bins, items, tokens, capacity_tokens;
    uint64_t looks; // at requests that wait, to fill them
};
struct core_totals {
    uint64_t requests, done, failed, cancelled, refused, replays, degraded;
    uint64_t prompt_tokens, kept_tokens, completion_tokens;
    uint64_t skipped[SKIP_COUNT];
};
struct class_status {
    int waiting, max_requests;
    int64_t waiting_tokens, max_tokens; // the bounds are on what waits in all classes when one more of this comes
};
const char *queue_class_name(enum queue_class queue_class);
struct core_status {
    bool ready, draining;
    int waiting, running;
    int64_t waiting_tokens;
    struct class_status classes[QUEUE_CLASSES];
    uint64_t model_fingerprint; // 0 while no worker group is attached
    struct bin_totals score_bins, prefill_bins;
    struct core_totals totals;
    int n_nodes;
    struct node_status *nodes; // owned by the status
};
void core_get_status(const struct core *c, struct core_status *status);
void core_status_fini(struct core_status *status);
