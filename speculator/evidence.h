// SPDX-License-Identifier: Apache-2.0
// Evidence of the scoring of a prompt, which shows how many of its tokens the answer needs. It says how fast importance
// falls after the best tokens, how even it is, and how well the look-ahead steps agree. It also says how sure the small
// model is of the tokens that it decodes. calibration.h chooses a keep rate from it.
//
// Only the body of the prompt counts. The tail window and BOS are kept at every rate, and attention to them is large
// for reasons unrelated to the answer. Attention heads are not distinguished: the backend returns their maximum.
// Deterministic: values are added in one order. O(tokens) for each step and at the end. Plain data; any thread.
#pragma once

#include <stdbool.h>

// Keep rates to choose from, ascending. The last one is 1.
enum { QUALITY_RATES = 9 };
extern const double quality_rates[QUALITY_RATES];

struct evidence {
    int tokens; // tokens of the prompt
    // For each rate: importance of the last of the best tokens, relative to the largest; log2.
    double floor[QUALITY_RATES - 1];
    double entropy;      // entropy of the importance, relative to uniform importance: 0 to 1
    double agreement;    // mean cosine of a step's importance and the sum of the steps before it; 1 for a single step
    double ended;        // 1 if the look-ahead reached the end of the text, else 0
    bool has_margins;    // the two members below are known: the host sees the logits
    double margin;       // difference of the two largest logits, at most 10, as a mean over the decoded tokens
    double margin_least; // smallest of these differences
};

// Sums that are collected while a prompt is scored.
struct evidence_sums {
    int first, end; // first and end of the body
    double agreement;
    int n_agreement;
    double margin, margin_least;
    int n_margins;
};

// Begins. The first `skipped` tokens and the last `tail` tokens do not count.
void evidence_begin(struct evidence_sums *sums, int tokens, int skipped, int tail);
// Call it before `step` [tokens] is added to `sum` [tokens], the importance of the steps before it.
void evidence_add_step(struct evidence_sums *sums, const float *sum, const float *step);
void evidence_add_margin(struct evidence_sums *sums, double margin); // margin of a decoded token
// Completes the evidence. `importance` [tokens] is the mean of the steps, with all values finite.
void evidence_finish(const struct evidence_sums *sums, const float *importance, int tokens, bool ended,
                     struct evidence *evidence);
