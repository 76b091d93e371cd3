// SPDX-License-Identifier: Apache-2.0
// Selects the tokens to keep from the importance of every prompt token. Selects chunks or single tokens like
// SpecPrefill (arXiv 2502.02789), or spans that follow the sentences and lines of the text. Adds tokens that an answer
// needs: BOS, the last prompt token, pinned ranges and a tail window. Pure functions; any thread.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "lib/text/generation.h"

// Bounds of a span, in tokens. A span may be shorter next to tokens that are kept anyway, or where the budget ends.
enum { SPAN_TOKENS_MIN = 8, SPAN_TOKENS_MAX = 32 };

struct select_policy {
    double keep_rate; // (0, 1] share of the chunks to keep, rounded up; without chunks, share of the tokens
    int chunk_tokens; // 0: single tokens. CHUNK_TOKENS_AUTO: spans
    bool paper_exact; // keep only the best chunks and ignore the members from here on; not allowed with spans
    // Keep the first chunk (with spans, the first token), which then counts in the budget. Set if the prompt begins
    // with BOS. The last chunk or token is always kept and always counts.
    bool keep_first;
    int tail_tokens; // number of last tokens to keep in addition to the budget, 0..n
    // [n_pinned] ranges to keep in addition to the budget, within 0..n-1, in any order; borrowed
    const struct token_range *pinned;
    int n_pinned;
    int budget_tokens;   // spans only: number of tokens to which the keep rate applies; 0: all tokens
    const uint8_t *ends; // spans only: [n] not 0 where a sentence ends (sentences.h); NULL if not known; borrowed
};

// Sets the first three members. The other members are zero.
struct select_policy select_policy_of(const struct prefill *prefill);

// Keeps the chunks, or spans, with the highest mean of `importance` [n] (n at least 1, all finite). If means are equal,
// the earlier chunk or span is kept. A chunk that is kept anyway still counts in the budget if it is among the best
// chunks. With spans, tokens that are kept anyway do not count in the budget. Writes the kept tokens to *kept_p as
// ascending ranges with gaps between them, and returns the number of ranges. The caller frees *kept_p. O(n log n).
int select_kept(const float *importance, int n, const struct select_policy *policy, struct token_range **kept_p);
