// SPDX-License-Identifier: Apache-2.0
// Declares the structures shared by the scorer's files: scorer.c admits prompts and takes results, score_pass.c
// composes a pass.
#pragma once

#include "engine/batch_builder.h"
#include "engine/prefix_cache.h"
#include "speculator/drafter.h"
#include "speculator/score_pace.h"
#include "speculator/scorer.h"

// A prompt being scored: first the rows of the prompt are computed, then its look-ahead rows, one per pass.
struct prompt {
    uint64_t request, salt;
    int32_t *tokens; // [n] owned
    int n;
    int look_ahead; // limit of look-ahead steps
    int smoothing_window;
    struct select_policy policy; // `pinned` owned
    // policy.keep_rate will be chosen for this quality; 0: policy.keep_rate is given
    double quality;
    double min_keep_rate; // as in struct prefill
    bool is_covered;      // the calibration covers the prompt's options
    bool want_evidence;   // the result includes evidence
    bool want_importance;
    bool hold; // the prompt is held for drafting after its score
    int64_t added_us;

    int32_t *blocks; // [n_blocks] owned; NULL while the prompt waits
    int n_blocks;
    int n_published;           // the first n_published blocks are in the prefix cache
    kv_chain chain;            // hash chain of the prefix cache, up to the last published block
    struct prefix_match match; // result of the last lookup in the prefix cache
    int n_reused;              // prompt tokens found in the prefix cache
    int n_cached;              // number of KV entries
    int steps;                 // importance rows computed
    // [n_drafted] sampled tokens of the look-ahead; the last one is the token of the next row; owned
    int32_t *drafted;
    int n_drafted;
    float *importance;             // [n] owned; sum of the importance over the steps
    struct evidence_sums evidence; // sums over the steps
    bool ended;                    // the look-ahead reached an EOS
    uint64_t last_pass;            // number of the last pass in which the prompt had rows

    // In the pass being composed:
    int rows;
    // The pass computes an importance row of the prompt; the pass samples the token after that row.
    bool has_importance, has_next_token;
};

struct scorer {
    struct scorer_model model;
    scorer_result_fn on_result;
    void *context;
    struct block_manager *blocks;

    // [n] in order of arrival. The first n_running prompts have KV blocks, the later prompts wait.
    struct prompt **prompts;
    int n, n_running, capacity;
    uint64_t pass;
    struct scorer_pass last;
    struct score_pace pace;
    struct batch_builder builder; // batch of the current pass
    struct drafter *drafter;      // holds prompts after their scores
    scorer_draft_fn *on_draft;
};

static inline bool prompt_looks_ahead(const struct prompt *p)
{
    return p->steps > 0;
}

struct pass_plan {
    bool reads, looks_ahead; // the pass has rows of prompts that are being read; the pass has look-ahead rows
    struct prompt *longest;  // prompt that has waited longest for a row
    int window;              // smoothing window of the pass and of `longest`
};

// Chooses what the next pass contains. There must be a running prompt.
struct pass_plan score_pass_choose(const struct scorer *s);

// Adds rows of the running prompts to the pass and returns its batch. The scorer owns the batch.
const struct ragged_batch *score_pass_compose(struct scorer *s, const struct pass_plan *plan);
