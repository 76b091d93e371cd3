// SPDX-License-Identifier: Apache-2.0
// A request as the scheduler sees it: the client's wishes, the usage so far, and its keys and links in the waiting set.
// Core embeds a struct sched_request in each of its requests.
//
// Writers: core sets the facts; only core/ledger.c sets fields marked as accounts. The waiting set sets the keys.
// request_list.c, request_tree.c and the waiting set set the links. One thread.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/base/priority.h"
#include "lib/text/generation.h"

enum { PRIORITY_LEVELS = 2 * PRIORITY_MAX + 1 };
int sched_priority_level(int32_t priority); // 0 is the lowest

// The client's wishes. Constant once the request is TOKENISED.
struct request_spec {
    int32_t *tokens; // [n_tokens] the whole prompt; owned
    int n_tokens;
    struct sampling sampling; // resolved: max_tokens is set
    struct prefill prefill;
    struct token_range *pinned; // ranges kept whatever their importance; owned
    int n_pinned;
    struct prompt_turn *turns; // [n_turns] finished turns of a conversation, ascending; owned
    int n_turns;
    bool score_only; // a Score call: ends once the speculator has answered
    bool want_importance;
    int32_t priority;
    size_t stop_bytes;    // memory of the stop strings, which the front owns
    char *tenant;         // owned, may be NULL
    uint64_t owner;       // the tenant of the API key, within which ids are unique; 0: no keys are used
    uint64_t prefix_salt; // requests with different salts share no KV blocks
    int64_t arrived_us;
    int64_t ttft_deadline_us; // a later first token is of no use; on clock_now_us(), INT64_MAX: none
    bool deadline_of_call;    // ttft_deadline_us is the call's deadline, which is earlier than the request's own
};

// Usage so far (accounts). kept_tokens is 0 until the kept tokens are known.
struct request_usage {
    int prompt_tokens, scored_tokens, kept_tokens, cached_tokens, completion_tokens, replays;
    int score_cached_tokens; // part of scored_tokens that was not computed for this request
    // parts of kept_tokens: rows that earlier turns had; pruned tokens that this turn recalls
    int frozen_tokens, recalled_tokens;
    // draft tokens verified by worker groups; verified draft tokens in the answer
    int draft_tokens, draft_accepted_tokens;
};

struct request_timing { // accounts, in microseconds
    int64_t queue_us, score_us, pack_wait_us, prefill_us, ttft_us, total_us;
};

// The times to first token that were predicted on arrival, with all tokens and pruned. Zeros: none were predicted.
struct prefill_prediction {
    double whole_us, pruned_us;
};

// The orders in which waiting requests are indexed: length_index.h, prefix_groups.h, due_index.h (overdue ones only).
enum request_order { BY_LENGTH, BY_PREFIX, BY_DUE, REQUEST_ORDERS };

// The room that a node must have for a waiting request.
struct request_need {
    int rows; // rows of its next pass, whole
    // KV blocks of PREFIX_BLOCK tokens that it is expected to need. Counts all sharing that was possible when it joined
    // the waiting set: with waiting requests, or with requests on some node.
    int blocks;
    int context; // tokens of its longest sequence
};

// Known rows of a conversation until it is scored. Zeros: no conversation.
struct frozen_rows {
    int rows, end;      // rows of the turns so far, including answers; index of the first token after them
    int answers;        // tokens of later answers, which will all have rows
    int selected_of;    // tokens from which the keep rate selects the share that is still to be added
    int further_scores; // scores of later turns, after the next one
    uint64_t *prefix;   // [n_prefix] the prefix chain of `rows`; owned
    int n_prefix;
};

struct sched_request {
    // Facts. The first four are set when the request is created.
    uint64_t number; // unique; smaller numbers are older
    const struct request_spec *spec;
    const struct request_usage *usage;
    const struct request_timing *timing;
    uint64_t *prefix; // [n_prefix] the prefix chain of the rows of its next pass, see prefix_chain.h; owned
    int n_prefix;
    struct frozen_rows frozen;
    int score_tokens, score_ranges; // conversations: tokens and pinned ranges of the prompt that is scored next
    bool runs_alone; // it may have ended its worker groups: it gets a group to itself until its next token

    // Keys, set by the waiting set while the request waits.
    struct tenant_queue *tenant_queue; // also kept while the request is on a node, to charge its tenant
    int64_t due_us;                    // latest time at which it should be dispatched; 0: at once
    bool overdue;                      // due_us has passed: it goes into the next bin, whatever its priority
    bool packable;                     // it is in the indexes
    uint64_t joined;                   // the waiting set's count when it joined the indexes or the overdue requests
    uint64_t tree_weight;              // a keyed hash of the number, see request_tree.h
    struct request_need need;

    // Links, set by request_list.c, request_tree.c and waiting_set.c.
    struct request_list *list;
    struct sched_request *prev, *next;
    struct sched_request *lower[REQUEST_ORDERS], *higher[REQUEST_ORDERS];
    struct request_need subtree_min[REQUEST_ORDERS];
    // unasked_link: the pointer that refers to it; NULL: not unasked
    struct sched_request *unasked_next, **unasked_link;
};

// Returns the rows of its next pass: the whole prompt, or kept tokens and output.
int sched_request_rows(const struct sched_request *r);
// Returns these rows less the blocks that a cache holds.
int sched_request_rows_after(const struct sched_request *r, int cached_blocks);
// Returns the blocks of `shared` that the request can use: not the block of its last row.
int sched_request_shareable_blocks(const struct sched_request *r, int shared);
int sched_request_kv_blocks(const struct sched_request *r, int block_tokens); // expected to be needed
int64_t sched_request_message_bytes(const struct sched_request *r);           // bytes that count towards BIN_BYTES_MAX
