// SPDX-License-Identifier: Apache-2.0
// A slow selection of kept tokens for tests, with no sorting: a chunk is kept if fewer chunks than the budget have a
// better score, counted one by one.
#pragma once

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>

#include "speculator/select.h"

static inline int slow_chunk_of(int j, int size)
{
    return size ? j / size : j;
}

static inline double slow_chunk_mean(const double *importance, int n, int chunk, int size)
{
    double sum = 0;
    int count = 0;
    for (int j = 0; j < n; j++) {
        if (slow_chunk_of(j, size) == chunk) {
            sum += importance[j];
            count++;
        }
    }
    return sum / count;
}

// Returns ceil(n_chunks * rate), in integers, since rates are given in thousandths.
static inline int slow_budget(int n_chunks, int rate_thousandths)
{
    int chunks = (n_chunks * rate_thousandths + 999) / 1000;
    return chunks < 1 ? 1 : chunks;
}

// Fills kept [n] and ignores policy->keep_rate. Returns the distance between the lowest kept score and the highest
// pruned score, not counting forced chunks: smaller errors cannot change the set.
static inline double slow_select(const double *importance, int n, const struct select_policy *policy,
                                 int rate_thousandths, bool *kept)
{
    int size = policy->chunk_tokens, n_chunks = slow_chunk_of(n - 1, size) + 1;
    int budget = slow_budget(n_chunks, rate_thousandths);
    double *score = malloc((size_t)n_chunks * sizeof *score);
    for (int c = 0; c < n_chunks; c++)
        score[c] = slow_chunk_mean(importance, n, c, size);
    bool last_forced = !policy->paper_exact, first_forced = last_forced && policy->keep_first;
    double worst_kept = INFINITY, best_dropped = -INFINITY;
    for (int c = 0; c < n_chunks; c++) {
        bool forced = (last_forced && c == n_chunks - 1) || (first_forced && c == 0);
        int ahead = last_forced + (first_forced && n_chunks > 1); // forced chunks take these places
        for (int other = 0; other < n_chunks; other++) {
            if ((last_forced && other == n_chunks - 1) || (first_forced && other == 0)) continue;
            ahead += score[other] > score[c] || (score[other] == score[c] && other < c);
        }
        for (int j = 0; j < n; j++) {
            if (slow_chunk_of(j, size) == c) kept[j] = forced || ahead < budget;
        }
        if (!forced && ahead < budget) worst_kept = fmin(worst_kept, score[c]);
        if (!forced && ahead >= budget) best_dropped = fmax(best_dropped, score[c]);
    }
    for (int j = 0; j < n && !policy->paper_exact; j++) {
        kept[j] = kept[j] || j >= n - policy->tail_tokens;
        for (int i = 0; i < policy->n_pinned; i++)
            kept[j] = kept[j] || (j >= policy->pinned[i].first && j <= policy->pinned[i].last);
    }
    free(score);
    return worst_kept - best_dropped;
}
