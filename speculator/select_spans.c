// SPDX-License-Identifier: Apache-2.0
// The prompt is divided into spans, which are sentences and lines. A short sentence is joined with the next sentence. A
// long sentence is divided where importance is lowest, so that no peak of importance is cut. The spans with the highest
// mean importance are kept.
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "speculator/select_parts.h"

struct span {
    double score; // mean importance
    int first, end;
};

struct span_list {
    struct span *spans;
    int n;
};

static int span_compare(const void *left, const void *right)
{
    const struct span *a = left, *b = right;
    if (a->score != b->score) return a->score > b->score ? -1 : 1;
    return a->first < b->first ? -1 : 1;
}

// Returns the end of the sentence that begins at `first`. A sentence shorter than SPAN_TOKENS_MIN is joined with the
// next sentences.
static int sentence_end(const uint8_t *ends, int first, int end)
{
    for (int j = first + SPAN_TOKENS_MIN - 1; ends && j < end; j++)
        if (ends[j]) return j + 1;
    return end;
}

// Returns the end of the first span of a sentence [first, end). A long sentence is divided: the span has between
// SPAN_TOKENS_MAX / 2 and SPAN_TOKENS_MAX tokens and ends before the least important token of this range.
static int span_end(const float *importance, int first, int end)
{
    if (end - first <= SPAN_TOKENS_MAX) return end;
    int lowest = first + SPAN_TOKENS_MAX / 2;
    int latest = first + SPAN_TOKENS_MAX < end - SPAN_TOKENS_MIN ? first + SPAN_TOKENS_MAX : end - SPAN_TOKENS_MIN;
    for (int j = lowest + 1; j <= latest; j++)
        if (importance[j] < importance[lowest]) lowest = j;
    return lowest;
}

static void list_add_span(struct span_list *list, const float *importance, int first, int end)
{
    double sum = 0;
    for (int j = first; j < end; j++)
        sum += importance[j];
    list->spans[list->n++] = (struct span){sum / (end - first), first, end};
}

// Divides the tokens [first, end) into spans.
static void list_add_run(struct span_list *list, const float *importance, const uint8_t *ends, int first, int end)
{
    while (first < end) {
        int sentence = sentence_end(ends, first, end);
        for (int next; first < sentence; first = next) {
            next = span_end(importance, first, sentence);
            list_add_span(list, importance, first, next);
        }
    }
}

static void list_add_prompt(struct span_list *list, const uint8_t *kept, const float *importance, int n,
                            const uint8_t *ends)
{
    for (int first = 0, end; first < n; first = end + 1) {
        for (end = first; end < n && !kept[end];)
            end++;
        list_add_run(list, importance, ends, first, end);
    }
}

// Shortens the span to `tokens` tokens around its most important token.
static void span_cut(struct span *span, const float *importance, int tokens)
{
    int peak = span->first;
    for (int j = peak + 1; j < span->end; j++)
        if (importance[j] > importance[peak]) peak = j;
    int first = peak - tokens / 2;
    if (first > span->end - tokens) first = span->end - tokens;
    if (first > span->first) span->first = first;
    span->end = span->first + tokens;
}

// Keeps token j. Returns how many tokens of the budget this costs: 1, or 0 if the token is kept already.
static int force_token(uint8_t *kept, int j)
{
    int cost = !kept[j];
    kept[j] = 1;
    return cost;
}

void select_spans(uint8_t *kept, const float *importance, int n, const struct select_policy *policy)
{
    int budget_tokens = policy->budget_tokens ? policy->budget_tokens : n;
    int budget = prefill_keep_budget(budget_tokens, policy->keep_rate) - force_token(kept, n - 1);
    if (policy->keep_first) budget -= force_token(kept, 0);
    struct span_list list = {.spans = mem_alloc_array((size_t)n, sizeof *list.spans)};
    list_add_prompt(&list, kept, importance, n, policy->ends);
    qsort(list.spans, (size_t)list.n, sizeof *list.spans, span_compare);
    for (int i = 0; i < list.n && budget > 0; i++) {
        struct span *span = &list.spans[i];
        if (span->end - span->first > budget) span_cut(span, importance, budget);
        memset(kept + span->first, 1, (size_t)(span->end - span->first));
        budget -= span->end - span->first;
    }
    free(list.spans);
}
