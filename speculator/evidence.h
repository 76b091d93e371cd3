// SPDX-License-Identifier: Apache-2.0
// Evidence from the scoring of a prompt shows how many of the prompt's tokens the answer needs. It measures how fast
// importance falls after the best tokens, how even importance is, how well the look-ahead steps agree, and how sure the
// small model is of the tokens that it generates. calibration.h chooses a keep rate from the evidence.
//
// Only the body of the prompt counts. The body excludes the tail window, and BOS with its smoothing window: attention
// to these is large for reasons unrelated to the answer. Attention heads are not distinguished: the backend returns the
// maximum over the heads. Deterministic: values are always added in the same order. Each step and the end take
// O(tokens). Plain data; any thread.
#pragma once

#include <stdbool.h>

// Keep rates to choose from, ascending. The last one is 1.
enum { QUALITY_RATES = 9 };
extern const double quality_rates[QUALITY_RATES];

struct evidence {
    int tokens; // tokens of the prompt
    // For each keep rate below 1: log2 of the ratio of the least importance kept at this rate to the largest
    // importance. At least -20.
    double floor[QUALITY_RATES - 1];
    double entropy; // entropy of the importance, relative to uniform importance: 0 to 1
    // Mean cosine similarity between the importance of a step and the sum over the earlier steps; 1 for a single step.
    double agreement;
    double ended;     // 1 if the look-ahead reached the end of the text, else 0
    bool has_margins; // the two members below are known, because the host has the logits
    // Mean over the generated tokens of the difference between the two largest logits. Each difference is capped at 10.
    double margin;
    double margin_least; // smallest of these differences
};

// Sums that are collected while a prompt is scored.
struct evidence_sums {
    int first, end; // the body is the tokens [first, end)
    double agreement;
    int n_agreement;
    double margin, margin_least;
    int n_margins;
};

// Begins the sums for a prompt. Its first `skipped` tokens and last `tail` tokens do not belong to the body.
void evidence_begin(struct evidence_sums *sums, int tokens, int skipped, int tail);
// Adds the importance `step` [tokens] of a step. `sum` [tokens] is the sum over the earlier steps.
void evidence_add_step(struct evidence_sums *sums, const float *sum, const float *step);
void evidence_add_margin(struct evidence_sums *sums, double margin); // call for each generated token
// Completes the evidence. `importance` [tokens] is the mean over the steps, and all its values are finite.
void evidence_finish(const struct evidence_sums *sums, const float *importance, int tokens, bool ended,
                     struct evidence *evidence);
