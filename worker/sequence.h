// SPDX-License-Identifier: Apache-2.0
// One sequence of a worker group: its tokens (kept prompt tokens first, then generated tokens), and how many of them
// are in the KV cache.
//
// Progress has one form. The rows n_cached .. n_tokens-1 are pending, and the pass with the last pending row yields the
// next token. Prefill, chunked prefill, decode, replay and the return from preemption differ only in these counts.
//
// A draft is a guess at the next tokens, stored after the tokens of the sequence. Draft rows verify it: they follow the
// last pending row, and each row yields the token that follows its draft token. A draft token that equals the sampled
// token becomes a token of the sequence, and its KV entry is kept. The first draft token that differs ends the draft.
//
// Owned by the scheduler and its thread.
#pragma once

#include "engine/prefix_cache.h"
#include "lib/grammar/grammar.h"
#include "lib/text/config.h"
#include "lib/text/generation.h"
#include "worker/prompt_lookup.h"
#include "worker/sampler.h"

enum sequence_finish {
    SEQUENCE_GOES_ON,
    SEQUENCE_STOP,   // EOS or a stop token (not reported), or the grammar is complete
    SEQUENCE_LENGTH, // max_tokens tokens have been generated
    SEQUENCE_ERROR,
};
const char *sequence_finish_name(enum sequence_finish finish);

// A request of the scheduler's caller. Borrowed for the call.
struct sequence_request {
    uint64_t id;           // unique among the scheduler's sequences
    uint64_t bin;          // id of the bin that had the sequence; only reported
    const int32_t *tokens; // [n_tokens] kept prompt tokens, then tokens generated before a replay
    int n_tokens, n_generated;
    // [n_kept_ranges] indices of the kept tokens in the prompt, in the order of the rows. If there are no ranges, all
    // tokens are kept.
    const struct token_range *kept;
    int n_kept_ranges;
    int prompt_tokens;        // length n of the whole prompt; generated token r has position n + r
    struct sampling sampling; // max_tokens and min_tokens count from the first generated token, also in a replay
    // [n_penalty_ids] the whole prompt, for the repetition penalty. If there are none, the kept tokens are used
    const int32_t *penalty_ids;
    int n_penalty_ids;
    int logprobs_from; // with sampling.prompt_logprobs: index of the first prompt token whose log-probability is wanted
    uint64_t salt;     // salt of the prefix cache: only sequences with equal salts share blocks
    const int32_t *draft; // [n_draft] draft tokens from output token 0 on, also in a replay
    int n_draft;
    bool prompt_lookup; // prompt lookup may draft for the sequence
    bool background;    // the sequence is computed only in passes without other sequences
};

struct sequence_limits {
    int vocab_size;
    int context_tokens;             // prompt and output together
    int kv_blocks;                  // blocks of the whole KV cache
    const struct rope_config *rope; // of the model, valid as long as the sequence
};

struct sequence {
    uint64_t id, bin, salt;
    struct sampling sampling;
    int32_t *tokens;    // [n_kept + max_tokens]
    int32_t *positions; // [n_kept + max_tokens]
    int32_t *penalty_ids;
    int n_penalty_ids;
    struct grammar_matcher *matcher; // state of sampling.grammar after n_matched tokens; owned; NULL: no grammar
    int n_matched;                   // generated tokens that the matcher has accepted
    uint32_t *mask;                  // the matcher's mask for the token that is being sampled
    int n_kept, n_tokens;
    const struct rope_config *rope; // borrowed
    int rope_length;                // least length of the rows, see kernels/rope_shape.h
    int n_draft;                    // number of draft tokens, which are stored in `tokens` from n_tokens on
    bool draft_from_lookup;         // prompt lookup made the draft, not a speculator
    struct prompt_lookup *lookup;   // owned; NULL: no prompt lookup
    // Index of the next prompt token whose log-probability is to be reported; n_kept: none is left.
    int next_logprob;
    int n_cached;              // number of entries in the KV cache
    int32_t *blocks;           // [sequence_blocks_max()]
    int n_blocks;              // blocks that the sequence references now
    int n_published;           // number of leading blocks that are full and in the prefix cache
    kv_chain chain;            // hash chain of the prefix cache, up to the last published block
    struct prefix_match match; // result of the last lookup in the prefix cache
    int n_reused;              // prompt tokens found in the prefix cache when the sequence ran for the first time
    bool started;              // the sequence has run, and n_reused is set
    bool reported_reused;      // n_reused has been reported
    bool is_background;        // as in struct sequence_request
    bool is_paused;            // it is a background sequence, and other sequences go first in this pass
    bool is_chunked;           // a pass contained part of its prompt
    uint64_t last_pass;        // number of the last pass with rows of the sequence; 0: none
    // number of the last pass with a row that the host samples; before the first such row, the pass that started the
    // sequence
    uint64_t host_pass;
    int64_t added_us;
    struct sequence *previous, *next; // in the scheduler's queue
};

// Checks and copies the request. Returns STATUS_INVALID or STATUS_OUT_OF_RANGE with the reason in status_message().
enum status sequence_create(const struct sequence_request *request, const struct sequence_limits *limits,
                            struct sequence **sequence_p);
void sequence_set_matcher(struct sequence *s, struct grammar_matcher *matcher); // owns it from now on
void sequence_free(struct sequence *s);                                         // release its blocks first

// Replaces the draft by the tokens [n], the first of which is output token `from`. Some of these tokens may have been
// generated already. Nothing changes if the given tokens contradict generated tokens, if fewer than `from` tokens have
// been generated, or if all given tokens have been generated already. Leaves out tokens beyond max_tokens, and tokens
// from the first stop token on. Returns STATUS_INVALID if a token is outside the vocabulary.
enum status sequence_set_draft(struct sequence *s, int from, const int32_t *tokens, int n,
                               const struct model_config *config);

// Prompt lookup: replaces the draft by the tokens that followed an earlier occurrence of the sequence's last tokens.
// The draft has at most LOOKUP_DRAFT_MAX tokens, and at most as many tokens as the two occurrences have in common.
// Returns false, without a change, if there is no earlier occurrence or no prompt lookup.
enum { LOOKUP_DRAFT_MAX = 8 };
bool sequence_lookup_draft(struct sequence *s, const struct model_config *config);

// Returns the inputs of sampling for the token that follows the first `drafted` tokens of the draft.
struct sampler_context sequence_sampler_context(const struct sequence *s, const struct model_config *config,
                                                int drafted);

// Returns how many pending rows the next passes have to compute.
static inline int sequence_pending(const struct sequence *s)
{
    return s->n_tokens - s->n_cached;
}

// Returns true if log-probabilities of the prompt are still wanted. The whole prompt is computed then, because cached
// entries have no logits.
static inline bool sequence_wants_prompt_logprobs(const struct sequence *s)
{
    return s->next_logprob < s->n_kept;
}

static inline int sequence_generated(const struct sequence *s)
{
    return s->n_tokens - s->n_kept;
}

// Returns how many blocks the sequence needs at its greatest length. The last generated token is never computed and
// needs no entry.
static inline int sequence_blocks_max(const struct sequence *s)
{
    return kv_blocks_for(s->n_kept + s->sampling.max_tokens - 1);
}

// With longrope, all rows of a text have the same frequencies. When it grows over original_context, its KV entries are
// computed again with the frequencies of long texts, as in transformers. Returns how many tokens may follow before
// that; less than 0: now. (With dynamic scaling, entries stay: they depend on the prompt's length and on their own
// position.)
static inline int sequence_short_tokens_left(const struct sequence *s)
{
    if (s->rope->type != ROPE_LONGROPE || s->rope_length > s->rope->original_context) return INT32_MAX;
    return s->rope->original_context - (s->positions[s->n_tokens - 1] + 1);
}

static inline struct prefix_rows sequence_rows(const struct sequence *s)
{
    return (struct prefix_rows){s->tokens, s->positions, s->n_tokens,
                                s->salt ^ rope_config_salt(s->rope, s->rope_length)};
}
