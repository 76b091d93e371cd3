// SPDX-License-Identifier: Apache-2.0
// Scores prompts with a small model: computes how important each prompt token is to the last prompt token and to the
// next few tokens that the model generates (SpecPrefill, arXiv 2502.02789). Selects the tokens to keep.
//
// The kept tokens depend only on prompt, model and policy, even if the request gives a quality instead of a keep rate.
// Other prompts in the passes, the division into chunks and the token budget change no bit of the result, as far as the
// backend promises this (kernels/backend.h).
//
// Passes are composed by iteration, as in continuous batching: a new prompt joins at the next pass. A prompt is
// read first: its rows are computed. Then it is in look-ahead: it generates tokens, one row each. A pass has the next
// row of every prompt in look-ahead, or rows of prompts that are read, or both (score_pace.h). Prompts are read
// in order of arrival. If a pass cannot complete a prompt, half of the pass goes to shorter prompts. Look-ahead is
// greedy. An EOS ends the look-ahead; score_result.steps includes the step that sampled it. No row is computed for the
// EOS, nor for the last sampled token of any look-ahead. Rows found in the prefix cache are not computed again. The
// last prompt row and the look-ahead rows are the importance rows. Importance is their attention to the prompt's keys.
// A prompt allocates the KV blocks of all its entries before its first row and releases them with its result. So a
// prompt that has started never waits for blocks.
//
// The KV entries of a scored prompt can be held. While no prompt waits for a score, the small model then drafts the
// next tokens of the prompt's answer (drafter.h).
//
// One thread owns a scorer. Results arrive through a callback during scorer_add() and scorer_step(), and drafts through
// another callback during scorer_step(). Results and drafts are valid during the callback. The callback must not call
// the scorer.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "engine/link_id.h"
#include "engine/model/model.h"
#include "lib/base/status.h"
#include "lib/text/generation.h"
#include "speculator/calibration.h"
#include "speculator/select.h"
#include "speculator/sentences.h"

// The model, and the function that runs it: model_forward() for one rank, engine_forward() for a group.
struct scorer_model {
    const struct model_config *config; // borrowed until scorer_free()
    int token_budget;                  // largest number of rows of one pass
    int max_seqs;                      // largest number of prompts in one pass
    int context_tokens;                // largest number of KV entries of one sequence
    int kv_blocks;
    int draft_blocks;                       // limit of KV blocks of held prompts
    bool samples;                           // the backend samples tokens, see model_samples()
    const struct sentence_table *sentences; // borrowed until scorer_free(); NULL if the ends of sentences are not known
    bool prefix_cache; // reuse full KV blocks of prompts with the same first tokens; this changes no score
    // Borrowed until scorer_free(). If it is NULL, requests with a quality keep every token.
    const struct calibration *calibration;
    enum status (*forward)(void *context, const struct ragged_batch *batch, struct forward_result *result);
    void *context;
};

// A prompt to score. Copied.
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
    bool hold;         // hold the prompt for drafting after its score; needs scorer_on_draft()
    uint64_t salt;     // salt of the prefix cache: only equal salts share blocks
    const char *trace; // trace id for the log; NULL or "" if there is none
};

struct score_result {
    uint64_t request;
    // Reason why the prompt was not scored, or NULL. If it is set, the members below are not set, and all tokens must
    // be kept.
    const char *error;
    const struct token_range *kept; // [n_kept] ascending, with gaps between them
    int n_kept;
    double keep_rate; // keep rate at which the tokens were selected
    enum rate_reason reason;
    const float *importance; // [n]; NULL unless wanted
    int n;
    const struct evidence *evidence; // NULL unless wanted
    int steps;                       // number of look-ahead steps that were computed
    const int32_t *look_ahead;       // [n_look_ahead] tokens of the look-ahead, without a token that ends the text
    int n_look_ahead;
    int cached_tokens; // prompt tokens found in the prefix cache
    int64_t score_us;  // time since scorer_add()
};

typedef void (*scorer_result_fn)(void *context, const struct score_result *result);

enum { DRAFT_AHEAD_MAX = 64 }; // limit of draft tokens in one draft

// Generated tokens of an answer from output token `from` on. `ahead` is the number of draft tokens that are wanted
// after them. A prompt that was not scored is part of the advance and is held from the first such advance on.
struct score_advance {
    uint64_t request;
    int from;
    const int32_t *tokens; // [n]
    int n, ahead;
    const int32_t *prompt; // [n_prompt]
    int n_prompt;
    uint64_t salt; // salt of the prompt
};

// Draft tokens of an answer. The first draft token is output token `from`.
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

// Checks and queues the item, or reports its error immediately. Shortens the look-ahead to the remaining room in the
// context: a prompt that fills the context has no look-ahead, and its last row is the only importance row.
void scorer_add(struct scorer *s, const struct score_item *item);

// Allows prompts to be held from now on. Drafts go to `on_draft`, with the same context as results. If `on_draft` is
// NULL, held prompts are released, and no prompt is held from now on.
void scorer_on_draft(struct scorer *s, scorer_draft_fn *on_draft);

// Adds generated tokens to the answer of a held prompt. Known tokens may be repeated before the new tokens. Returns
// false if the prompt is not held. Releases the prompt and returns false if no token is new, if a token is invalid, or
// if tokens before `from` are missing.
bool scorer_advance(struct scorer *s, const struct score_advance *advance);
bool scorer_drafts(const struct scorer *s); // true if there are drafts to compute

// Drops the request without a result and releases its KV blocks. A held prompt is released, too. Ignores unknown
// requests.
void scorer_cancel(struct scorer *s, uint64_t request);
void scorer_drop_link(struct scorer *s, int link); // drops the requests of a link, see engine/link_id.h

// Runs one scoring pass if there are prompts to score, else one drafting pass. Runs no pass if there is no work. After
// a failure the model and the scorer are unusable.
enum status scorer_step(struct scorer *s);

// Size and time of the last pass; zeros if the last step had no work.
struct scorer_pass {
    int rows;
    int64_t pairs; // attention pairs
    int64_t us;
};
struct scorer_pass scorer_last_pass(const struct scorer *s);

struct scorer_load {
    int running, waiting; // numbers of prompts with and without KV blocks
    int kv_blocks_free;
    int held_prompts; // prompts held for drafting
    int draft_blocks; // KV blocks of the held prompts
};
struct scorer_load scorer_get_load(const struct scorer *s);
// Counts the prompts of each link: `links` has NODE_LINKS_MAX entries.
void scorer_count_links(const struct scorer *s, struct link_load *links);
