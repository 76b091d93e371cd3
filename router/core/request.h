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
    REQUEST_RECEIVED,  // an I/O thread or the intake pool checks and tokenises it
    REQUEST_TOKENISED, // in core_submit(); score_plan.h decides whether a speculator scores it
    REQUEST_SCORING,   // waits for a speculator, or is on one
    REQUEST_READY,     // kept tokens known; waits for a bin
    REQUEST_PACKED,    // in a bin that is being dispatched
    REQUEST_PREFILL,   // on a worker group, no token has arrived
    REQUEST_DECODE,    // on a worker group, tokens arrive
    REQUEST_DONE,
    REQUEST_FAILED,
    REQUEST_CANCELLED,
    REQUEST_STATE_COUNT
};
const char *request_state_name(enum request_state state);

// Why a request kept its whole prompt. Each reason is counted (core_totals.skipped, Totals.prefill_skipped of
// GetClusterInfo).
enum skip_reason {
    SKIP_NONE,         // it was speculated
    SKIP_OFF,          // mode off, by the request or the router's default
    SKIP_KEEP_ALL,     // keep_rate or quality 1
    SKIP_SHORT,        // fewer than min_tokens, with auto
    SKIP_COST,         // with auto: by the costs of the nodes, the first token would not come sooner
    SKIP_UNCALIBRATED, // a quality is asked for, and the speculators have no calibration for it
    SKIP_UNSURE,       // it was scored, but no keep rate is likely enough to reach the quality
    SKIP_NO_NODE,      // no speculator is attached, or all are ejected; this and the reasons below are degraded
    SKIP_TOO_LONG,     // over every speculator's context
    SKIP_TIMEOUT,      // no answer in time
    SKIP_LOST,         // the speculator was lost or failed
    SKIP_COUNT
};
// Returns why a request was refused, for the log. It is the sentence for the client, unless the sentence may quote the
// client, whose text is not logged.
const char *request_refusal_reason(enum status status, const char *sentence);
const char *skip_reason_name(enum skip_reason reason);

struct token_logprob {
    int32_t token;
    float logprob;
    int rank; // prompt tokens only; 1: the likeliest
    int n_top;
    int32_t top_token[LOGPROBS_MAX];
    float top_logprob[LOGPROBS_MAX];
};

enum finish_reason { FINISH_REASON_STOP, FINISH_REASON_LENGTH, FINISH_REASON_CANCELLED, FINISH_REASON_ERROR };
const char *finish_reason_name(enum finish_reason reason); // "stop", "length", "cancelled", "error"

struct request;

// The receiver of a request's output. It is called on the core's thread and must not block.
struct request_sink {
    // Receives new tokens. Returns true when a stop string completes the text. The request then ends with "stop", and
    // counts the first *n_used_p of these tokens.
    bool (*tokens)(void *user, const int32_t *tokens, const struct token_logprob *logprobs, int n, int *n_used_p);
    // Receives the log-probabilities of the next n prompt tokens, from the second prompt token on, before the first new
    // token. NULL: the receiver asks for none.
    void (*prompt_logprobs)(void *user, const struct token_logprob *logprobs, int n);
    // Receives the end, exactly once. `status` and `message` give the cause of ERROR and CANCELLED. A score-only
    // request has its answer in `kept` and `importance`. The request is freed afterwards, so copy what is needed.
    void (*done)(void *user, const struct request *r, enum finish_reason reason, enum status status,
                 const char *message);
    void *user;
};

// Where the request is, and what the accounts of its node hold for it. Only ledger.c writes it.
struct request_account {
    struct core_node *node; // the node it is on, or NULL
    struct core_bin *bin;   // the outstanding bin that waits for it, or NULL
    // The number of the bin that it was last sent in, a score bin or a prefill bin. It stays when the bin is settled.
    // dispatch.c counts all bins of the router from 1.
    uint64_t bin_id;
    struct tenant_account *tenant; // account of its tenant, from its admission to its end
    bool is_long;                  // it has more rows than a pass of the node
    int rows;                      // its rows in the bin,
    double attention_pairs;        // and the attention pairs of these rows, see cost.h
    const struct prefix_run *run;  // the blocks of its prompt that it holds in the node's record
    int own_blocks;                // further KV blocks that it is expected to need on the node
    double output_tokens;          // generated, by charge: tokens that the host samples count as more
    int losses;                    // nodes lost while they had it, since its last token
    int64_t charged_us;            // `timing` accounts for all time until then
    int64_t token_us;              // when its latest token came
};

// The speculator that drafts its answer. Only drafting.c writes it.
struct request_drafting {
    struct core_node *node;      // the speculator that holds its prompt; NULL: none
    struct request *next, *prev; // in the list of the node
    int n_sent;                  // its tokens that the node was sent
    int n_drafts;                // drafts of the node that were passed on since then
    bool is_unread;              // the node was not sent the prompt yet
    bool is_over;                // a node held its prompt and no longer does
};

// Who is given whose score. Only score_sharing.c writes it.
struct request_sharing {
    struct request *scored;       // the request that is scored for it; NULL: it is scored itself, or not at all
    struct request *first, *last; // the list of its sharers
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
    char *id;        // from the client, or made by the service; owned
    enum request_state state; // written by request_set_state() only
    struct request_sink sink;
    struct request_spec spec;   // what the client asked for
    struct trace_record *trace; // lent by its sink until `done`; NULL: it is not traced
    uint64_t score_with;        // number of the first choice of its prompt, whose score it shares; 0: none

    // Its consumption so far. Only ledger.c writes it.
    struct request_usage usage;
    struct request_timing timing;
    struct request_account account;

    struct prefill_prediction predicted; // score_plan.c writes it

    // Its results. requests.c, request_selection.c and request_steps.c write them.
    enum skip_reason skip;
    double keep_rate;             // the rate that chose the kept tokens; 0 until READY
    enum rate_reason rate_reason; // scored prompts only
    // [n_kept_ranges] in the order of the rows; owned. Ascending and not touching, except in a conversation. NULL until
    // READY, or until it is known that its score is reused.
    struct token_range *kept;
    int n_kept_ranges;
    float *importance; // [spec.n_tokens] or NULL; owned
    int32_t *draft;    // [n_draft] the speculator's guess at the answer; owned
    int n_draft;
    struct request_drafting drafting;
    struct request_sharing sharing;
    int n_prompt_logprobs; // received and passed on to the client
    int32_t *output;       // [usage.completion_tokens] owned
    int output_capacity;
    int64_t score_deadline_us;
    struct conversation *conversation; // owned; its rows while they are not all known; NULL: no earlier turn is of use
    struct selection_key selection;    // key of the selection that is looked up or scored next

    struct sched_request sched; // its keys and links in the waiting set and in lists, see sched/view.h
    struct request_links links;
};

// Returns the request that embeds a scheduler's view of it.
static inline struct request *request_of(const struct sched_request *r)
{
    return r ? (struct request *)((char *)r - offsetof(struct request, sched)) : NULL;
}

struct request *request_create(void); // any thread
void request_free(struct request *r);
// Copies the spec deeply into a request that was just created.
void request_copy_spec(const struct request *from, struct request *to);
// Returns the request's share of the queue's prompt tokens. It counts its prompt, and one token for every 4 bytes of
// its grammar, its stop strings and its turns' pinned ranges, which use as much memory. Each choice that shares stop
// strings counts them, because it may be the last choice that holds them.
int64_t request_queue_tokens(const struct request *r);
int request_kept_tokens(const struct request *r); // tokens in its kept ranges
// Copies its kept ranges in ascending order; the caller frees them. Returns their number.
int request_sort_kept(const struct request *r, struct token_range **sorted_p);
// Returns the prompt that is scored next: the prompt of a turn of the conversation, or the whole prompt.
struct score_prompt request_score_prompt(const struct request *r);
// Returns true if the rows of earlier turns are pinned in the prompt, and the keep rate is a share of the later tokens.
// Otherwise the selection is made for the prompt alone. This applies to chunks and to a quality, which needs the tokens
// that such a selection keeps.
bool request_pins_rows(const struct request *r);
// Returns the number of tokens in that prompt of which the keep rate is a share; 0: all tokens. The turn after a shared
// beginning has more tokens than its own, so that it can recall earlier ones.
int request_budget_tokens(const struct request *r);
bool request_is_drafted(const struct request *r);           // speculators may draft its answer
const char *request_deadline_name(const struct request *r); // name of its ttft_deadline_us in sentences for clients

// Returns what decided keep_rate: "fixed", "quality" or the name of the skip reason. "": not decided yet.
const char *request_rate_reason(const struct request *r);

bool request_may_follow(enum request_state from, enum request_state to);
void request_set_state(struct request *r, enum request_state state); // asserts that the state may follow
