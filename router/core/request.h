// SPDX-License-Identifier: Apache-2.0
// One request inside the router, and its states.
//
//   RECEIVED -> TOKENISED -> SCORING -> READY -> PACKED -> PREFILL -> DECODE -> DONE
//                   |                   ^  ^        |         |          |
//                   +-------------------+  +--------+---------+----------+   (its worker group was lost)
//   every state -> FAILED | CANCELLED; PREFILL, DECODE -> DONE; READY -> DONE (score only)
//
// A thread of the front creates a request, fills in `id`, `spec` and `sink`, and passes it to core_submit(). From then
// on the core's thread owns the request. It frees the request after sink.done has returned.
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
    REQUEST_SCORING,   // waits for a speculator, is on a speculator, or shares the score of such a request
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
    SKIP_NONE,         // the prompt was speculated
    SKIP_OFF,          // prefill mode off, set by the request or by the router's default
    SKIP_KEEP_ALL,     // keep_rate or quality 1
    SKIP_SHORT,        // with mode auto: the prompt has fewer than min_tokens tokens
    SKIP_COST,         // with mode auto: the first token is not predicted clearly sooner, or costs are unknown
    SKIP_UNCALIBRATED, // a quality is asked for, and the speculators have no calibration for it
    SKIP_UNSURE,       // the prompt was scored, but no keep rate is likely enough to reach the quality
    SKIP_FALLBACK,     // answers of requests like this one did not agree with the whole prompt (shadow.h)
    // The following reasons count as degraded service (core_totals.degraded).
    SKIP_NO_NODE,  // no speculator takes work: none is attached, or all drain or are ejected
    SKIP_TOO_LONG, // the prompt exceeds the context of every speculator
    SKIP_TIMEOUT,  // no speculator answered in time
    SKIP_LOST,     // the speculator was lost or failed
    SKIP_COUNT
};
// Returns the reason of a refusal for the log. `sentence` is the error message for the client. It is returned unchanged
// unless it may quote the client's text, which must not be logged.
const char *request_refusal_reason(enum status status, const char *sentence);
const char *skip_reason_name(enum skip_reason reason);

struct token_logprob {
    int32_t token;
    float logprob;
    int rank;                        // prompt tokens only: 1 for the likeliest token of the vocabulary
    int n_top;                       // number of likeliest tokens in the arrays below
    int32_t top_token[LOGPROBS_MAX]; // [n_top]
    float top_logprob[LOGPROBS_MAX];
};

enum finish_reason { FINISH_REASON_STOP, FINISH_REASON_LENGTH, FINISH_REASON_CANCELLED, FINISH_REASON_ERROR };
const char *finish_reason_name(enum finish_reason reason); // "stop", "length", "cancelled", "error"

struct request;
struct request_stage; // request_stages.h
struct shadow;        // shadow.h

// The receiver of a request's output. It is called on the core's thread and must not block.
struct request_sink {
    // Receives new tokens. Returns true if the text now contains a stop string. The request then ends with "stop". Only
    // the first *n_used_p of these tokens count as used.
    bool (*tokens)(void *user, const int32_t *tokens, const struct token_logprob *logprobs, int n, int *n_used_p);
    // Receives the log-probabilities of the next n prompt tokens. The first call begins with the second prompt token.
    // Every call comes before the first new token. NULL if the receiver wants no log-probabilities of the prompt.
    void (*prompt_logprobs)(void *user, const struct token_logprob *logprobs, int n);
    // Receives the end, exactly once. `status` and `message` give the cause of ERROR and CANCELLED. A score-only
    // request has its answer in r->kept and r->importance. The request is freed after the call, so copy what is needed.
    void (*done)(void *user, const struct request *r, enum finish_reason reason, enum status status,
                 const char *message);
    void *user;
};

// The place of the request, and its part in the accounts of its node. Only ledger.c writes it.
struct request_account {
    struct core_node *node; // the node that the request is on, or NULL
    struct core_bin *bin;   // the bin that still waits for the request's score or first token, or NULL
    // Id of the score bin or prefill bin in which the request was sent last. It stays when `bin` becomes NULL.
    // dispatch.c numbers the bins of both pools from 1.
    uint64_t bin_id;
    struct tenant_account *tenant; // account of the request's tenant, from admission to end
    struct tenant_usage *usage;    // counts of the request's tenant (tenant_usage.h); NULL: it is not counted
    bool is_long;                  // the request is a long prompt: it has more rows to compute than a pass of the node
    bool is_background;            // as in request_spec: the node's bins and work do not include the request
    int rows;                      // rows that the node has to compute for the request
    double attention_pairs;        // attention pairs of these rows, see cost.h
    double output_tokens;          // charge for its generated tokens so far, see ledger_output_tokens()
    int losses;                    // nodes lost in a row while they had the request; a token or a score resets it
    int64_t charged_us;            // `timing` includes the time up to this moment
    int64_t token_us;              // time when the latest token came
};

// State of drafting the request's answer on a speculator (drafting.h). Only drafting.c writes it.
struct request_drafting {
    struct core_node *node;      // the speculator that holds the request's prompt; NULL: none
    struct request *next, *prev; // links in node->drafted
    int n_sent;                  // number of output tokens that the speculator was sent
    int n_drafts;                // drafts that were passed on since the last advance
    bool is_unread;              // true: the speculator was not sent the prompt yet
    bool is_over;                // true: drafting of this answer has ended and does not start again
};

// Links between a request that is scored and its sharers (score_sharing.h). Only score_sharing.c writes them.
struct request_sharing {
    struct request *scored;       // the request whose score this sharer waits for; NULL: this request is no sharer
    struct request *first, *last; // list of this request's sharers
    struct request *prev, *next;  // links in the list of `scored`
};

// An answer that this request continues (resume.h). The front sets the fields before core_submit().
struct request_resume {
    bool given;      // the client has lost the stream of the answer: a running request with the same id ends
    int n;           // tokens of `output` that the client has; the answer continues after them
    bool is_stopped; // these tokens end with a stop string, or complete the grammar
    uint64_t mark;   // mark of the answer that the client has; 0: any
    uint64_t basis;  // hash of the prompt and of the seed, which is part of every request's mark
};

// Links of the containers in request_table.h.
struct request_links {
    struct request *number_next, *id_next;
    int64_t timer_us;
    int timer_index; // -1: no timer
};

struct request {
    uint64_t number; // unique in this process, from request_create(); identifies the request in the cluster protocol
    char *id;        // from the client, or made by the service; owned
    enum request_state state; // written by request_set_state() only
    struct request_sink sink;
    struct request_spec spec;   // the client's prompt and options
    struct trace_record *trace; // borrowed from the sink until sink.done; NULL: the request is not traced
    struct shadow *shadow;      // the shadow that this request runs for; borrowed; NULL: it is a client's request
    struct request_resume resume;
    uint64_t score_with; // number of the choice whose score this request may share (score_sharing.h); 0: none

    // Usage, times and place. Only ledger.c writes them.
    struct request_usage usage;
    struct request_timing timing;
    struct request_account account;

    struct prefill_prediction predicted; // score_plan.c writes it
    struct request_stage *stages;        // [NODE_ROLES] request_stages.c writes them; owned; NULL: not asked for

    // Results. requests.c, request_selection.c and request_steps.c write them.
    enum skip_reason skip;
    double keep_rate;             // keep rate by which the kept tokens were chosen; 0 until READY
    enum rate_reason rate_reason; // what decided keep_rate; scored prompts only
    // [n_kept_ranges] kept ranges in the order of the rows; owned. They are ascending and do not touch, except in a
    // conversation. NULL until READY, or until a held selection is found.
    struct token_range *kept;
    int n_kept_ranges;
    float *importance; // [spec.n_tokens] importance of each prompt token, or NULL; owned
    int32_t *draft;    // [n_draft] the speculator's guess at the answer; owned
    int n_draft;
    struct request_drafting drafting;
    struct request_sharing sharing;
    uint64_t mark;         // identifies all that the next tokens depend on, see resume.h; 0 until READY
    int n_prompt_logprobs; // number of log-probabilities of the prompt that were passed on to the client
    int32_t *output;       // [usage.completion_tokens] generated tokens; owned
    int output_capacity;
    bool ended_by_token;       // true: an end token or a stop token ended the answer, not a stop string or max_tokens
    int64_t score_deadline_us; // while SCORING: time at which the router stops waiting for a score
    // Rows of the conversation until all of them are known; owned. NULL if the request has no earlier turn with rows of
    // its own.
    struct conversation *conversation;
    struct selection_key selection; // key of the selection that is looked up or scored next

    struct sched_request sched; // the request as the scheduler sees it, see sched/sched_request.h
    struct request_links links;
};

// Returns the request that embeds `r`. NULL gives NULL.
static inline struct request *request_of(const struct sched_request *r)
{
    return r ? (struct request *)((char *)r - offsetof(struct request, sched)) : NULL;
}

struct request *request_create(void); // any thread
void request_free(struct request *r);
// Copies the spec deeply into a request that was just created.
void request_copy_spec(const struct request *from, struct request *to);
// Returns the tokens that the request counts for in max_queue_tokens: its prompt tokens, its resumed tokens, and one
// token for every 4 bytes of its grammar, its stop strings, its texts to compress and its turns' pinned ranges. A token
// also takes 4 bytes, so the bound is a bound of memory. The choices of a prompt share their stop strings. Each choice
// counts them, because it may be the last one that holds them.
int64_t request_queue_tokens(const struct request *r);
int request_kept_tokens(const struct request *r);                  // tokens in its kept ranges
void request_keep_all(struct request *r, enum skip_reason reason); // keeps the whole prompt
// Copies the kept ranges in ascending order, and joins ranges that touch. The caller frees *sorted_p. Returns the
// number of copied ranges.
int request_sort_kept(const struct request *r, struct token_range **sorted_p);
// Returns the prompt that is scored next: the prompt of a turn of the conversation, or the whole prompt.
struct score_prompt request_score_prompt(const struct request *r);
// Returns true if the next score pins the rows of earlier turns. The keep rate then applies only to the tokens after
// these turns. Returns false if the next prompt is scored as if it had no earlier turns. This applies to the first
// turn, to requests with chunks of a fixed size, and to requests with a quality, because calibrations are fitted to
// prompts without turns.
bool request_pins_rows(const struct request *r);
// Returns the number of tokens of request_score_prompt() to which the keep rate applies; 0: all tokens. If the first
// turn is a beginning that prompts share, the second turn gets a larger number, so that it can recall pruned tokens.
int request_budget_tokens(const struct request *r);
bool request_is_drafted(const struct request *r);           // true if speculators may draft the answer
const char *request_deadline_name(const struct request *r); // name of ttft_deadline_us in messages to clients

// Returns what decided keep_rate: "fixed", "quality" or the name of the skip reason. Returns "" until it is decided.
const char *request_rate_reason(const struct request *r);

// Writes the rules that changed the request's prefill options, separated by a comma: "never", "keep-at-least:0.5",
// "drafts-off", "shadow-fallback". Writes "" if none did.
enum { REQUEST_LIMIT_ROOM = PRUNE_RULE_ROOM + 32 };
void request_limit_format(const struct request *r, char text[REQUEST_LIMIT_ROOM]);

bool request_may_follow(enum request_state from, enum request_state to);
void request_set_state(struct request *r, enum request_state state); // asserts request_may_follow()
