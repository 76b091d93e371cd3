// SPDX-License-Identifier: Apache-2.0
// Drafts answers with the small model (speculative decoding, arXiv 2211.17192), from held prompts: their KV entries
// stay in the cache after the score.
//
// The router sends the tokens that worker groups have generated. Guesses that equal these tokens keep their KV entries;
// from the first different token on, entries are computed again. Then the drafter guesses greedily, so many tokens
// beyond the generated ones that the draft also covers the pass that runs meanwhile: it works one round ahead, and a
// late draft still matches. Guesses change only how soon tokens come, never which, since worker groups verify them.
//
// Drafting takes only the time that scoring leaves: the scorer runs a drafting pass when no prompt is to be scored.
// Held prompts take at most a share of the KV blocks. The one whose answer has not advanced for the longest time is
// released first: beyond that share, and whenever a prompt that is to be scored lacks blocks.
//
// A prompt that was not scored can be held as well: its rows are then computed in drafting passes.
//
// Owned by the scorer, on its thread.
#pragma once

#include "engine/batch_builder.h"
#include "engine/prefix_cache.h"
#include "speculator/scorer.h"

struct drafter;

// Borrows all three until drafter_free(). Holds at most model->draft_blocks KV blocks.
struct drafter *drafter_create(const struct scorer_model *model, struct block_manager *blocks,
                               struct batch_builder *builder);
void drafter_free(struct drafter *d);

// A prompt after its look-ahead, whose tokens are the first guesses. It takes the place of one that is held for the
// same request.
struct held_prompt {
    uint64_t request, salt;
    const int32_t *tokens; // [n] copied
    int n;
    const int32_t *guesses; // [n_guesses] copied
    int n_guesses;
    int n_cached;    // KV entries, without one for the last guess
    int32_t *blocks; // [n_blocks] owned by the drafter from now on, like their references
    int n_blocks, n_published;
    kv_chain chain; // of the published ones
};
void drafter_hold(struct drafter *d, const struct held_prompt *prompt);

// See scorer_advance().
bool drafter_advance(struct drafter *d, const struct score_advance *advance);

bool drafter_release(struct drafter *d, uint64_t request); // false: it is not held
bool drafter_release_oldest(struct drafter *d);            // false: none is held
void drafter_clear(struct drafter *d);

bool drafter_busy(const struct drafter *d);   // whether a pass would guess tokens
int drafter_prompts(const struct drafter *d); // that it holds
int drafter_blocks(const struct drafter *d);  // their KV blocks

// One pass, and a call of `on_draft` for each prompt with a new guess.
enum status drafter_step(struct drafter *d, scorer_draft_fn *on_draft, void *context);
