// SPDX-License-Identifier: Apache-2.0
// The selection of SpecPrefill. Single tokens are chunks of one token.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "speculator/select_parts.h"

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

// Returns the mean over the tokens of the chunk. The last chunk may be shorter.
static double chunk_score(const float *importance, int first, int end)
{
    double sum = 0;
    for (int j = first; j < end; j++)
        sum += importance[j];
    return sum / (end - first);
}

void select_chunks(uint8_t *kept, const float *importance, int n, const struct select_policy *policy)
{
    int size = policy->chunk_tokens ? policy->chunk_tokens : 1;
    int n_chunks = (n - 1) / size + 1;
    int budget = prefill_keep_budget(n_chunks, policy->keep_rate), n_forced = 0;
    struct chunk *chunks = mem_alloc_array((size_t)n_chunks, sizeof *chunks);
    for (int c = 0; c < n_chunks; c++) {
        int end = c == n_chunks - 1 ? n : (c + 1) * size;
        bool forced = !policy->paper_exact && ((c == 0 && policy->keep_first) || c == n_chunks - 1);
        // Forced chunks rank first, so they count towards the budget.
        chunks[c] = (struct chunk){forced ? INFINITY : chunk_score(importance, c * size, end), c};
        n_forced += forced;
    }
    qsort(chunks, (size_t)n_chunks, sizeof *chunks, chunk_compare);
    if (budget < n_forced) budget = n_forced;
    for (int i = 0; i < budget; i++) {
        int first = chunks[i].index * size;
        int end = chunks[i].index == n_chunks - 1 ? n : first + size;
        memset(kept + first, 1, (size_t)(end - first));
    }
    free(chunks);
}
