// SPDX-License-Identifier: Apache-2.0
// One sequence at a worker group: the tokens it is made of, kept prompt tokens first, generated ones after, and how far
// they are in the KV cache.
//
// There is one kind of progress: rows n_cached .. n_tokens-1 are yet to be fed, and the pass that feeds the last of
// them yields the next token. Prefill, chunked prefill, decode, a replay and the return from preemption are the same
// thing with different counts.
//
// Owned by the scheduler and its thread.
#pragma once

#include "engine/kv_prefix.h"
#include "model/generation.h"

// What the router sends, or whoever drives a scheduler in his own process. Borrowed for the call.
struct sequence_request {
    uint64_t id;           // unique among the scheduler's sequences
    const int32_t *tokens; // [n_tokens] kept prompt tokens, then those generated before (a replay)
    int n_tokens, n_generated;
    const struct token_range *kept; // [n_kept_ranges] where in the prompt the kept tokens stood; none: all were kept
    int n_kept_ranges;
    int prompt_tokens;          // n, the whole prompt: generated token r has position n + r
    struct sampling sampling;   // max_tokens and min_tokens count from the first generated token, also in a replay
    const int32_t *penalty_ids; // [n_penalty_ids] the whole prompt, for the repetition penalty; none: the kept tokens
    int n_penalty_ids;
};

struct sequence_limits {
    int vocab_size;
    int context_tokens; // prompt and output together
    int kv_blocks;      // of the whole cache
};

struct sequence {
    uint64_t id;
    struct sampling sampling;
    int32_t *tokens;    // [n_kept + max_tokens]
    int32_t *positions; // [n_kept + max_tokens]
    int32_t *penalty_ids;
    int n_penalty_ids;
    int n_kept, n_tokens, prompt_tokens;
    int n_cached;                     // entries in the KV cache
    int32_t *blocks;                  // [enough for all of it]
    int n_blocks;                     // held
    int n_published;                  // of them, the first: full and in the prefix cache
    kv_chain chain;                   // up to the last of those
    struct kv_known known;            // of the prefix cache, when it was last looked for there
    int n_reused;                     // prompt tokens that stood in the prefix cache when it was first begun
    bool begun, told_reused;          // `n_reused` is known; and was reported
    bool cut;                         // a pass fed part of its prompt
    int step_rows;                    // fed by the pass being made
    struct sequence *previous, *next; // in the queue
};

// Checks everything and copies. STATUS_INVALID or STATUS_OUT_OF_RANGE with a sentence.
enum status sequence_create(const struct sequence_request *request, const struct sequence_limits *limits,
                            struct sequence **sequence_p);
void sequence_free(struct sequence *s); // its blocks must have been given back

static inline int sequence_pending(const struct sequence *s)
{
    return s->n_tokens - s->n_cached;
}

static inline int sequence_generated(const struct sequence *s)
{
    return s->n_tokens - s->n_kept;
}

// Blocks that a sequence of the request's size needs at the end; the last generated token is never fed.
static inline int sequence_blocks_most(const struct sequence *s)
{
    return kv_blocks_for(s->n_kept + s->sampling.max_tokens - 1);
}

static inline struct kv_text sequence_text(const struct sequence *s)
{
    return (struct kv_text){s->tokens, s->positions, s->n_tokens};
}
