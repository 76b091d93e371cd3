// SPDX-License-Identifier: Apache-2.0
// One request inside the router, and the only place that knows which state may follow which.
//
//   RECEIVED -> TOKENISED -> SCORING -> READY -> PACKED -> PREFILL -> DECODE -> DONE
//                   |                   ^  ^        |         |          |
//                   +-------------------+  +--------+---------+----------+   (its worker group was lost)
//   every state -> FAILED | CANCELLED; PREFILL, DECODE -> DONE; READY -> DONE (scored only)
//
// An I/O thread makes a request, fills it up to TOKENISED and hands it to the core's thread, which owns it from then
// on and frees it after `done` was called.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "model/generation.h"

enum request_state {
    REQUEST_RECEIVED,  // being checked and tokenised by an I/O thread
    REQUEST_TOKENISED, // known to the core; wants a speculator or not is being decided
    REQUEST_SCORING,   // waiting for or on a speculator
    REQUEST_READY,     // kept tokens known; waiting for a bin
    REQUEST_PACKED,    // in a bin that is being handed out
    REQUEST_PREFILL,   // on a worker group, no token yet (since it came there)
    REQUEST_DECODE,    // tokens are coming
    REQUEST_DONE,
    REQUEST_FAILED,
    REQUEST_CANCELLED,
    REQUEST_STATE_COUNT
};
const char *request_state_name(enum request_state state);

// Why a request was not speculated; each is counted (core_totals.skipped, Totals.prefill_skipped of GetClusterInfo).
enum skip_reason {
    SKIP_NONE,     // it was
    SKIP_OFF,      // the client said so
    SKIP_KEEP_ALL, // keep_rate 1
    SKIP_SHORT,    // fewer than min_tokens, under auto
    SKIP_COST,     // it would not come sooner, as nodes' costs are known, under auto
    SKIP_NO_NODE,  // no speculator is attached                 (degraded, under on and auto)
    SKIP_TOO_LONG, // over every speculator's context           (degraded)
    SKIP_TIMEOUT,  // no answer in time                         (degraded)
    SKIP_LOST,     // the speculator went away or failed        (degraded)
    SKIP_COUNT
};
const char *skip_reason_name(enum skip_reason reason);

struct token_logprob {
    int32_t token;
    float logprob;
    int n_top;
    int32_t top_token[LOGPROBS_MAX];
    float top_logprob[LOGPROBS_MAX];
};

struct request_usage {
    int prompt_tokens, scored_tokens, kept_tokens, cached_tokens, completion_tokens, replays;
};

struct request_timing { // microseconds
    int64_t queue_us, score_us, pack_wait_us, prefill_us, ttft_us, total_us;
};

enum finish_reason { FINISH_REASON_STOP, FINISH_REASON_LENGTH, FINISH_REASON_CANCELLED, FINISH_REASON_ERROR };
const char *finish_reason_name(enum finish_reason reason); // "stop", "length", "cancelled", "error"

struct request;

// Where a request's output goes; called on the core's thread, must not block.
struct request_sink {
    // New tokens. Returns true when the text is complete (a stop string): the request then ends with "stop", counting
    // the tokens up to and including number *n_used_p of these.
    bool (*tokens)(void *user, const int32_t *tokens, const struct token_logprob *logprobs, int n, int *n_used_p);
    // The end, exactly once; `status` and `message` tell why for ERROR and CANCELLED. For a score-only request, `kept`
    // and `importance` hold the answer. The request is freed afterwards: copy what is needed.
    void (*done)(void *user, const struct request *r, enum finish_reason reason, enum status status,
                 const char *message);
    void *user;
};

// The trees that a waiting request is in: length_index.h, prefix_groups.h, and an urgent one due_index.h.
enum request_order { BY_LENGTH, BY_PREFIX, BY_DUE, REQUEST_ORDERS };

struct request {
    uint64_t number;          // unique in this process, given by request_create(); names it on the cluster protocol
    char *id;                 // the client's, or made by the service; owned
    enum request_state state; // written by request_set_state only

    // From the client, constant after TOKENISED.
    int32_t *tokens; // [n_tokens] the whole prompt; owned
    int n_tokens;
    struct sampling sampling; // resolved: max_tokens is set
    struct prefill prefill;
    struct token_range *pinned; // kept whatever their score; owned
    int n_pinned;
    bool score_only; // a Score call: ends when the speculator has answered
    bool want_importance;
    int32_t priority;
    char *tenant; // owned, may be NULL
    int64_t arrived_us;
    int64_t ttft_deadline_us; // no use for a first token after it; on clock_now_us(), INT64_MAX: none
    bool deadline_of_call;    // it is that of the whole call, which is earlier than the request's own
    struct request_sink sink;

    // The core's.
    struct token_range *kept; // ascending, not touching; owned. NULL until READY
    int n_kept_ranges;
    float *importance; // [n_tokens] or NULL; owned
    uint64_t *prefix;  // [n_prefix] the chain of what its next pass reads, see prefix_index.h; owned
    int n_prefix;
    int32_t *output; // [usage.completion_tokens] generated so far; owned
    int output_capacity;
    enum skip_reason skip;
    struct core_node *node;     // the node it is on, or NULL
    struct core_bin *bin;       // the outstanding bin it is in, or NULL
    int64_t bins_before;        // that the node had been handed when it came there
    int bin_tokens;             // rows it takes in a bin,
    double bin_pairs;           // and their pairs, see cost.h
    int kv_blocks;              // what it is expected to need on its node
    int64_t due_us;             // in a queue: when it should be handed out at the latest; 0: at once
    bool urgent;                // that time has come: into the next bin, whatever its priority
    bool indexed;               // may be packed: in the indexes of its share and pool
    struct tenant_queue *share; // its tenant's, in the pool it is in or was in last
    int losses;                 // nodes lost under it since its last token
    int64_t state_since_us, scored_us, packed_us, first_token_us;
    int64_t score_deadline_us;
    int64_t charged_us; // `timing` accounts for all time up to here
    struct request_usage usage;
    struct request_timing timing;

    // Links of the containers in request_table.h.
    struct request_list *list;
    struct request *prev, *next;
    struct request *number_next, *id_next;
    struct request *lower[REQUEST_ORDERS], *higher[REQUEST_ORDERS]; // and in request_tree.h
    int64_t least[REQUEST_ORDERS];
    int index_rows, index_blocks; // rows its next pass takes, and KV blocks of PREFIX_BLOCK that it is expected to need
    int64_t timer_us;
    int timer_index; // -1: no timer
};

struct request *request_create(void); // any thread
void request_free(struct request *r);
const char *request_deadline_name(const struct request *r); // as it stands in sentences for the client

bool request_may_follow(enum request_state from, enum request_state to);
// The only writer of `state`: asserts that the step is legal and stamps the time.
void request_set_state(struct request *r, enum request_state state, int64_t now_us);
