// SPDX-License-Identifier: Apache-2.0
// How well a model foresees a text: the mean of -ln p over its tokens ("nats a token"), and e to that, the perplexity.
// What a dtype costs in quality shows here before it shows anywhere else.
//
// A text of at most `window` tokens is read whole, and every token but the first is foreseen from all before it. A
// longer one is read in windows of `window` tokens, `stride` apart, of each of which the tokens count that no earlier
// window had: so each token counts once, seen with at least window - stride tokens before it.
#pragma once

#include "engine/engine.h"

struct perplexity {
    double nats; // sum over tokens
    int64_t tokens;
};

struct perplexity_limits {
    int rows; // of one pass: the engine's model must give logits for as many
    int window, stride;
};

// Adds the text's tokens [first, n) to *sum, first being 1 or more: what stands before them is only read. The engine's
// KV cache must hold a window; it is overwritten.
enum status perplexity_add(struct engine *engine, const struct perplexity_limits *limits, const int32_t *ids, int n,
                           int first, struct perplexity *sum);

// -ln of the probability that softmax(logits [n]) gives to `token`.
double perplexity_nats(const float *logits, int n, int32_t token);
