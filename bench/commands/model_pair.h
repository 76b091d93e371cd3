// SPDX-License-Identifier: Apache-2.0
// A main model and a speculator's model in this process, run with the worker's scheduler and the speculator's scorer on
// one rank. The caller chooses which prompt tokens to keep. One prompt at a time, one thread.
#pragma once

#include "model/generation.h"
#include "model/model.h"

struct model_pair;

struct model_pair_options {
    const char *main, *spec; // model directories; with `dummy` config.json files, with random weights
    bool dummy;
    const char *backend, *dtype;
    int threads;
    int token_budget;                       // rows of one pass
    int max_prompt, max_output, look_ahead; // upper limits, in tokens
};

enum status model_pair_open(const struct model_pair_options *options, struct model_pair **pair_p);
void model_pair_close(struct model_pair *p); // may be NULL
const struct model_config *model_pair_main(const struct model_pair *p);
const struct model_config *model_pair_spec(const struct model_pair *p);

// Scores the prompt [n] into importance [n]; *score_us_p becomes the time it took.
enum status model_pair_score(struct model_pair *p, const int32_t *tokens, int n, const struct prefill *prefill,
                             float *importance, int64_t *score_us_p);

struct model_pair_answer {
    int32_t *tokens; // the caller's, [max_tokens]
    int n;
    bool stopped; // by an end-of-sequence token, which is not in `tokens`
    int64_t prefill_us;
};

// Prefills the kept ranges of the prompt (n_kept 0: the whole prompt), then generates greedily up to max_tokens.
enum status model_pair_generate(struct model_pair *p, const int32_t *tokens, int n, const struct token_range *kept,
                                int n_kept, int max_tokens, struct model_pair_answer *answer);
