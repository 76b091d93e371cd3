// SPDX-License-Identifier: Apache-2.0
// A slow selection of spans for tests, without sorting: a span gets the budget that is left after all better spans.
#pragma once

#include <stdbool.h>
#include <stdlib.h>

#include "speculator/select.h"

// Returns the end of the sentence, or of several short ones, from `first` on.
static inline int slow_sentence_end(const uint8_t *ends, int first, int run_end)
{
    for (int j = first; ends && j < run_end; j++)
        if (ends[j] && j - first + 1 >= SPAN_TOKENS_MIN) return j + 1;
    return run_end;
}

// Returns the first place where the sentence [first, end) is divided.
static inline int slow_span_end(const float *importance, int first, int end)
{
    int cut = end;
    for (int j = end - SPAN_TOKENS_MIN; end - first > SPAN_TOKENS_MAX && j > first; j--) {
        int size = j - first;
        if (size < SPAN_TOKENS_MAX / 2 || size > SPAN_TOKENS_MAX) continue;
        if (cut == end || importance[j] <= importance[cut]) cut = j;
    }
    return cut;
}

struct slow_span {
    int first, end;
    double score;
};

static inline int slow_spans(const float *importance, const uint8_t *ends, int n, const bool *kept,
                             struct slow_span *spans)
{
    int n_spans = 0, sentence_end = 0;
    for (int j = 0; j < n;) {
        if (kept[j]) {
            j++;
            continue;
        }
        int run_end = j;
        while (run_end < n && !kept[run_end])
            run_end++;
        if (j >= sentence_end) sentence_end = slow_sentence_end(ends, j, run_end);
        struct slow_span span = {j, slow_span_end(importance, j, sentence_end), 0};
        for (int i = span.first; i < span.end; i++)
            span.score += importance[i];
        span.score /= span.end - span.first;
        spans[n_spans++] = span;
        j = span.end;
    }
    return n_spans;
}

// Returns the first kept token if the span keeps `tokens` tokens. The span's first peak is in the middle of these
// tokens, unless the span ends earlier.
static inline int slow_cut(const float *importance, const struct slow_span *span, int tokens)
{
    int peak = span->end - 1;
    for (int j = span->end - 1; j >= span->first; j--)
        if (importance[j] >= importance[peak]) peak = j;
    int first = span->first;
    while (first < peak - tokens / 2 && first + tokens < span->end)
        first++;
    return first;
}

// Fills kept [n] for a policy of spans.
static inline void slow_select_spans(const float *importance, int n, const struct select_policy *policy, bool *kept)
{
    for (int j = 0; j < n; j++) {
        kept[j] = j >= n - policy->tail_tokens;
        for (int i = 0; i < policy->n_pinned; i++)
            kept[j] = kept[j] || (j >= policy->pinned[i].first && j <= policy->pinned[i].last);
    }
    int budget = prefill_keep_budget(policy->budget_tokens ? policy->budget_tokens : n, policy->keep_rate);
    budget -= !kept[n - 1];
    kept[n - 1] = true;
    budget -= policy->keep_first && !kept[0];
    kept[0] = kept[0] || policy->keep_first;
    struct slow_span *spans = malloc((size_t)n * sizeof *spans);
    int n_spans = slow_spans(importance, policy->ends, n, kept, spans);
    for (int s = 0; s < n_spans; s++) {
        int left = budget, size = spans[s].end - spans[s].first;
        for (int other = 0; other < n_spans; other++) {
            bool better = spans[other].score > spans[s].score || (other < s && spans[other].score == spans[s].score);
            if (better) left -= spans[other].end - spans[other].first;
        }
        if (left > size) left = size;
        int first = left > 0 ? slow_cut(importance, &spans[s], left) : 0;
        for (int j = first; j < first + left; j++)
            kept[j] = true;
    }
    free(spans);
}
