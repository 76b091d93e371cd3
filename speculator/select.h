// SPDX-License-Identifier: Apache-2.0
// From the importance of every prompt token to the ranges of tokens to keep: the selection of SpecPrefill
// (arXiv 2502.02789), chunk by chunk or token by token, and on top of it what keeps a real answer whole: BOS, the last
// prompt token, pinned ranges and a tail window. Pure functions; any thread.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "model/generation.h"

struct select_policy {
    double keep_rate; // (0, 1] of the chunks (of the tokens without chunks), rounded up
    int chunk_tokens; // 0: single tokens
    bool paper_exact; // what follows counts for nothing: the best chunks alone
    bool keep_first;  // the prompt begins with BOS: its chunk is kept, within the budget, as the last token's always is
    int tail_tokens;  // so many last tokens are kept beyond the budget; 0..n
    const struct token_range *pinned; // [n_pinned] kept beyond the budget, within 0..n-1, in any order; borrowed
    int n_pinned;
};

// Keeps the chunks of `importance` [n], n at least 1, all finite, that score best by mean (ties: the earlier). Writes
// them as ascending ranges that do not touch to `*kept_p`, the caller's to free, and returns how many ranges there are.
// O(n log n).
int select_kept(const float *importance, int n, const struct select_policy *policy, struct token_range **kept_p);
