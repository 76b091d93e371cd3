// SPDX-License-Identifier: Apache-2.0
// Perplexity: how well a model predicts a text. It is e to the mean of -ln p over the tokens (nats per token), and the
// most sensitive measure of the quality that a dtype costs.
//
// In a text of at most `window` tokens, every token but the first is predicted from all tokens before it. A longer text
// is read in windows of `window` tokens that start `stride` tokens apart. Each token counts once, in the first window
// that contains it, so after the first window it has at least window - stride tokens before it.
#pragma once

#include "engine/engine.h"

struct perplexity {
    double nats; // sum over tokens
    int64_t tokens;
    float *each; // [n] also receives -ln p of each counted token of the text; NULL: not wanted
};

struct perplexity_limits {
    int rows; // rows of one pass; the engine's model must return logits for all rows of a pass
    int window, stride;
};

// Adds the text's tokens [first, n) to *sum. `first` is 1 or more; earlier tokens are context only. The engine's KV
// cache must hold a window; it is overwritten.
enum status perplexity_add(struct engine *engine, const struct perplexity_limits *limits, const int32_t *ids, int n,
                           int first, struct perplexity *sum);

// Returns -ln of the probability of `token` under softmax(logits [n]).
double perplexity_nats(const float *logits, int n, int32_t token);
