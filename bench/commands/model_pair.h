// SPDX-License-Identifier: Apache-2.0
// A main model and a speculator in this process, driven as a worker group and a speculator of one rank drive them: what
// becomes of a prompt when only some of its tokens are kept, whoever chose them. One prompt at a time, one thread.
#pragma once

#include "model/generation.h"
#include "model/model.h"

struct pair;

struct pair_options {
    const char *main, *spec; // directories; with `dummy` config.json files, run with random weights
    bool dummy;
    const char *backend, *dtype;
    int threads;
    int token_budget;                       // rows of one pass
    int max_prompt, max_output, look_ahead; // the most of each
};

enum status pair_open(const struct pair_options *options, struct pair **pair_p);
void pair_close(struct pair *p); // NULL is fine
const struct model_config *pair_main(const struct pair *p);
const struct model_config *pair_spec(const struct pair *p);

// The importance of every token of the prompt [n], into importance [n], and how long that took.
enum status pair_score(struct pair *p, const int32_t *tokens, int n, const struct prefill *prefill, float *importance,
                       int64_t *score_us_p);

struct pair_answer {
    int32_t *tokens; // the caller's, [max_tokens]
    int n;
    bool stopped; // by an end of text, which is not among them
    int64_t prefill_us;
};

// Prefills the kept ranges of the prompt (n_kept 0: all of it), then generates greedily up to max_tokens.
enum status pair_generate(struct pair *p, const int32_t *tokens, int n, const struct token_range *kept, int n_kept,
                          int max_tokens, struct pair_answer *answer);
