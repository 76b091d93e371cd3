// SPDX-License-Identifier: Apache-2.0
// What a request may ask for: sampling and speculative-prefill parameters, their defaults and their limits, in one
// place for the command line, the router and the worker. No tensors here.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

// A run of prompt tokens by index, both ends included.
struct token_range {
    int32_t first, last;
};

enum { LOGPROBS_MAX = 20, STOP_STRINGS_MAX = 16, STOP_STRING_BYTES_MAX = 1024, STOP_IDS_MAX = 64, LOOK_AHEAD_MAX = 64 };

struct sampling {
    int max_tokens;     // at least 1; 0 means "the default", resolved by sampling_resolve()
    int min_tokens;     // neither EOS nor a stop token or string ends the text before
    double temperature; // 0 is greedy
    int top_k;          // 0 is off
    double top_p;       // (0, 1]
    double min_p;       // [0, 1]
    uint64_t seed;
    double repetition_penalty; // over 0, 1 is off; counts prompt and output (arXiv 1909.05858)
    double presence_penalty;   // -2..2, output only
    double frequency_penalty;  // -2..2, output only
    int32_t stop_ids[STOP_IDS_MAX];
    int n_stop_ids;
    bool ignore_eos;
    int logprobs; // -1 is none; 0..LOGPROBS_MAX likeliest alternatives beside the token's own
};

enum prefill_mode { PREFILL_AUTO, PREFILL_ON, PREFILL_OFF };

struct prefill {
    enum prefill_mode mode;
    double keep_rate; // (0, 1]
    int look_ahead;   // 1..LOOK_AHEAD_MAX
    int chunk_tokens; // 0: single tokens
    int pool_window;  // odd, at least 1
    bool paper_exact; // nothing forced, pinned or added to the paper's selection
};

void sampling_defaults(struct sampling *s);
void prefill_defaults(struct prefill *p); // keep 0.3, look-ahead 8, chunk 32, window 13

// STATUS_INVALID with a sentence naming the field and what is allowed.
enum status sampling_check(const struct sampling *s, int vocab_size);
enum status prefill_check(const struct prefill *p);

// Settles max_tokens for a prompt of `prompt_tokens`: the default is 256 or the rest of the context, whichever is
// less. STATUS_OUT_OF_RANGE when the prompt leaves no room for one token, or less room than max_tokens asks for.
enum status sampling_resolve(struct sampling *s, int prompt_tokens, int context_tokens);

const char *prefill_mode_name(enum prefill_mode mode); // "auto", "on", "off"

// The keep budget: chunks to keep of a prompt's n_chunks, at least one.
int prefill_keep_budget(int n_chunks, double keep_rate);

// The tail window of a prompt: its last tokens that are kept beyond the budget, at most a quarter of it.
int prefill_tail_tokens(int tail_tokens, int prompt_tokens);
