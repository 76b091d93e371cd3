// SPDX-License-Identifier: Apache-2.0
// Scores prompts with a small model: how important each prompt token is to the last prompt token and to the next few
// tokens that the model generates (SpecPrefill, arXiv 2502.02789), and which tokens to keep.
//
// It may decide which prompt tokens the main model does not prefill. The kept set must not depend on other prompts: it
// is a property of (prompt, model, policy), also where the keep rate is chosen for a quality. Other prompts in its
// passes, chunks and the token budget change no bit of it, as far as the backend promises (kernels/backend.h).
//
// Passes are composed by iteration, as in continuous batching: a new prompt joins at the next pass. A pass has the next
// look-ahead row of every prompt whose own rows are computed, or rows of prompts that are read, or both (score_pace.h).
// Prompts are read in order of arrival; beside a prompt that the pass cannot complete, half of the pass goes to shorter
// ones. Look-ahead is greedy. Rows found in the prefix cache are not computed again: importance needs the prompt's keys
// and the rows that attend to them, which are the last prompt row and the look-ahead rows. An EOS ends the look-ahead:
// the step that sampled it counts, and the token itself is never computed, like the last sampled token. A prompt
// allocates the KV blocks of all its entries before its first row and releases them with its result, so a prompt that
// has begun never waits for blocks.
//
// A scored prompt can be held on for drafts of its answer (drafter.h), in the time that scoring leaves.
//
// One thread owns a scorer. Results arrive through a callback during scorer_add() and scorer_step() and are valid
// during the callback, which must not call the scorer; so do drafts during scorer_step().
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "engine/model/model.h"
#include "lib/base/status.h"
#include "lib/text/generation.h"
#include "speculator/calibration.h"
#include "speculator/select.h"
#include "speculator/sentences.h"

// The model and the function that runs it: model_forward() for one rank, engine_forward() for a group.
struct scorer_model {
    const struct model_config *config; // borrowed until scorer_free()
    int token_budget;                  // largest number of rows of one pass
    int max_seqs;                      // largest number of prompts in one pass
    int context_tokens;                // largest number of KV entries of one sequence
    int kv_blocks;
    int draft_blocks;                       // of them, for prompts that are held for drafts
    bool samples;                           // the backend samples tokens, see model_samples()
    const struct sentence_table *sentences; // borrowed until scorer_free(); NULL: the ends of sentences are not known
    bool prefix_cache; // reuse full KV blocks of prompts with the same first tokens; changes no score
    const struct calibration *calibration; // NULL: none, and a quality keeps every token; borrowed until scorer_free()
    enum status (*forward)(void *context, const struct ragged_batch *batch, struct forward_result *result);
    void *context;
};

// One prompt to score. Copied.
struct score_item {
    uint64_t request;
    const int32_t *tokens; // [n]
    int n;
    struct prefill prefill;           // keep_rate or quality, look_ahead, chunk_tokens, pool_window, paper_exact
    const struct token_range *pinned; // [n_pinned]
    int n_pinned;
    int tail_tokens;
    int budget_tokens; // as in struct select_policy; unused with a quality
    bool want_importance, want_evidence;
    bool hold;         // for drafts, after its score; needs scorer_on_draft()
    uint64_t salt;     // of the prefix cache: blocks are shared among equal salts
    const char *trace; // trace id for the log; NULL or "": none
};

struct score_result {
    uint64_t request;
    const char *error; // NULL, or why the prompt was not scored: keep all its tokens. Nothing below is set then
    const struct token_range *kept; // [n_kept] ascending, with gaps between them
    int n_kept;
    double keep_rate; // that chose them
    enum rate_reason reason;
    const float *importance; // [n]; NULL unless wanted
    int n;
    const struct evidence *evidence; // NULL unless wanted
    int steps;                       // look-ahead steps that were computed
    const int32_t *look_ahead;       // [n_look_ahead] the tokens of the look-ahead, without one that ends the text
    int n_look_ahead;
    int cached_tokens; // prompt tokens found in the prefix cache
    int64_t score_us;  // since scorer_add
};

typedef void (*scorer_result_fn)(void *context, const struct score_result *result);

enum { DRAFT_AHEAD_MAX = 64 }; // guesses behind the tokens that are known

// Tokens of an answer, from output token `from` on, and how many tokens are to be guessed behind them. With a prompt:
// one that was not scored, and is held from now on if it is not yet.
struct score_advance {
    uint64_t request;
    int from;
    const int32_t *tokens; // [n]
    int n, ahead;
    const int32_t *prompt; // [n_prompt]
    int n_prompt;
    uint64_t salt; // of the prompt
};

// Guessed tokens of an answer, the first of them output token `from`.
struct score_draft {
    uint64_t request;
    int from;
    const int32_t *tokens; // [n]
    int n;
};

typedef void scorer_draft_fn(void *context, const struct score_draft *draft);

struct scorer;

struct scorer *scorer_create(const struct scorer_model *model, scorer_result_fn on_result, void *context);
void scorer_free(struct scorer *s); // NULL is allowed; drops unfinished prompts

// Checks and queues the item, or reports its error at once. The look-ahead is shortened to the room left in the
// context: a prompt that fills the context is scored by its last token alone.
void scorer_add(struct scorer *s, const struct score_item *item);

// Prompts may be held from now on; drafts go to `on_draft`, with the context of results. NULL: none is held any more.
void scorer_on_draft(struct scorer *s, scorer_draft_fn *on_draft);

// The answer to a held prompt has advanced. Tokens that are known already may be repeated. False: the prompt is not
// held, or not any more.
bool scorer_advance(struct scorer *s, const struct score_advance *advance);
bool scorer_drafts(const struct scorer *s); // whether a step without prompts to score would guess tokens

// Drops the request without a result and releases its KV blocks, also if it is held. Unknown requests are ignored.
void scorer_cancel(struct scorer *s, uint64_t request);
void scorer_clear(struct scorer *s); // drops all requests

// One pass: of prompts to score if there are any, else of drafts; nothing without work. After a failure the model and
// the scorer are unusable.
enum status scorer_step(struct scorer *s);

// Size and time of the last pass; zeros when the last step had no work.
struct scorer_pass {
    int rows;
    int64_t pairs; // attention pairs
    int64_t us;
};
struct scorer_pass scorer_last_pass(const struct scorer *s);

struct scorer_load {
    int running, waiting; // prompts with KV blocks, and without
    int kv_blocks_free;
    int held_prompts; // for drafts
    int draft_blocks; // their KV blocks
};
struct scorer_load scorer_get_load(const struct scorer *s);
