// SPDX-License-Identifier: Apache-2.0
// The router's core: all requests that have not ended, all nodes, and the decision which request goes to which node. It
// is a state machine without threads, sockets or clocks. Events come in as calls with the time, actions go out through
// `core_ops`. One thread owns it (loop.h); tests call it directly.
//
// - Dataset-level prepacking (arXiv 2404.09529): whenever a node has room, a bin is filled from all requests that wait
//   for its role, and dispatched (late binding). The remaining requests stay packable. Speculators get whole prompts,
//   worker groups kept tokens. A request that has waited max_wait goes into the next bin, so packing delays no request
//   without bound. The rules are listed in sched/bin_planner.h.
// - The cost of each node's passes is learned from its reports. It decides which requests are speculated, which
//   requests would miss their deadline and are refused, which node gets a bin, and how large the bin has to be
//   (sched/estimate.h).
// - Speculators are optional. If none can score a prompt in time, the whole prompt is kept and the reason is counted.
// - Requests of a lost worker group become READY again with the tokens streamed so far appended. The client sees a
//   pause and no token twice.
#pragma once

#include <stdint.h>

#include "router/core/node_gpus.h"
#include "router/core/request.h"
#include "router/sched/tenant_queue.h"
#include "router/sched/view.h"

struct core;
struct core_node; // an attached node

// The models and options that a speculator is calibrated for (cluster.proto). fingerprint 0: no calibration.
struct node_calibration {
    uint64_t fingerprint, main_fingerprint;
    int look_ahead, chunk_tokens, pool_window, tail_tokens;
};

// The description of a node in its Hello. The caller has checked that its values are sane.
struct node_hello {
    char node_id[128], host[128], version[32];
    char backend[16], dtype[16], kv_dtype[16];
    uint64_t instance; // random number of the process
    enum node_role role;
    int ranks;
    uint64_t model_fingerprint, tokenizer_fingerprint;
    int vocab_size, context_tokens, token_budget, block_tokens, kv_blocks, max_seqs;
    bool prefix_cache;
    struct node_calibration calibration; // speculator only
};

// New tokens of a request for the speculator that holds its prompt (drafting.h).
struct draft_advance {
    const struct request *request;
    int from;         // index of the first new token in request->output
    int ahead;        // tokens to guess after the new ones
    bool with_prompt; // the speculator has not read the prompt
};

// Tokens that a speculator expects to come next, from output token `from` on.
struct node_draft {
    uint64_t request;
    int from;
    const int32_t *tokens; // [n] borrowed
    int n;
    bool released; // it no longer holds the prompt, and there is no guess
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
    // Ends the node's stream. `link` is not used afterwards. reason NULL: core_release_nodes(), nothing is wrong.
    void (*node_lost)(void *link, const char *reason);
    void (*ready_changed)(void *user, bool ready); // true: a new request would be served
    void *user;
};

// The sign of a request's priority is its class. Classes bound the queue: each class leaves a share of it to the higher
// classes.
enum queue_class { QUEUE_LOW, QUEUE_NORMAL, QUEUE_HIGH, QUEUE_CLASSES };
const char *queue_class_name(enum queue_class queue_class);

struct core_options {
    int max_queue_requests;    // requests that are on no worker group; more: EXHAUSTED
    int64_t max_queue_tokens;  // their prompt tokens, see request_queue_tokens()
    int queue_reserve_percent; // percent of both bounds that each class leaves to each higher class; under 50
    int tenant_queue_percent;  // percent of both bounds for one tenant (tenant_share.h); 0: no bound
    const struct tenant_weight *tenant_weights; // borrowed; if there are any, all other tenants are bounded together
    int n_tenant_weights;
    int64_t max_wait_us; // a request is overdue after waiting this long in both waiting sets together
    // A prompt waits at most this long for a speculator, and then at most this long plus four times the expected time
    // for its score. After that, the whole prompt is kept.
    int64_t score_timeout_us;
    int64_t stall_us; // a node that has work and makes no progress for this long hangs (health.h); 0: not checked
    int64_t eject_us; // a node is ejected for this long the first time; 0: nodes are not ejected
    // After a worker group is lost or drains, requests that fit no other group wait this long for it to come back. This
    // holds for new and queued requests. Then they end as UNAVAILABLE.
    int64_t worker_grace_us;
    int64_t heartbeat_us;    // a node is lost after three of these without a message, if the router itself ran
    int min_tokens;          // under auto, shorter prompts are not speculated
    int tail_tokens;         // the tail window, at most a quarter of the prompt
    int64_t selection_bytes; // bytes of the selections held for reuse; 0: none is held
    int bins_ahead;          // outstanding bins of a node at most; 2 keeps it busy
    enum bin_policy policy;
    int batch_requests;  // requests of a batch, with BIN_BATCH
    int tick_work;       // work after which a tick stops dispatching to a pool (dispatch.c); 0: the default
    bool mixed_numerics; // nodes of one role may differ in backend and types, so a replay may change tokens
    uint64_t tokenizer_fingerprint;
    uint64_t model_fingerprints[NODE_ROLES]; // the only model accepted for a role; 0: any
    int vocab_size;
    struct hash_key hash_key;  // hashes clients' texts and prompts; zeros: random. A simulation sets it to repeat a run
    int64_t (*clock_us)(void); // times planning, for metrics only; NULL: not timed
};

// Changes the bounds of the queue to the options that have `queue` in their name. Waiting requests stay.
void core_set_queue_bounds(struct core *c, const struct core_options *options);

struct core *core_create(const struct core_options *options, const struct core_ops *ops);
void core_free(struct core *c); // every request left ends as CANCELLED first

// --- clients. core_submit() takes over the request. A refused request ends through sink.done like any other:
// EXHAUSTED, UNAVAILABLE, OUT_OF_RANGE, DEADLINE, or EXISTS if the id is already running.
void core_submit(struct core *c, struct request *r, int64_t now_us);
// End a request as CANCELLED. core_cancel() finds it by number, after its call is gone. core_abort() finds it by the
// client's id (Abort) among the requests of this owner; owner 0: ends all requests with this id. Return false if there
// is none.
bool core_cancel(struct core *c, uint64_t number, int64_t now_us);
bool core_abort(struct core *c, const char *id, uint64_t owner, int64_t now_us);
// Takes over a request that was aborted before it was submitted, and ends it in the same way.
void core_submit_aborted(struct core *c, struct request *r, int64_t now_us);

// --- nodes. core_attach() refuses a node with a sentence in status_message(): wrong tokenizer, other model, bad
// counts. A Hello with the id of an attached node replaces that node, which is lost, if it comes from the same process.
// Another process is refused with STATUS_EXISTS and may try again later. A node beyond 4,096 is refused with
// STATUS_EXHAUSTED. A node pointer is valid until core_detach() or ops->node_lost for its link.
enum status core_attach(struct core *c, const struct node_hello *hello, void *link, int64_t now_us,
                        struct core_node **node_p);
void core_detach(struct core *c, struct core_node *node, const char *reason, int64_t now_us);

struct node_heartbeat {
    int kv_blocks_free;
    uint64_t preemptions;        // since its process started
    uint64_t progress;           // grows while the node computes; 0: not counted
    uint64_t last_bin;           // the latest bin whose requests the node counts; 0: the node counts no requests
    int64_t requests;            // requests that the node works on or has waiting
    int held_prompts;            // prompts that a speculator holds for drafts
    int held_kv_blocks;          // KV blocks of the held prompts
    const struct node_gpu *gpus; // [n_gpus] the GPUs of its ranks, in any order; borrowed
    int n_gpus;
};
void core_heartbeat(struct core *c, struct core_node *node, const struct node_heartbeat *heartbeat, int64_t now_us);
// Gives the node no new work. `reason`: why it leaves by itself, because of a GPU; empty: it was told to leave.
void core_draining(struct core *c, struct core_node *node, const char *reason, int64_t now_us);

// Drains a node for an operator: it gets no new work, is told to finish its requests, and leaves. Draining it again
// changes nothing. `instance`: the process of the node; 0: any. A process that lost its stream before it read the
// message is told again when it attaches. Returns NOT_FOUND if no such node is attached.
struct node_drain {
    uint64_t instance;
    enum node_role role;
    int running, others; // requests on the node; other nodes of its role that take work
    bool was_draining;
};
enum status core_drain_node(struct core *c, const char *node_id, uint64_t instance, int64_t now_us,
                            struct node_drain *drain_p);

// A pass as the node reports it: the time of `rows` rows with `pairs` attention pairs.
struct pass_cost {
    int64_t rows, pairs, us;
    bool has_prompts; // worker groups: true if some rows are of prompts
};
void core_passed(struct core *c, struct core_node *node, const struct pass_cost *pass, int64_t now_us);

struct score_result {
    uint64_t request;
    const struct token_range *kept; // borrowed, like all pointers below
    int n_kept;
    double keep_rate; // the rate that the speculator chose, for a request with a quality
    enum rate_reason reason;
    const float *importance; // or NULL
    int n_importance;
    const char *error; // or NULL
    int cached_tokens;
    const int32_t *draft; // [n_draft]
    int n_draft;
};
void core_scored(struct core *c, struct core_node *node, const struct score_result *result, int64_t now_us);

struct sequence_result {
    uint64_t request;
    const int32_t *tokens;
    const struct token_logprob *logprobs; // or NULL
    int n_tokens;
    const struct token_logprob *prompt_logprobs; // [n_prompt_logprobs] from prompt token prompt_logprobs_from on
    int n_prompt_logprobs, prompt_logprobs_from;
    bool finished;
    enum finish_reason reason; // if finished
    const char *error;         // with FINISH_REASON_ERROR
    int cached_tokens;
    // Draft tokens verified in the pass, and the accepted ones, which are among `tokens`.
    int draft_tokens, draft_accepted_tokens;
};
void core_step(struct core *c, struct core_node *node, const struct sequence_result *results, int n, int64_t now_us);

// Tells the core how many draft tokens a worker group would verify now. 0: none, and no advances of its requests are
// sent.
void core_draft_length(struct core_node *node, int length);
// Passes on drafts of a speculator. Wrong drafts are left out, with a limited line in the log. So are drafts of a
// request after 16 of them since its last advance.
void core_drafts(struct core *c, struct core_node *node, const struct node_draft *drafts, int n, int64_t now_us);

// --- time. core_tick() handles silent nodes, deadlines and overdue requests, then dispatches bins. Call it after every
// batch of events and at core_next_deadline_us() at the latest. The work of one tick is bounded. While there is more,
// the deadline has passed already, so the caller handles new events and ticks again. Requests become overdue by due
// time and then by age, the order in which overdue requests are served. So the bound delays no request in favour of one
// that is due later.
void core_tick(struct core *c, int64_t now_us);
int64_t core_next_deadline_us(const struct core *c); // INT64_MAX: no timer is set

// Refuses new requests with UNAVAILABLE. core_idle() returns true when the last request has ended.
void core_drain(struct core *c);
bool core_idle(const struct core *c);
// Ends the streams of all nodes of an idle core, before the router stops.
void core_release_nodes(struct core *c, int64_t now_us);

// --- status
struct node_status {
    struct node_hello hello;
    const char *state; // see core_health_state()
    int kv_blocks_free, running;
    int held_prompts, held_kv_blocks; // held by a speculator for drafts
    uint64_t tokens_in, tokens_out, cached_tokens;
    uint64_t passes, pass_rows, pass_pairs, pass_us; // sums over its passes
    const struct pass_times *pass_times;             // borrowed: until the next event of the core
    uint64_t pass_gaps;                              // gaps between two passes while the node had work
    int64_t pass_gap_us;                             // time of the gaps
    uint64_t quality_scores;                         // prompts whose keep rate the speculator chose
    double quality_keep_rate;                        // mean of these rates; 0: none
    double pass_fixed_us, pass_row_us, pass_pair_us; // its cost model (sched/cost.h); all 0: not known yet
    double pass_noise;                               // see cost_noise()
    int64_t attached_us;                             // time of attaching
};
struct bin_totals {
    uint64_t bins, items, tokens, capacity_tokens;
    uint64_t scan_cost;          // waiting requests examined to fill them
    uint64_t plans, node_visits; // nodes asked; steps of searches for nodes
};
struct core_totals {
    uint64_t requests, done, failed, cancelled, refused, replays, degraded;
    uint64_t prompt_tokens, kept_tokens, completion_tokens;
    uint64_t skipped[SKIP_COUNT];
    uint64_t scores_reused; // requests whose prompt had been scored before with the same options
    uint64_t draft_tokens, draft_accepted_tokens;
    uint64_t frozen_tokens, recalled_tokens;
};
struct class_status {
    int waiting;
    int64_t waiting_tokens;
    // The bounds for a new request of this class. They count the requests of all classes.
    int max_requests;
    int64_t max_tokens;
};
struct core_status {
    bool ready, draining;
    int waiting, running;
    int64_t waiting_tokens;
    struct class_status classes[QUEUE_CLASSES];
    uint64_t model_fingerprint; // 0 while no worker group is attached
    struct bin_totals score_bins, prefill_bins;
    struct core_totals totals;
    uint64_t ejections, hangs;       // of nodes
    const char *calibration_problem; // see core_calibration_problem(); NULL: no problem
    int n_nodes;
    struct node_status *nodes; // owned by the status
};
void core_get_status(const struct core *c, struct core_status *status);
void core_status_fini(struct core_status *status);
