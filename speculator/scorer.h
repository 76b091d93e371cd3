// SPDX-License-Identifier: Apache-2.0
// Scores prompts with a small model: how much each prompt token matters to the last prompt token and to the next few
// that the model itself would write (SpecPrefill, arXiv 2502.02789), and which tokens to keep for that.
//
// What it may do: say which prompt tokens the main model need not read. What it must not: depend on company. The kept
// set of a prompt is a property of (prompt, model, policy); which prompts share its passes, how it is cut into chunks
// and how large a pass is change no bit of it (as far as the backend promises: kernels/backend.h).
//
// Passes are made by iteration, as in continuous batching: each takes the next look-ahead row of every prompt that has
// been read, and fills up with rows of prompts that have not; a new prompt joins at the next pass. Look-ahead is
// greedy. What earlier prompts left in the prefix cache is not read again: the importance needs the prompt's keys and
// the rows that look back at them, never the prompt's own rows but the last. A sampled EOS ends it: the step that
// produced it counts, the token itself is never fed, nor is the last one sampled. A prompt takes the KV blocks for all
// its entries before its first row and gives them back with its result, so nobody ever waits half-way for another's
// blocks.
//
// One thread owns a scorer. Results come through a callback within scorer_add and scorer_step; what they point to is
// good for the call. The callback must not call the scorer.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "model/generation.h"
#include "model/model.h"
#include "speculator/select.h"

// The model as it was opened, and how to run it: model_forward alone, engine_forward in a group of ranks.
struct scorer_model {
    const struct model_config *config; // borrowed while the scorer lives
    int token_budget;                  // rows of one pass at most
    int max_seqs;                      // prompts in one pass at most
    int context_tokens;                // KV entries of one sequence at most
    int kv_blocks;
    bool samples;      // it draws tokens itself, see model_samples()
    bool prefix_cache; // full blocks of prompts serve those that begin alike; changes no score
    enum status (*forward)(void *context, const struct ragged_batch *batch, struct forward_result *result);
    void *context;
};

// One prompt to be scored. Everything is copied.
struct score_item {
    uint64_t request;
    const int32_t *tokens; // [n]
    int n;
    struct prefill prefill;           // keep_rate, look_ahead, chunk_tokens, pool_window, paper_exact
    const struct token_range *pinned; // [n_pinned]
    int n_pinned;
    int tail_tokens;
    bool want_importance;
};

struct score_result {
    uint64_t request;
    const char *error; // NULL, or why this prompt was not scored: keep everything. Nothing below is set then
    const struct token_range *kept; // [n_kept] ascending, not touching
    int n_kept;
    const float *importance; // [n], NULL when not wanted
    int n;
    int steps;         // look-ahead steps that counted
    int cached_tokens; // of n, taken from the prefix cache
    int64_t score_us;  // since scorer_add
};

typedef void (*scorer_result_fn)(void *context, const struct score_result *result);

struct scorer;

struct scorer *scorer_create(const struct scorer_model *model, scorer_result_fn on_result, void *context);
void scorer_free(struct scorer *s); // NULL is fine; drops what is unfinished

// Checks the item and takes it, or answers with an error at once. The look-ahead is cut to what the context holds:
// a prompt of the full context is scored by its last token alone.
void scorer_add(struct scorer *s, const struct score_item *item);

// Forgets the request, without a result; its KV blocks are free on return. Unknown ones are ignored.
void scorer_cancel(struct scorer *s, uint64_t request);
void scorer_clear(struct scorer *s); // forgets all

// One pass. On failure the model is unusable, and so is the scorer. Without work it does nothing.
enum status scorer_step(struct scorer *s);

// What the last pass had in it, and how long it took; all zero when the last step had no work.
struct scorer_pass {
    int rows;
    int64_t pairs; // of a row and an entry it attends to
    int64_t us;
};
struct scorer_pass scorer_last_pass(const struct scorer *s);

struct scorer_load {
    int running, waiting; // prompts that hold KV blocks, and that do not yet
    int kv_blocks_free;
};
struct scorer_load scorer_get_load(const struct scorer *s);
