// SPDX-License-Identifier: Apache-2.0
// The router's core: all requests that have not ended, all nodes, and the decision which request goes to which node. It
// is a state machine without threads, sockets or clocks. Events come in as calls with the time, actions go out through
// `core_ops`. One thread owns it (loop.h); tests call it directly.
//
// - A bin is a set of requests that is sent to one node in one message, to be computed together. Bins follow
//   dataset-level prepacking (arXiv 2404.09529): whenever a node has room, one bin is filled from all requests that
//   wait for its role, and dispatched (late binding). The other requests can be packed with later arrivals. Speculators
//   get whole prompts, worker groups get kept tokens. A request that has waited for max_wait goes into the next bin, so
//   packing delays no request without bound. sched/bin_planner.h lists the rules.
// - The core learns the cost of each node's passes from its reports. This cost decides four things: which requests are
//   speculated, which requests are refused because they would miss their deadline, which node gets a bin, and how large
//   the bin has to be (sched/estimate.h).
// - Speculators are optional. If no speculator can score a prompt in time, the whole prompt is kept and the reason is
//   counted.
// - Requests of a lost worker group become READY again, with the tokens streamed so far appended. The client sees a
//   pause, and no token twice.
#pragma once

#include <stdint.h>

#include "router/core/node_gpus.h"
#include "router/core/request.h"
#include "router/core/shadow.h"
#include "router/core/slow_requests.h"
#include "router/sched/tenant_queue.h"
#include "router/sched/view.h"

struct core;
struct core_node; // an attached node

// The models and options that a speculator is calibrated for (cluster.proto). `fingerprint` identifies the calibration;
// 0: there is none. `main_fingerprint` is the fingerprint of the worker groups' model.
struct node_calibration {
    uint64_t fingerprint, main_fingerprint;
    int look_ahead, chunk_tokens, pool_window, tail_tokens;
};

// A pass as the node reports it: the time of `rows` rows with `pairs` attention pairs.
struct pass_cost {
    int64_t rows, pairs, us;
    bool has_prompts; // true if some rows belong to prompts; worker groups only
};

enum { NODE_MEASURED_MAX = 16, NODE_STAGES_MAX = 128 };

// A node's description of itself, from its Hello message. core_attach() checks the numbers.
struct node_hello {
    char node_id[128], host[128], version[32];
    char backend[16], dtype[16], kv_dtype[16];
    char cores[128], cores_decided_by[128]; // of the compute threads, for status
    uint64_t instance;                      // random number that the process drew when it started
    enum node_role role;
    int ranks, stages; // stages: pipeline stages, each of `ranks` / `stages` ranks
    uint64_t model_fingerprint, tokenizer_fingerprint;
    int vocab_size, context_tokens, token_budget, block_tokens, kv_blocks, max_seqs;
    bool prefix_cache;
    struct node_calibration calibration;          // speculator only
    struct pass_cost measured[NODE_MEASURED_MAX]; // [n_measured] passes that the node measured while it started
    int n_measured;
    // Sums over measured passes: time in the longest stage, and time from start to results. 0: the latter is unknown.
    int64_t stage_us, latency_us;
};

// A node's description of itself while it loads its weights, from its Loading message. core_loading() checks it.
struct node_loading {
    char node_id[128], host[128], version[32];
    uint64_t instance; // as in struct node_hello
    enum node_role role;
    int ranks, percent; // percent: part of the weights that rank 0 has loaded
};

// New tokens of a request for the speculator that holds its prompt (drafting.h).
struct draft_advance {
    const struct request *request;
    int from;         // index of the first new token in request->output
    int ahead;        // number of tokens to guess after the new tokens
    bool with_prompt; // true: the prompt is sent too, because the speculator has not read it
};

// Tokens that a speculator expects to come next, from output token `from` on.
struct node_draft {
    uint64_t request;
    int from;
    const int32_t *tokens; // [n] borrowed
    int n;
    bool released; // true: the speculator no longer holds the prompt, and `tokens` is empty
};
enum { NODE_DRAFT_MAX = 64 }; // tokens

struct core_ops { // called on the core's thread; must not block or call back into the core
    void (*send_score_bin)(void *link, uint64_t bin, struct request *const *requests, int n);
    void (*send_prefill_bin)(void *link, uint64_t bin, struct request *const *requests, int n);
    void (*send_cancel)(void *link, const uint64_t *numbers, int n);
    void (*send_advances)(void *link, const struct draft_advance *advances, int n); // to a speculator
    void (*send_drafts)(void *link, const struct node_draft *drafts, int n);        // to a worker group
    // Tells the node to finish its requests and leave. It may be called before core_attach() returns.
    void (*send_drain)(void *link);
    // Ends the node's stream. The core does not use `link` afterwards. `reason` is NULL if core_release_nodes() ends
    // the stream.
    void (*node_lost)(void *link, const char *reason);
    void (*ready_changed)(void *user, bool ready); // ready is true while a new request would be served
    void *user;
};

// The class of a request is the sign of its priority. Each class leaves a share of the queue's bounds to each higher
// class.
enum queue_class { QUEUE_LOW, QUEUE_NORMAL, QUEUE_HIGH, QUEUE_CLASSES };
const char *queue_class_name(enum queue_class queue_class);

struct core_options {
    int max_queue_requests;    // limit of requests on no worker group; further requests are refused with EXHAUSTED
    int64_t max_queue_tokens;  // limit of the sum of request_queue_tokens() of these requests
    int queue_reserve_percent; // percent of both bounds that each class leaves to each higher class; under 50
    int tenant_queue_percent;  // percent of both bounds for one tenant (tenant_share.h); 0: no bound
    const struct tenant_weight *tenant_weights; // borrowed; if there are weights, tenants without one share one bound
    int n_tenant_weights;
    int tenant_series;   // tenants that have their own counts in metrics (tenant_usage.h); 0: none
    int64_t max_wait_us; // a request is overdue after waiting this long in both waiting sets together
    // Longest wait of a prompt for a speculator. Once dispatched, the prompt waits for its score at most this long plus
    // four times the expected time of the score. After either wait, the whole prompt is kept.
    int64_t score_timeout_us;
    int64_t stall_us; // a node that has work and makes no progress for this long hangs (health.h); 0: not checked
    int64_t eject_us; // duration of a node's first ejection (health.h); 0: nodes are not ejected
    // Grace period after a worker group is lost or drains. Requests that fit no other group wait this long for the
    // group to come back, and then end with UNAVAILABLE.
    int64_t worker_grace_us;
    // Interval of heartbeats. A node that sends nothing for three intervals is lost. Time in which the router itself
    // did not run does not count.
    int64_t heartbeat_us;
    int min_tokens;          // with prefill mode auto, prompts with fewer tokens are not speculated
    int tail_tokens;         // last tokens of a prompt that are always kept, at most a quarter of the prompt
    int64_t selection_bytes; // memory limit of the cache of selections; 0: no selection is held
    int bins_ahead;          // most outstanding bins of a node; 2 keeps the node busy
    enum bin_policy policy;
    int batch_requests;  // number of requests in an arrival batch; BIN_BATCH only
    int tick_work;       // work after which a tick stops dispatching to a pool (dispatch.c); 0: CORE_TICK_WORK
    bool mixed_numerics; // true: nodes of one role may differ in backend and types, so a replay may change tokens
    uint64_t tokenizer_fingerprint;
    uint64_t model_fingerprints[NODE_ROLES]; // the only model accepted for the role; 0: any model
    int vocab_size;
    struct shadow_options shadow;
    struct hash_key hash_key;  // key of hashes of clients' data; zeros: random. A simulation sets it to repeat a run
    int64_t (*clock_us)(void); // clock that measures the planning time, for metrics only; NULL: not measured
};

// Applies new bounds of the queue: the options that have `queue` in their name. Waiting requests stay, even if they
// exceed the new bounds.
void core_set_queue_bounds(struct core *c, const struct core_options *options);

struct core *core_create(const struct core_options *options, const struct core_ops *ops);
void core_free(struct core *c); // first ends all remaining requests as CANCELLED

// --- clients. core_submit() takes ownership of the request. A refused request ends through sink.done like any other:
// EXHAUSTED, UNAVAILABLE, OUT_OF_RANGE, DEADLINE, or EXISTS if the id is already running.
void core_submit(struct core *c, struct request *r, int64_t now_us);
// End requests as CANCELLED. Return false if there is no such request. core_cancel() finds the request by number, when
// its call is gone. core_abort() finds requests by the client's id (the Abort method) among the requests of this owner,
// or among the requests of all owners if owner is 0.
bool core_cancel(struct core *c, uint64_t number, int64_t now_us);
bool core_abort(struct core *c, const char *id, uint64_t owner, int64_t now_us);
// Takes ownership of a request that was aborted before it was submitted, and ends it as CANCELLED.
void core_submit_aborted(struct core *c, struct request *r, int64_t now_us);

// --- nodes. core_attach() refuses a node that has the wrong tokenizer, another model or bad counts. status_message()
// then has the error message. A Hello may have the id of an attached node. If both come from the same process, the old
// node is lost and the new node replaces it. If not, the new node is refused with STATUS_EXISTS and may try again
// later. If 4,096 nodes are attached, further nodes are refused with STATUS_EXHAUSTED. A node pointer is valid until
// core_detach() or until ops->node_lost is called with its link.
enum status core_attach(struct core *c, const struct node_hello *hello, void *link, int64_t now_us,
                        struct core_node **node_p);
void core_detach(struct core *c, struct core_node *node, const char *reason, int64_t now_us);

// Adds a node that loads its weights and takes no requests yet, or updates its progress. Refuses another process with
// the id of a known node, like core_attach(), and a report with wrong numbers. *node_p is the node of this link, or
// NULL at the first report. It is valid until core_loading_end(), until core_attach() of the same process or over the
// same link, or until ops->node_lost is called with its link.
struct loading_node;
enum status core_loading(struct core *c, const struct node_loading *report, void *link, int64_t now_us,
                         struct loading_node **node_p);
void core_loading_end(struct core *c, struct loading_node *node, const char *reason);

struct node_heartbeat {
    int kv_blocks_free;
    uint64_t preemptions;        // preemptions since the node's process started
    uint64_t progress;           // counter that grows while the node computes; 0: the node does not count progress
    uint64_t last_bin;           // id of the latest bin included in `requests`; 0: the node does not count requests
    int64_t requests;            // requests that the node computes, or that wait on the node
    int held_prompts;            // prompts that a speculator holds to draft answers
    int held_kv_blocks;          // KV blocks of the held prompts
    const struct node_gpu *gpus; // [n_gpus] the GPUs of the node's ranks, in any order; borrowed
    int n_gpus;
};
void core_heartbeat(struct core *c, struct core_node *node, const struct node_heartbeat *heartbeat, int64_t now_us);
// Gives a draining node no new work. `reason` names the GPU trouble if the node leaves by itself. It is empty if the
// node was told to leave.
void core_draining(struct core *c, struct core_node *node, const char *reason, int64_t now_us);

// Drains a node for an operator: it gets no new work, is told to finish its requests, and leaves. Draining it again
// changes nothing. `instance` is the node's process, or 0 for any process. If the process loses its stream before it
// reads the message, the core sends the message again when the process attaches. Returns NOT_FOUND if no such node is
// attached.
struct node_drain {
    uint64_t instance;
    enum node_role role;
    int running,       // requests on the node
        others;        // other nodes of its role that take work
    bool was_draining; // true: the node was draining before this call
};
enum status core_drain_node(struct core *c, const char *node_id, uint64_t instance, int64_t now_us,
                            struct node_drain *drain_p);

void core_passed(struct core *c, struct core_node *node, const struct pass_cost *pass, int64_t now_us);
// Reports the time from the start of a pass to its results. For metrics only.
void core_pass_latency(struct core_node *node, int64_t latency_us);

struct score_result {
    uint64_t request;
    const struct token_range *kept; // borrowed, like all pointers below
    int n_kept;
    double keep_rate; // keep rate that the speculator chose; only for a request with a quality
    enum rate_reason reason;
    const float *importance; // [n_importance] importance of each prompt token, or NULL if not asked for
    int n_importance;
    const char *error; // why the speculator has no score, or NULL if it has one
    int cached_tokens;
    const int32_t *draft; // [n_draft]
    int n_draft;
};
void core_scored(struct core *c, struct core_node *node, const struct score_result *result, int64_t now_us);

struct sequence_result {
    uint64_t request;
    uint64_t bin; // id of the bin that had the request; 0: not given
    const int32_t *tokens;
    const struct token_logprob *logprobs; // [n_tokens] or NULL if not asked for
    int n_tokens;
    const struct token_logprob *prompt_logprobs; // [n_prompt_logprobs] for the tokens from prompt_logprobs_from on
    int n_prompt_logprobs, prompt_logprobs_from;
    bool finished;
    enum finish_reason reason; // valid if finished
    const char *error;         // error message of FINISH_REASON_ERROR
    bool grammar_failed;       // with FINISH_REASON_ERROR: the request's grammar is the cause
    int cached_tokens;
    int draft_tokens,          // draft tokens verified in the pass
        draft_accepted_tokens; // verified draft tokens that were accepted; `tokens` includes them
};
void core_step(struct core *c, struct core_node *node, const struct sequence_result *results, int n, int64_t now_us);

// Tells the core how many draft tokens per request a worker group would verify now. While the length is 0, speculators
// are not sent the new tokens of the group's requests (struct draft_advance).
void core_draft_length(struct core_node *node, int length);
// Sets how many decode rows and draft rows of other routers' sequences the node's latest pass had. Call it before
// core_passed().
void core_other_rows(struct core_node *node, int rows);
// Passes a speculator's drafts on to the worker groups. Drops invalid drafts, and every draft of a request after the
// 16th since the request's last advance. The log reports dropped drafts at a limited rate.
void core_drafts(struct core *c, struct core_node *node, const struct node_draft *drafts, int n, int64_t now_us);

// --- time. core_tick() handles silent nodes, deadlines and overdue requests, then dispatches bins. Call it after every
// batch of events, and at core_next_deadline_us() at the latest. The work of one tick is bounded. While work is left,
// core_next_deadline_us() returns a time that has passed, so the caller handles new events and ticks again. Requests
// become overdue in the order in which overdue requests are served: by due time, then by age. So the bound of a tick
// never lets a request overtake a request that is due earlier.
void core_tick(struct core *c, int64_t now_us);
int64_t core_next_deadline_us(const struct core *c); // INT64_MAX: the core needs no tick before the next event

// Refuses new requests with UNAVAILABLE. core_idle() returns true when the last request has ended.
void core_drain(struct core *c);
bool core_idle(const struct core *c);
// Ends the streams of all nodes of an idle core, before the router stops.
void core_release_nodes(struct core *c, int64_t now_us);

// --- status
struct core_load {
    int requests, background; // all requests; those in the background
    int places;               // sequences that the worker groups can run at one time
};
struct core_load core_get_load(const struct core *c);
struct node_status {
    struct node_hello hello;
    const char *state; // see core_health_state()
    int kv_blocks_free, running;
    int held_prompts, held_kv_blocks; // held by a speculator for drafts
    uint64_t tokens_in, tokens_out, cached_tokens;
    uint64_t passes, pass_rows, pass_pairs, pass_us; // sums over the node's passes
    const struct pass_times *pass_times;             // borrowed until the next event of the core
    uint64_t pass_gaps;                              // number of gaps between two passes while the node had work
    int64_t pass_gap_us;                             // total time of the gaps
    uint64_t quality_scores;                         // prompts whose keep rate the speculator chose
    double quality_keep_rate;                        // mean of these keep rates; 0: there is no such prompt
    double pass_fixed_us, pass_row_us, pass_pair_us; // the node's cost model (sched/cost.h); all 0: not known yet
    double pass_noise;                               // see cost_noise()
    int64_t attached_us;                             // time of attaching
};
struct loading_status {
    struct node_loading report;
    int64_t begun_us; // time of the first report
};
struct bin_totals {
    uint64_t bins, items, tokens, capacity_tokens;
    uint64_t scan_cost; // waiting requests and tenant queues examined to fill the bins
    uint64_t plans,     // plans made: how often a node was asked for a bin
        node_visits;    // steps of searches in the index of nodes (node_index.h)
};
struct core_totals {
    uint64_t requests, done, failed, cancelled, refused, replays, preemptions, degraded;
    uint64_t prompt_tokens, kept_tokens, completion_tokens;
    uint64_t skipped[SKIP_COUNT];
    uint64_t limited[PRUNE_KINDS]; // requests that a rule for pruning changed (request_spec.limited_by)
    uint64_t scores_reused;        // requests that got their kept tokens from the cache of selections
    uint64_t draft_tokens, draft_accepted_tokens;
    uint64_t frozen_tokens, recalled_tokens;
};
struct class_status {
    int waiting;
    int64_t waiting_tokens;
    // Bounds of the queue for a new request of this class. Waiting requests of all classes count towards them.
    int max_requests;
    int64_t max_tokens;
};
// The agreement of the answers of a tenant (agreement.h).
struct tenant_agreement {
    char *tenant; // owned
    struct agreement_counts counts;
    struct agreement_state windows[AGREEMENT_WINDOWS]; // [n_windows]
    int n_windows;
};
struct shadow_status {
    bool on;     // a share of the pruned requests gets shadows
    int waiting; // shadows that wait for an idle worker group
    struct shadow_totals totals;
    struct tenant_agreement *tenants; // [n_tenants] owned by the status
    int n_tenants;
};
struct core_status {
    bool ready, draining;
    int waiting, running;
    int64_t waiting_tokens;
    struct class_status classes[QUEUE_CLASSES];
    uint64_t model_fingerprint; // 0 while no worker group is attached
    struct bin_totals score_bins, prefill_bins;
    struct core_totals totals;
    uint64_t ejections, hangs;       // number of ejections and of hangs, over all nodes
    const char *calibration_problem; // see core_calibration_problem(); NULL: no problem
    int n_nodes;
    struct node_status *nodes; // owned by the status
    int n_loading;
    struct loading_status *loading; // nodes that load their weights and take no requests; owned by the status
    struct shadow_status shadow;
};
const struct slow_requests *core_get_slow_requests(const struct core *c); // borrowed from the core
void core_get_status(const struct core *c, struct core_status *status);
void core_status_fini(struct core_status *status);
