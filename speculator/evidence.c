// SPDX-License-Identifier: Apache-2.0
#include "speculator/evidence.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

const double quality_rates[QUALITY_RATES] = {0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.6, 1};

void evidence_begin(struct evidence_sums *sums, int tokens, int skipped, int tail)
{
    int end = tokens - tail;
    *sums = (struct evidence_sums){.first = skipped < end ? skipped : end, .end = end, .margin_least = INFINITY};
}

// Computes four partial sums of each kind, so that the compiler may vectorise them in this fixed order.
void evidence_add_step(struct evidence_sums *sums, const float *sum, const float *step)
{
    enum { LANES = 4 };
    double both[LANES] = {0}, of_sum[LANES] = {0}, of_step[LANES] = {0};
    for (int j = sums->first; j + LANES <= sums->end; j += LANES) {
        for (int k = 0; k < LANES; k++) {
            double a = (double)sum[j + k], b = (double)step[j + k];
            both[k] += a * b;
            of_sum[k] += a * a;
            of_step[k] += b * b;
        }
    }
    double size =
        sqrt((of_sum[0] + of_sum[1] + of_sum[2] + of_sum[3]) * (of_step[0] + of_step[1] + of_step[2] + of_step[3]));
    if (!(size > 0)) return; // the first step
    sums->agreement += (both[0] + both[1] + both[2] + both[3]) / size;
    sums->n_agreement++;
}

void evidence_add_margin(struct evidence_sums *sums, double margin)
{
    const double most = 10;
    double bounded = margin < most ? margin : most;
    if (!(bounded >= 0)) bounded = 0; // not a number
    sums->margin += bounded;
    if (bounded < sums->margin_least) sums->margin_least = bounded;
    sums->n_margins++;
}

// Sorts tokens into buckets by their importance, with eight buckets for each power of two.
enum { BUCKETS = 1 << 11, BUCKET_SHIFT = 20 };

struct bucket {
    double importance;
    int tokens;
};

static int bucket_of(float importance)
{
    uint32_t bits;
    if (!(importance > 0)) return 0;
    memcpy(&bits, &importance, sizeof bits);
    return (int)(bits >> BUCKET_SHIFT);
}

// Returns log2 of the ratio of the least importance among the best tokens to the largest importance. The best tokens
// are the share `rate` of the body. Approximates the least importance by the mean of its bucket.
static double floor_of(const struct bucket *buckets, int n, double rate, double largest)
{
    const double least = -20;
    double left = rate * n;
    int b = BUCKETS - 1;
    for (; b > 0 && left > buckets[b].tokens; b--)
        left -= buckets[b].tokens;
    double share = buckets[b].tokens ? buckets[b].importance / (buckets[b].tokens * largest) : 0;
    return share > exp2(least) ? log2(share) : least;
}

static double entropy_of(const float *importance, int n, double total)
{
    double entropy = 0;
    for (int j = 0; j < n; j++) {
        double share = (double)importance[j] / total;
        if (share > 0) entropy -= share * log(share);
    }
    return entropy / log(n);
}

void evidence_finish(const struct evidence_sums *sums, const float *importance, int tokens, bool ended,
                     struct evidence *evidence)
{
    struct bucket buckets[BUCKETS] = {{0, 0}};
    double total = 0, largest = 0;
    int n = sums->end - sums->first;
    *evidence = (struct evidence){.tokens = tokens,
                                  .agreement = sums->n_agreement ? sums->agreement / sums->n_agreement : 1,
                                  .ended = ended,
                                  .has_margins = sums->n_margins > 0,
                                  .margin = sums->n_margins ? sums->margin / sums->n_margins : 0,
                                  .margin_least = sums->n_margins ? sums->margin_least : 0};
    for (int j = sums->first; j < sums->end; j++) {
        struct bucket *bucket = &buckets[bucket_of(importance[j])];
        bucket->importance += (double)importance[j];
        bucket->tokens++;
        total += (double)importance[j];
        largest = fmax(largest, (double)importance[j]);
    }
    if (n < 2 || !(total > 0)) return;
    for (int r = 0; r < QUALITY_RATES - 1; r++)
        evidence->floor[r] = floor_of(buckets, n, quality_rates[r], largest);
    evidence->entropy = entropy_of(importance + sums->first, n, total);
}
