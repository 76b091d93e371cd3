// SPDX-License-Identifier: Apache-2.0
// From the logits of a sequence's last row to its next token.
//
// Order, as in vLLM: penalties (repetition, arXiv 1909.05858, over prompt and output; then frequency and presence over
// the output), end tokens masked until min_tokens, temperature, min-p (arXiv 2407.01082), top-k, top-p (nucleus, arXiv
// 1904.09751; over what top-k left), one draw. Temperature under 1e-5 is greedy, and then nothing after the mask
// counts.
//
// Deterministic: the draw is Philox4x32-10 (Salmon et al., SC'11) keyed by the seed and counted by the index of the
// output token, so the outcome depends on nothing but logits, parameters, history and index: a sequence that was
// preempted or moved to another group goes on as it would have. Equal logits count as ordered by token id, lower first.
//
// A NaN logit counts as -inf, so a broken token is never chosen; when no token is left, that is an error.
// A sampler is scratch memory for one vocabulary; one thread at a time. Nothing is allocated per token.
#pragma once

#include "kernels/ragged.h"
#include "model/generation.h"

struct sampler;

struct sampler *sampler_create(int vocab_size);
void sampler_free(struct sampler *s);

// What the choice depends on beside the logits. Borrowed during the call; all ids within the vocabulary.
struct sampler_context {
    const struct sampling *sampling; // has passed sampling_check()
    const int32_t *eos;              // the model's end-of-text tokens
    int n_eos;
    const int32_t *prompt; // [n_prompt] the whole prompt; only read for the repetition penalty
    int n_prompt;
    const int32_t *output; // [n_output] tokens generated so far; n_output is the index of the one to come
    int n_output;
};

// Log-probabilities are natural, of softmax over the model's own logits (before penalties and temperature), and
// never below -9999 so that they survive JSON. Filled only when sampling->logprobs is 0 or more.
struct sampled_token {
    int32_t token;
    float logprob;
    int n_top; // sampling->logprobs, or the vocabulary if that is smaller; likeliest first
    int32_t top_id[LOGPROBS_MAX];
    float top_logprob[LOGPROBS_MAX];
};

// logits [vocab_size]. STATUS_INTERNAL when no token can be chosen: all logits are NaN or -inf, or masked.
enum status sampler_pick(struct sampler *s, const float *logits, const struct sampler_context *context,
                         struct sampled_token *token_p);

// The same choice for the backend to make, where the logits are (kernels/ragged.h). Whether it can: without penalties,
// log-probabilities and masked tokens, which depend on more than the logits. The token may differ from sampler_pick()'s
// where a sum of weights comes within rounding (a few 1e-9 of all) of what the draw or top-p compares it with.
bool sampler_draws(const struct sampler_context *context);
struct row_sampling sampler_row_sampling(const struct sampler_context *context);
// What sampler_pick() fails with when no token can be chosen.
enum status sampler_fail_none(void);

// Whether `token` ends the text: a stop id, or an end-of-text token that is not ignored.
bool sampler_stops(const struct sampling *sampling, const int32_t *eos, int n_eos, int32_t token);

// The draw for output token `index`: uniform in [0, 1), 53 bits.
double sampler_uniform(uint64_t seed, uint64_t index);

// Philox4x32-10 itself, for whoever checks it against the published vectors.
void sampler_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]);
