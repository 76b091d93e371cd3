// SPDX-License-Identifier: Apache-2.0
// A request as the scheduler sees it: the client's prompt and options, the usage so far, and the keys and links of the
// waiting set. Core embeds a struct sched_request in each of its requests.
//
// Writers: core sets the facts; only core/ledger.c sets fields marked as accounts. The waiting set sets the keys.
// request_list.c, request_tree.c and the waiting set set the links. One thread.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/base/priority.h"
#include "lib/base/prune_rule.h"
#include "lib/text/generation.h"

enum { PRIORITY_LEVELS = 2 * PRIORITY_MAX + 1 };
int sched_priority_level(int32_t priority); // 0 is the lowest

// The client's prompt and options. Constant once the request is admitted.
struct request_spec {
    int32_t *tokens; // [n_tokens] the whole prompt; owned
    int n_tokens;
    struct sampling sampling; // resolved: max_tokens is set
    struct context_policy context;
    struct prefill prefill;
    struct prune_rule limited_by; // rule that changed what the request asked of `prefill`; PRUNE_UNSET: none did
    bool drafts_limited;          // the request asked for drafts, and a rule does not allow them
    struct token_range *pinned;   // ranges kept whatever their importance; owned
    int n_pinned;
    struct prompt_turn *turns; // [n_turns] finished turns of a conversation, ascending; owned
    int n_turns;
    // True for Score and Compress: the request ends when the speculator has answered. With mode off it needs no score.
    bool score_only;
    bool want_importance;
    bool explain; // the answer tells what each stage decided
    int32_t priority;
    // The request uses what other requests leave: it never becomes overdue in the queue, does not count as work of its
    // node, and its group computes it only in passes without other requests.
    bool background;
    size_t held_bytes; // memory that the front holds for the request: stop strings, or texts to compress
    char *tenant;      // owned, may be NULL
    char *cache_salt;  // the client's own part of prefix_salt; owned, may be NULL
    // identifies the tenant of the API key; request ids are unique per owner; 0: the router uses no keys
    uint64_t owner;
    uint64_t prefix_salt; // requests with different salts share no KV blocks
    int64_t arrived_us;
    int64_t ttft_deadline_us; // deadline of the first token, by clock_now_us(); INT64_MAX: no deadline
    bool deadline_of_call;    // true: ttft_deadline_us is the gRPC call's deadline, not the request's own
};

// Usage so far (accounts). kept_tokens is 0 until the kept tokens are known.
struct request_usage {
    int prompt_tokens, scored_tokens, kept_tokens, cached_tokens, completion_tokens, replays;
    int score_cached_tokens;   // part of scored_tokens that was not computed for this request
    int frozen_tokens,         // part of kept_tokens that had rows in earlier turns of the conversation
        recalled_tokens;       // part of kept_tokens that earlier turns pruned and this turn recalls
    int draft_tokens,          // draft tokens that worker groups verified
        draft_accepted_tokens; // verified draft tokens that are in the answer
    int preemptions;           // times that the request left a worker group for another request (preemption.h)
};

struct request_timing { // accounts, in microseconds
    int64_t queue_us, score_us, pack_wait_us, prefill_us, ttft_us, total_us;
};

// Times to first token, predicted on arrival: of the whole prompt, and of the pruned prompt (a score, then a prefill of
// the kept tokens). Zeros: no times were predicted.
struct prefill_prediction {
    double whole_us, pruned_us;
};

// Orders in which waiting requests are indexed: length_index.h, prefix_groups.h, due_index.h (overdue requests only).
enum request_order { BY_LENGTH, BY_PREFIX, BY_DUE, REQUEST_ORDERS };

// The room that a node must have for a waiting request.
struct request_need {
    int rows; // rows to compute if no cache has any of them
    // KV blocks of PREFIX_BLOCK tokens that the request is expected to need in the best case. Leaves out prompt blocks
    // that the request could share, when it joined the waiting set, with a waiting request or with a request on any
    // node.
    int blocks;
    int context; // see sched_request_context()
};

// The rows of a conversation (core/conversation.h) that are known before its next score. Zeros: there is no
// conversation.
struct frozen_rows {
    int rows, end;      // rows of the turns so far with their answers; index of the first token after these turns
    int answers;        // tokens of the answers of later turns, which will all have rows
    int selected_of;    // number of tokens to which the keep rate applies in all further scores together
    int further_scores; // number of scores of later turns after the next score
    uint64_t *prefix;   // [n_prefix] the prefix chain of `rows`; owned
    int n_prefix;
};

struct sched_request {
    // Facts. The first four are set when the request is created.
    uint64_t number; // unique; smaller numbers are older
    const struct request_spec *spec;
    const struct request_usage *usage;
    const struct request_timing *timing;
    uint64_t *prefix; // [n_prefix] prefix chain of the request's next pass, see prefix_chain.h; owned
    int n_prefix;
    struct frozen_rows frozen;
    int score_tokens, score_ranges; // conversations: tokens and pinned ranges of the prompt that is scored next
    // True: the request may be the reason why its last worker groups were lost. It runs alone on a group until its next
    // token, so that other requests are not lost with it.
    bool runs_alone;

    // Accounts: the KV blocks on its node, and its part of `held` of its tenant queue.
    const struct prefix_run *run; // prompt blocks that the request holds in the node's prefix record; NULL: none
    int own_blocks;               // KV blocks that the request is expected to need in addition to `run`
    double share;                 // share of its worker group, see sched_node_share(); 0: not on a worker group
    int placed_tokens;            // number of generated tokens when it was dispatched last
    int free_rows;                // rows that its tenant is not charged for at the next pick, after a preemption

    // Keys, set by the waiting set while the request waits.
    struct tenant_queue *tenant_queue; // also kept while the request is on a node, to charge its tenant
    int64_t due_us;                    // latest time at which it should be dispatched; 0: immediately
    bool overdue;                      // true: due_us has passed, so it goes into the next bin, whatever its priority
    bool was_overdue;                  // true: it was overdue when a bin picked it last
    bool packable;                     // true: the request is in the indexes, so that a bin may pick it
    uint64_t joined;                   // waiting_set.joined when the request last became packable or overdue
    uint64_t tree_weight;              // keyed hash of `number`, see request_tree.h
    struct request_need need;

    // Links, set by request_list.c, request_tree.c and waiting_set.c.
    struct request_list *list;
    struct sched_request *prev, *next;
    struct sched_request *lower[REQUEST_ORDERS], *higher[REQUEST_ORDERS];
    struct request_need subtree_min[REQUEST_ORDERS];
    // Links in waiting_set.unasked. unasked_link is the address of the pointer to this request; NULL: not in the list.
    struct sched_request *unasked_next, **unasked_link;
};

// Returns the rows that a node has to compute if its cache has none of them: the prompt that is scored next, or the
// kept tokens and the output so far.
int sched_request_rows(const struct sched_request *r);
// Returns sched_request_rows() less the rows of `cached_blocks` leading blocks in a cache.
int sched_request_rows_after(const struct sched_request *r, int cached_blocks);
// Returns how many of `shared` leading blocks the request can use. It cannot use the block with its last row, because
// that row is always computed.
int sched_request_shareable_blocks(const struct sched_request *r, int shared);
// Returns the number of KV blocks that the request is expected to need.
int sched_request_kv_blocks(const struct sched_request *r, int block_tokens);
int64_t sched_request_message_bytes(const struct sched_request *r); // bytes that count towards BIN_BYTES_MAX
