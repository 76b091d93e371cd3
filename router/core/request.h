// SPDX-License-Identifier: Apache-2.0
// One request inside the router, and its states.
//
//   RECEIVED -> TOKENISED -> SCORING -> READY -> PACKED -> PREFILL -> DECODE -> DONE
//                   |                   ^  ^        |         |          |
//                   +-------------------+  +--------+---------+----------+   (its worker group was lost)
//   every state -> FAILED | CANCELLED; PREFILL, DECODE -> DONE; READY -> DONE (score only)
//
// A thread of the front creates a request, fills in `id`, `spec` and `sink`, and passes it to core_submit(). From then
// on the core's thread owns it and frees it after `done` was called.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/base/status.h"
#include "lib/tracing/record.h"
#include "router/core/conversation.h"
#include "router/core/selection_cache.h"
#include "router/sched/sched_request.h"

enum request_state {
    REQUEST_RECEIVED,  // being checked and tokenised by an I/O thread or the intake pool
    REQUEST_TOKENISED, // in core_submit(); score_plan.h decides whether a speculator scores it
    REQUEST_SCORING,   // waits for a speculator, or is on one
    REQUEST_READY,     // kept tokens known; waits for a bin
    REQUEST_PACKED,    // in a bin that is being dispatched
    REQUEST_PREFILL,   // on a worker group, no token from it yet
    REQUEST_DECODE,    // on a worker group, tokens arrive
    REQUEST_DONE,
    REQUEST_FAILED,
    REQUEST_CANCELLED,
    REQUEST_STATE_COUNT
};
const char *request_state_name(enum request_state state);

// Why a request kept its whole prompt; each is counted (core_totals.skipped, Totals.prefill_skipped of GetClusterInfo).
enum skip_reason {
    SKIP_NONE,         // it was speculated
    SKIP_OFF,          // mode off, by the request or the router's default
    SKIP_KEEP_ALL,     // keep_rate or quality 1
    SKIP_SHORT,        // fewer than min_tokens, under auto
    SKIP_COST,         // by the nodes' costs the first token would not come sooner, under auto
    SKIP_UNCALIBRATED, // a quality is asked for, and the speculators have no calibration for it
    SKIP_UNSURE,       // it was scored, and no keep rate is likely enough to reach the quality
    SKIP_NO_NODE,      // no speculator is attached, or all are ejected (degraded, as all below)
    SKIP_TOO_LONG,     // over every speculator's context
    SKIP_TIMEOUT,      // no answer in time
    SKIP_LOST,         // the speculator was lost or failed
    SKIP_COUNT
};
// Why a request was refused, for the log: the sentence for the client, unless it may quote the client, whose text is
// not logged.
const char *request_refusal_reason(enum status status, const char *sentence);
const char *skip_reason_name(enum skip_reason reason);

struct token_logprob {
    int32_t token;
    float logprob;
    int rank; // of a prompt token, 1: the likeliest
    int n_top;
    int32_t top_token[LOGPROBS_MAX];
    float top_logprob[LOGPROBS_MAX];
};

enum finish_reason { FINISH_REASON_STOP, FINISH_REASON_LENGTH, FINISH_REASON_CANCELLED, FINISH_REASON_ERROR };
const char *finish_reason_name(enum finish_reason reason); // "stop", "length", "cancelled", "error"

struct request;

// The receiver of a request's output. Called on the core's thread, must not block.
struct request_sink {
    // New tokens. Returns true when a stop string completes the text: the request then ends with "stop", and counts the
    // first *n_used_p of these tokens.
    bool (*tokens)(void *user, const int32_t *tokens, const struct token_logprob *logprobs, int n, int *n_used_p);
    // Log-probabilities of the next n prompt tokens, from the second one on, before the first new token. NULL: the
    // receiver asks for none.
    void (*prompt_logprobs)(void *user, const struct token_logprob *logprobs, int n);
    // The end, exactly once. `status` and `message` give the cause of ERROR and CANCELLED. A score-only request has its
    // answer in `kept` and `importance`. The request is freed afterwards: copy what is needed.
    void (*done)(void *user, const struct request *r, enum finish_reason reason, enum status status,
                 const char *message);
    void *user;
};

// Where the request is, and what the accounts of its node hold for it. Written by ledger.c only.
struct request_account {
    struct core_node *node;        // the node it is on, or NULL
    struct core_bin *bin;          // the outstanding bin that waits for it, or NULL
    uint64_t bin_id;               // number of the bin that it was last sent in, a score bin or a prefill bin; it stays
                                   // when the bin is settled. dispatch.c counts all bins of the router from 1
    struct tenant_account *tenant; // of its tenant, from its admission to its end
    bool is_long;                  // more rows than a pass of the node
    int rows;                      // its rows in the bin,
    double attention_pairs;        // and their attention pairs, see cost.h
    const struct prefix_run *run;  // the blocks of its prompt that it holds in the node's record
    int own_blocks;                // KV blocks that it is expected to need on the node beside these
    double output_tokens;          // generated; those that the host samples count as more, by their charge
    int losses;                    // nodes lost under it since its last token
    int64_t charged_us;            // `timing` accounts for all time up to here
    int64_t token_us;              // when its latest token came
};

// The speculator that drafts its answer. Written by drafting.c only.
struct request_drafting {
    struct core_node *node;      // that holds its prompt; NULL: none
    struct request *next, *prev; // in the list of the node
    int n_sent;                  // of its tokens, that the node was sent
    int n_drafts;                // of the node, passed on since then
    bool is_unread;              // the node was not sent the prompt yet
    bool is_over;                // a node held it once, and does no more
};

// Who is given whose score. Written by score_sharing.c only.
struct request_sharing {
    struct request *scored;       // that is scored for it; NULL: it is scored itself, or not at all
    struct request *first, *last; // of its sharers
    struct request *prev, *next;  // among the sharers of `scored`
};

// Links of the containers in request_table.h.
struct request_links {
    struct request *number_next, *id_next;
    int64_t timer_us;
    int timer_index; // -1: no timer
};

struct request {
    uint64_t number; // unique in this process, from request_create(); names the request on the cluster protocol
    char *id;        // the client's, or made by the service; owned
    enum request_state state; // written by request_set_state() only
    struct request_sink sink;
    struct request_spec spec;   // what the client asked for
    struct trace_record *trace; // of its sink, which lends it until `done`; NULL: it is not traced
    uint64_t score_with;        // number of the first choice of its prompt, with which it shares a score; 0: none

    // What it has used so far. Written by ledger.c only.
    struct request_usage usage;
    struct request_timing timing;
    struct request_account account;

    struct prefill_prediction predicted; // written by score_plan.c

    // Its results. Written by requests.c, request_selection.c and request_steps.c.
    enum skip_reason skip;
    double keep_rate;             // that chose the kept tokens; 0 until READY
    enum rate_reason rate_reason; // of a scored prompt
    struct token_range *kept;     // [n_kept_ranges] in the order of the rows: ascending and not touching but in a
                              // conversation; owned. NULL until READY, or until it is known that its score is reused
    int n_kept_ranges;
    float *importance; // [spec.n_tokens] or NULL; owned
    int32_t *draft;    // [n_draft] a guess at the answer, of the speculator; owned
    int n_draft;
    struct request_drafting drafting;
    struct request_sharing sharing;
    int n_prompt_logprobs; // of prompt tokens that were received and passed on
    int32_t *output;       // [usage.completion_tokens] owned
    int output_capacity;
    int64_t score_deadline_us;
    struct conversation *conversation; // owned; its rows while they are not all known; NULL: it has no turns of use
    struct selection_key selection;    // of the selection that is looked up or scored next

    struct sched_request sched; // its keys and links in the waiting set and in lists, see sched/view.h
    struct request_links links;
};

// The request that embeds a scheduler's view of it.
static inline struct request *request_of(const struct sched_request *r)
{
    return r ? (struct request *)((char *)r - offsetof(struct request, sched)) : NULL;
}

struct request *request_create(void); // any thread
void request_free(struct request *r);
// A deep copy of the spec, into a request that was just created.
void request_copy_spec(const struct request *from, struct request *to);
// What the request takes of the queue's prompt tokens: its prompt, and a token for every 4 bytes of its grammar, of its
// stop strings and of its turns' pinned ranges, which take as much memory. Each choice that shares stop strings counts
// them, because it may be the last that holds them.
int64_t request_queue_tokens(const struct request *r);
int request_kept_tokens(const struct request *r); // in its kept ranges
// Its kept ranges ascending, to be freed by the caller; returns their number.
int request_sort_kept(const struct request *r, struct token_range **sorted_p);
// The prompt that is scored next: that of a turn of the conversation, or the whole.
struct score_prompt request_score_prompt(const struct request *r);
// Whether the rows of earlier turns are pinned in it, and the keep rate is the share of the tokens since then.
// Otherwise its selection is that of the prompt alone: under a quality, which needs what that keeps, and by chunks.
bool request_pins_rows(const struct request *r);
// Tokens of which the keep rate is the share in that prompt; 0: all. The turn behind a shared beginning has more than
// its own, for what it recalls.
int request_budget_tokens(const struct request *r);
bool request_is_drafted(const struct request *r);           // speculators may draft its answer
const char *request_deadline_name(const struct request *r); // of its ttft_deadline_us, in sentences for the client

// What decided keep_rate: "fixed", "quality" or the name of the skip reason; "": not decided yet.
const char *request_rate_reason(const struct request *r);

bool request_may_follow(enum request_state from, enum request_state to);
void request_set_state(struct request *r, enum request_state state); // asserts that the state may follow
