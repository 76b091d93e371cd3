// SPDX-License-Identifier: Apache-2.0
// Runs a main model and a speculator's model in this process, with the worker's scheduler and the speculator's scorer,
// on one rank. The caller chooses which prompt tokens to keep. One thread. Prompts of one call are computed together,
// in passes that are packed as in a cluster; this changes no result.
#pragma once

#include "engine/model/model.h"
#include "lib/text/generation.h"
#include "speculator/evidence.h"

struct model_pair;

struct model_pair_options {
    const char *main, *spec; // model directories; with `dummy`, config.json files for random weights
    bool dummy;
    const char *backend, *dtype;
    int threads;
    int token_budget;                       // rows of one pass
    int max_seqs;                           // sequences of one pass
    int max_prompt, max_output, look_ahead; // upper limits, in tokens
    int kv_tokens;                          // KV entries of each model; 0: enough for sequences of a usual length
};

enum status model_pair_open(const struct model_pair_options *options, struct model_pair **pair_p);
void model_pair_close(struct model_pair *p); // may be NULL
const struct model_config *model_pair_main(const struct model_pair *p);
const struct model_config *model_pair_spec(const struct model_pair *p);
// Return the fingerprints of the opened models.
uint64_t model_pair_main_fingerprint(const struct model_pair *p);
uint64_t model_pair_spec_fingerprint(const struct model_pair *p);
uint64_t model_pair_spec_tokenizer(const struct model_pair *p); // 0 with random weights

struct model_pair_prompt {
    const int32_t *tokens; // [n]
    int n;
    int tail_tokens;                  // the tail window, which the evidence leaves out
    const struct token_range *pinned; // [n_pinned] kept in addition to the budget; borrowed
    int n_pinned;
    float *importance; // [n] result, in the caller's memory
    // [prefill->look_ahead] result, in the caller's memory: the first tokens of the greedy answer, without its
    // end-of-text token. May be NULL.
    int32_t *look_ahead;
    int n_look_ahead;
    struct evidence evidence; // evidence.ended: the greedy answer ended within the look-ahead
    int64_t score_us;         // time from the call to the result
};

// Scores the prompts with the speculator, or with the main model if `by_main` is true.
enum status model_pair_score(struct model_pair *p, bool by_main, const struct prefill *prefill,
                             struct model_pair_prompt *prompts, int n_prompts);

// Selects the kept tokens of a scored prompt at a keep rate, with the chunks of `prefill`. Returns the number of
// ranges. The caller frees *kept_p.
int model_pair_select(const struct model_pair *p, const struct model_pair_prompt *prompt, const struct prefill *prefill,
                      double keep_rate, struct token_range **kept_p);

struct model_pair_request {
    const int32_t *tokens; // [n] the whole prompt
    int n;
    const struct token_range *kept; // [n_kept] ranges to prefill; n_kept 0: the whole prompt
    int n_kept;
    int max_tokens;
    int32_t *answer; // [max_tokens] result, in the caller's memory
    int n_answer;
    bool stopped;       // an end-of-text token ended the answer; the token is not in `answer`
    int64_t prefill_us; // time from the call to the first token
};

// Prefills the kept tokens of each prompt, then generates greedily.
enum status model_pair_generate(struct model_pair *p, struct model_pair_request *requests, int n_requests);
