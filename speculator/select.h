// SPDX-License-Identifier: Apache-2.0
// Selects the tokens to keep from the importance of every prompt token: the selection of SpecPrefill (arXiv
// 2502.02789), by chunks or single tokens, or spans that follow the sentences and lines of the text. Both are extended
// by tokens that an answer needs: BOS, the last prompt token, pinned ranges and a tail window. Pure functions; any
// thread.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "lib/text/generation.h"

// Bounds of a span, in tokens. A span is shorter where it borders on tokens that are kept anyway, or where the budget
// ends.
enum { SPAN_TOKENS_MIN = 8, SPAN_TOKENS_MAX = 32 };

struct select_policy {
    double keep_rate; // (0, 1] of the chunks (of the tokens without chunks), rounded up
    int chunk_tokens; // 0: single tokens; CHUNK_TOKENS_AUTO: spans
    bool paper_exact; // keep the best chunks alone and ignore the members below; not with spans
    bool keep_first;  // the prompt begins with BOS: its chunk is kept within the budget, like that of the last token
    int tail_tokens;  // last tokens kept beyond the budget; 0..n
    const struct token_range *pinned; // [n_pinned] kept beyond the budget, within 0..n-1, in any order; borrowed
    int n_pinned;
    int budget_tokens;   // spans: the keep rate is the share of so many tokens; 0: of all
    const uint8_t *ends; // spans: [n] not 0 where a sentence ends (sentences.h); NULL: not known; borrowed
};

// The first three members; the others are zero.
struct select_policy select_policy_of(const struct prefill *prefill);

// Keeps the chunks, or spans, with the highest mean of `importance` [n] (n at least 1, all finite); of equals the
// earlier one. The budget of chunks counts those that are kept beyond it, too; the budget of spans is tokens that
// nothing else keeps. Writes the kept tokens to `*kept_p` as ascending ranges with gaps between them, to be freed by
// the caller, and returns the number of ranges. O(n log n).
int select_kept(const float *importance, int n, const struct select_policy *policy, struct token_range **kept_p);
