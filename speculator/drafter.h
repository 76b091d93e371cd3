// SPDX-License-Identifier: Apache-2.0
// Drafts answers with the small model (speculative decoding, arXiv 2211.17192). The drafter continues held prompts:
// prompts whose KV entries stay in the cache after scoring.
//
// The router sends the tokens that worker groups have generated. Draft tokens that equal these tokens keep their KV
// entries. From the first different token on, entries are computed again. Then the drafter samples new draft tokens
// greedily. A draft is longer than the tokens that a worker group generates meanwhile, so a late draft is still useful.
// Worker groups verify draft tokens, so a draft changes how soon tokens come, never which tokens.
//
// Drafting uses only the time that scoring leaves: the scorer runs a drafting pass only if there is no prompt to score.
// Held prompts use at most a share of the KV blocks. Prompts are released when they exceed that share, and when a
// prompt to be scored lacks blocks. The prompt whose answer has not advanced for the longest time is released first.
//
// A prompt that was not scored can be held as well: its rows are then computed in drafting passes.
//
// Owned by the scorer, on its thread.
#pragma once

#include "engine/batch_builder.h"
#include "engine/prefix_cache.h"
#include "speculator/scorer.h"

struct drafter;

// Borrows all arguments until drafter_free(). Holds at most model->draft_blocks KV blocks.
struct drafter *drafter_create(const struct scorer_model *model, struct block_manager *blocks,
                               struct batch_builder *builder);
void drafter_free(struct drafter *d);

// A prompt to hold. The tokens of its look-ahead are the first draft tokens. The prompt replaces an earlier prompt of
// the same request.
struct held_prompt {
    uint64_t request, salt;
    const int32_t *tokens; // [n] copied
    int n;
    const int32_t *guesses; // [n_guesses] draft tokens; copied
    int n_guesses;
    int n_cached;    // number of KV entries; the last draft token has no entry
    int32_t *blocks; // [n_blocks] the drafter takes ownership of the array and of the references to the blocks
    int n_blocks, n_published;
    kv_chain chain; // chain of the published blocks
};
void drafter_hold(struct drafter *d, const struct held_prompt *prompt);

// See scorer_advance().
bool drafter_advance(struct drafter *d, const struct score_advance *advance);

bool drafter_release(struct drafter *d, uint64_t request); // false: the request is not held
bool drafter_release_oldest(struct drafter *d);            // false: no prompt is held
void drafter_clear(struct drafter *d);
void drafter_drop_link(struct drafter *d, int link); // releases the prompts of a link

bool drafter_busy(const struct drafter *d);   // true if a pass would add draft tokens
int drafter_prompts(const struct drafter *d); // number of held prompts
int drafter_blocks(const struct drafter *d);  // number of KV blocks of the held prompts

// Runs one pass, and calls `on_draft` for each prompt with new draft tokens.
enum status drafter_step(struct drafter *d, scorer_draft_fn *on_draft, void *context);
