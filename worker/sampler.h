// SPDX-License-Identifier: Apache-2.0
// Samples the next token of a sequence from the logits of its last row.
//
// The stages follow vLLM's order: the mask of a grammar, the logit bias, penalties (repetition, arXiv 1909.05858, over
// prompt and output; then frequency and presence over the output), masking of end tokens until min_tokens, temperature,
// min-p (arXiv 2407.01082), top-k, top-p (nucleus, arXiv 1904.09751; over the tokens that top-k keeps), and one random
// number. A temperature under 1e-5 is greedy: the token with the largest logit is chosen after the masking of end
// tokens.
//
// Deterministic: the random number is Philox4x32-10 (Salmon et al., SC'11) keyed by the seed, with the index of the
// output token as the counter. So the token depends only on logits, parameters, history and index. A sequence that was
// preempted, or replayed on another group, continues with the same tokens. Among equal logits the lower token id ranks
// first.
//
// A NaN logit counts as -inf, so its token is never sampled. It is an error if no token is left. A sampler is scratch
// memory for one vocabulary. One thread at a time may use it. Nothing is allocated per token.
#pragma once

#include "kernels/ragged.h"
#include "lib/text/generation.h"

struct sampler;

struct sampler *sampler_create(int vocab_size);
void sampler_free(struct sampler *s);

// The inputs of sampling other than the logits. Borrowed during the call; all ids are within the vocabulary.
struct sampler_context {
    const struct sampling *sampling; // has passed sampling_check()
    const int32_t *eos;              // the model's end-of-text tokens
    int n_eos;
    const int32_t *prompt; // [n_prompt] the whole prompt; only read for the repetition penalty
    int n_prompt;
    const int32_t *output; // [n_output] tokens generated so far; n_output is the index of the next token
    int n_output;
    const uint32_t *allowed; // mask of the tokens that may come next, see lib/grammar/grammar.h; NULL: all
};

// Log-probabilities are natural logarithms of the softmax over the model's logits, before the grammar, logit bias,
// penalties and temperature. They are at least -9999, since JSON has no infinity. They are set only if
// sampling->logprobs is 0 or more.
struct sampled_token {
    int32_t token;
    float logprob;
    int rank; // rank of a prompt token, 1 for the likeliest token; 0 for a sampled token
    // Number of tokens in top_id, likeliest first: sampling->logprobs, or the size of the vocabulary if it is smaller.
    int n_top;
    int32_t top_id[LOGPROBS_MAX];
    float top_logprob[LOGPROBS_MAX];
};

// Samples a token from logits [vocab_size]. Returns STATUS_INTERNAL if no token can be sampled, because all logits are
// NaN, -inf or masked.
enum status sampler_sample_token(struct sampler *s, const float *logits, const struct sampler_context *context,
                                 struct sampled_token *token_p);

// Computes the log-probabilities of a given token and of the n likeliest tokens. They are the same bits as after
// sampling the token.
void sampler_rate_token(struct sampler *s, const float *logits, int32_t token, int n, struct sampled_token *token_p);

// Returns true if a backend can sample the token where the logits are (kernels/ragged.h). The backend cannot sample
// with grammars, penalties, logit bias, log-probabilities or masked tokens: they need more than the logits. The
// backend's token may differ from the token of sampler_sample_token() because of rounding. That happens only if a sum
// of weights differs from the bound of the random number or of top-p by at most a few 1e-9 of the total.
bool sampler_backend_can_sample(const struct sampler_context *context);
// Returns the parameters with which a backend samples the token.
struct row_sampling sampler_row_sampling(const struct sampler_context *context);
enum status sampler_fail_no_token(void); // fails as sampler_sample_token() does when no token can be sampled

// Returns true if `token` ends the text: a stop id, or an end-of-text token that is not ignored.
bool sampler_stops(const struct sampling *sampling, const int32_t *eos, int n_eos, int32_t token);

// Returns the random number of output token `index`: uniform in [0, 1), 53 bits.
double sampler_uniform(uint64_t seed, uint64_t index);

// Philox4x32-10, public for the test against the published vectors.
void sampler_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]);
