// SPDX-License-Identifier: Apache-2.0
// Selects the tokens to keep from the importance of every prompt token: the selection of SpecPrefill (arXiv
// 2502.02789), by chunks or single tokens, extended by tokens that an answer needs: BOS, the last prompt token, pinned
// ranges and a tail window. Pure functions; any thread.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "model/generation.h"

struct select_policy {
    double keep_rate; // (0, 1] of the chunks (of the tokens without chunks), rounded up
    int chunk_tokens; // 0: single tokens
    bool paper_exact; // keep the best chunks alone and ignore the members below
    bool keep_first;  // the prompt begins with BOS: its chunk is kept within the budget, like that of the last token
    int tail_tokens;  // last tokens kept beyond the budget; 0..n
    const struct token_range *pinned; // [n_pinned] kept beyond the budget, within 0..n-1, in any order; borrowed
    int n_pinned;
};

// Keeps the chunks with the highest mean of `importance` [n] (n at least 1, all finite); of equals the earlier chunk.
// Writes them to `*kept_p` as ascending ranges with gaps between them, to be freed by the caller, and returns the
// number of ranges. O(n log n).
int select_kept(const float *importance, int n, const struct select_policy *policy, struct token_range **kept_p);
