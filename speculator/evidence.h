// SPDX-License-Identifier: Apache-2.0
// What the scoring of a prompt shows about how many of its tokens the answer needs: how fast importance falls
// from the best tokens to the others, how even it is, whether the look-ahead steps agree on it, and how sure the small
// model is of the tokens that it decodes. calibration.h chooses a keep rate from it.
//
// Only the body of the prompt counts: the tail window and BOS are kept at every rate, and attention to them is large
// for reasons that have nothing to do with the answer. Attention heads are not told apart: the backend returns their
// maximum. Deterministic: sums in one order. O(tokens) for each step and at the end. Plain data; any thread.
#pragma once

#include <stdbool.h>

// The keep rates to choose from, ascending; the last one is 1.
enum { QUALITY_RATES = 9 };
extern const double quality_rates[QUALITY_RATES];

struct evidence {
    int tokens;                      // of the prompt
    double floor[QUALITY_RATES - 1]; // by rate: importance of the last of the best tokens, over the largest; log2
    double entropy;                  // of the importance, over that of an even one: 0 to 1
    double agreement;    // mean cosine of a step's importance and the sum of the steps before it; 1 for a single step
    double ended;        // 1: the look-ahead reached the end of the text, 0: it did not
    bool has_margins;    // the two below are known: the host sees the logits
    double margin;       // mean over the decoded tokens: logit of the likeliest token less that of the next, at most 10
    double margin_least; // the least of these
};

// While a prompt is scored.
struct evidence_sums {
    int first, end; // the body
    double agreement;
    int n_agreement;
    double margin, margin_least;
    int n_margins;
};

// `skipped`: first tokens that do not count; `tail`: last ones.
void evidence_begin(struct evidence_sums *sums, int tokens, int skipped, int tail);
// Before `step` [tokens] is added to `sum` [tokens], the importance of the steps before it.
void evidence_add_step(struct evidence_sums *sums, const float *sum, const float *step);
void evidence_add_margin(struct evidence_sums *sums, double margin); // of a decoded token
// `importance` [tokens], all finite: the mean of the steps.
void evidence_finish(const struct evidence_sums *sums, const float *importance, int tokens, bool ended,
                     struct evidence *evidence);
