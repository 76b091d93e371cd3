// SPDX-License-Identifier: Apache-2.0
// A byte map of the prompt marks the kept tokens: first tokens kept in addition to the budget, then tokens within it.
#include "speculator/select.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "speculator/select_parts.h"

struct select_policy select_policy_of(const struct prefill *prefill)
{
    return (struct select_policy){.keep_rate = prefill->keep_rate,
                                  .chunk_tokens = prefill_chunk_tokens(prefill),
                                  .paper_exact = prefill->paper_exact};
}

static void map_keep(uint8_t *kept, int first, int end)
{
    memset(kept + first, 1, (size_t)(end - first));
}

// Marks the tokens that are kept in addition to the budget.
static void map_keep_beyond(uint8_t *kept, int n, const struct select_policy *policy)
{
    assert(policy->tail_tokens >= 0 && policy->tail_tokens <= n);
    map_keep(kept, n - policy->tail_tokens, n);
    for (int i = 0; i < policy->n_pinned; i++) {
        const struct token_range *range = &policy->pinned[i];
        assert(range->first >= 0 && range->first <= range->last && range->last < n);
        map_keep(kept, range->first, range->last + 1);
    }
}

static int map_ranges(const uint8_t *kept, int n, struct token_range **kept_p)
{
    int n_ranges = 0;
    for (int j = 0; j < n; j++)
        n_ranges += kept[j] && (j == 0 || !kept[j - 1]);
    struct token_range *ranges = mem_alloc_array((size_t)n_ranges, sizeof *ranges);
    for (int j = 0, r = -1; j < n; j++) {
        if (!kept[j]) continue;
        if (j == 0 || !kept[j - 1]) ranges[++r].first = j;
        ranges[r].last = j;
    }
    *kept_p = ranges;
    return n_ranges;
}

int select_kept(const float *importance, int n, const struct select_policy *policy, struct token_range **kept_p)
{
    bool spans = policy->chunk_tokens == CHUNK_TOKENS_AUTO;
    assert(n >= 1 && policy->keep_rate > 0 && policy->keep_rate <= 1);
    assert(spans ? !policy->paper_exact : policy->chunk_tokens >= 0);
    uint8_t *kept = mem_alloc((size_t)n);
    if (!policy->paper_exact) map_keep_beyond(kept, n, policy);
    (spans ? select_spans : select_chunks)(kept, importance, n, policy);
    int n_ranges = map_ranges(kept, n, kept_p);
    free(kept);
    return n_ranges;
}
