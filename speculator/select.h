// SPDX-License-Identifier: Apache-2.0
// Selects the tokens to keep from the importance of every prompt token. It selects chunks or single tokens as
// SpecPrefill does (arXiv 2502.02789), or spans that follow the sentences and lines of the text. It adds tokens that an
// answer needs: BOS, the last prompt token, pinned ranges and a tail window. Pure functions; any thread.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "lib/text/generation.h"

// Bounds of a span, in tokens. A span is shorter where it meets tokens that are kept anyway, or where the budget ends.
enum { SPAN_TOKENS_MIN = 8, SPAN_TOKENS_MAX = 32 };

struct select_policy {
    double keep_rate; // (0, 1] share of the chunks (or tokens, if there are no chunks), rounded up
    int chunk_tokens; // 0: single tokens. CHUNK_TOKENS_AUTO: spans
    bool paper_exact; // keep only the best chunks and ignore the members below; not allowed with spans
    // Keep the first chunk (or token, with spans) within the budget, like the last one; set if the prompt begins with
    // BOS.
    bool keep_first;
    int tail_tokens; // number of last tokens to keep beyond the budget, 0..n
    // [n_pinned] ranges to keep beyond the budget, within 0..n-1, in any order; borrowed
    const struct token_range *pinned;
    int n_pinned;
    int budget_tokens;   // spans: the keep rate is a share of this many tokens; 0: of all tokens
    const uint8_t *ends; // spans: [n] not 0 where a sentence ends (sentences.h); NULL if not known; borrowed
};

// Sets the first three members. The other members are zero.
struct select_policy select_policy_of(const struct prefill *prefill);

// Keeps the chunks, or spans, with the highest mean of `importance` [n] (n at least 1, all finite). If means are equal,
// the earlier chunk or span is kept. The budget of chunks also pays for a chunk that is kept anyway, if it is among the
// best. The budget of spans pays only for tokens that are not kept anyway. Writes the kept tokens to `*kept_p` as
// ascending ranges with gaps between them, which the caller frees, and returns the number of ranges. O(n log n).
int select_kept(const float *importance, int n, const struct select_policy *policy, struct token_range **kept_p);
