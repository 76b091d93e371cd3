// SPDX-License-Identifier: Apache-2.0
// See select.h. Chunks are sorted by score; a byte map of the prompt then merges chunks, pinned ranges and tail.
#include "speculator/select.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

struct chunk {
    double score;
    int index;
};

static int chunk_compare(const void *left, const void *right)
{
    const struct chunk *a = left, *b = right;
    if (a->score != b->score) return a->score > b->score ? -1 : 1;
    return a->index < b->index ? -1 : 1;
}

// The mean over the tokens of the chunk; the last chunk may be shorter.
static double chunk_score(const float *importance, int first, int end)
{
    double sum = 0;
    for (int j = first; j < end; j++)
        sum += importance[j];
    return sum / (end - first);
}

static void map_keep(uint8_t *kept, int first, int end)
{
    memset(kept + first, 1, (size_t)(end - first));
}

static void map_keep_best_chunks(uint8_t *kept, const float *importance, int n, const struct select_policy *policy)
{
    int size = policy->chunk_tokens ? policy->chunk_tokens : 1;
    int n_chunks = (n - 1) / size + 1;
    int budget = prefill_keep_budget(n_chunks, policy->keep_rate), n_forced = 0;
    struct chunk *chunks = mem_alloc_array((size_t)n_chunks, sizeof *chunks);
    for (int c = 0; c < n_chunks; c++) {
        int end = c == n_chunks - 1 ? n : (c + 1) * size;
        bool forced = !policy->paper_exact && ((c == 0 && policy->keep_first) || c == n_chunks - 1);
        // Forced chunks rank first, and so count towards the budget.
        chunks[c] = (struct chunk){forced ? INFINITY : chunk_score(importance, c * size, end), c};
        n_forced += forced;
    }
    qsort(chunks, (size_t)n_chunks, sizeof *chunks, chunk_compare);
    if (budget < n_forced) budget = n_forced;
    for (int i = 0; i < budget; i++) {
        int first = chunks[i].index * size;
        map_keep(kept, first, chunks[i].index == n_chunks - 1 ? n : first + size);
    }
    free(chunks);
}

int select_kept(const float *importance, int n, const struct select_policy *policy, struct token_range **kept_p)
{
    assert(n >= 1 && policy->keep_rate > 0 && policy->keep_rate <= 1 && policy->chunk_tokens >= 0);
    uint8_t *kept = mem_alloc((size_t)n);
    map_keep_best_chunks(kept, importance, n, policy);
    if (!policy->paper_exact) {
        assert(policy->tail_tokens >= 0 && policy->tail_tokens <= n);
        map_keep(kept, n - policy->tail_tokens, n);
        for (int i = 0; i < policy->n_pinned; i++) {
            const struct token_range *range = &policy->pinned[i];
            assert(range->first >= 0 && range->first <= range->last && range->last < n);
            map_keep(kept, range->first, range->last + 1);
        }
    }
    int n_ranges = 0;
    for (int j = 0; j < n; j++)
        n_ranges += kept[j] && (j == 0 || !kept[j - 1]);
    struct token_range *ranges = mem_alloc_array((size_t)n_ranges, sizeof *ranges);
    for (int j = 0, r = -1; j < n; j++) {
        if (!kept[j]) continue;
        if (j == 0 || !kept[j - 1]) ranges[++r].first = j;
        ranges[r].last = j;
    }
    free(kept);
    *kept_p = ranges;
    return n_ranges;
}
