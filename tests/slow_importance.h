// SPDX-License-Identifier: Apache-2.0
// Token importance by definition, in double precision with slow_llama.h, for tests of the speculator.
#pragma once

#include "tests/slow_llama.h"

// Computes the importance [n] of the prompt tokens: for up to `look_ahead` greedy steps, the softmax over the prompt's
// keys averaged over `window`, its maximum over layers and heads, and the mean over the steps. Writes one sampled token
// per step. Returns the number of steps, which end after the step that sampled one of `eos`. `*gap_p` is the smallest
// distance between the best and the second logit of the used tokens.
int slow_importance(const struct slow_llama *slow, const struct tiny_model *spec, const int32_t *prompt, int n,
                    int look_ahead, int window, const int32_t *eos, int n_eos, double *importance, int32_t *sampled,
                    double *gap_p);

// Raises maximum [n] to one head's probability [n], averaged over the window. Values outside the prompt count as zeros.
void slow_raise(const double *probability, int n, int window, double *maximum);
