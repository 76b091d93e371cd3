// SPDX-License-Identifier: Apache-2.0
// Token importance by its definition, in double precision over slow_llama.h: for tests of the speculator.
#pragma once

#include "tests/slow_llama.h"

// Of prompt tokens [n]: greedy look-ahead of up to `look_ahead` queries, each one's softmax over the prompt's keys
// averaged over `window`, the maximum over layers and heads, the mean over the steps. Writes importance [n] and the
// sampled tokens (as many as steps), returns the steps that counted: up to and with the one that sampled one of `eos`.
// `*gap_p` is the least distance between the best and the second logit where a token was chosen and used.
int slow_importance(const struct slow_llama *slow, const struct tiny_model *spec, const int32_t *prompt, int n,
                    int look_ahead, int window, const int32_t *eos, int n_eos, double *importance, int32_t *sampled,
                    double *gap_p);

// One head's part: probability [n] averaged over the window (zeros outside, divisor always the window) raises maximum
// [n].
void slow_raise(const double *probability, int n, int window, double *maximum);
