// SPDX-License-Identifier: Apache-2.0
// Fits a calibration to documents whose answers were measured at every keep rate. Deterministic; one thread.
//
// Prices are set by cross-validation: the documents of each group are divided into FOLDS, and the loss of each document
// is predicted by a regression that was fitted to the other folds. The price of a quality is the lowest one from which
// on, with a confidence of 90 %, at most 1 - quality of the right answers from the full prompts are lost over all
// documents and at most GROUP_LOSS times that in every group. A document that only the pruned prompt answers right
// makes up for one that is lost.
#pragma once

#include "speculator/calibration.h"

enum { GROUP_LOSS = 3, FOLDS = 3 };

struct fit_document {
    struct evidence evidence;
    int group;
    bool counts;                   // the full prompt gave the right answer
    bool right[QUALITY_RATES - 1]; // at each keep rate
};

// By keep rate, the probability that the answer of the full prompt is lost.
struct predicted_losses {
    double at[QUALITY_RATES - 1];
};

// Groups are numbered from 0. Sets the members low, high, mean, deviation and fits. predicted [n]: of each document, by
// the regressions of the other folds. STATUS_INVALID: too few documents.
enum status calibration_fit(const struct fit_document *documents, int n, int n_groups, struct calibration *calibration,
                            struct predicted_losses *predicted);

// Of documents, at one quality.
struct fit_outcome {
    double kept;       // mean keep rate
    double loss;       // right answers lost, less those gained, as a share of those from the full prompts
    double loss_worst; // in the group with the largest share
    double unsure;     // share of the documents whose prompt is kept whole
};
// What the rates for `quality` give, chosen by the predicted losses; group -1: all of them.
struct fit_outcome calibration_measure(const struct calibration *calibration, const struct fit_document *documents,
                                       const struct predicted_losses *predicted, int n, int n_groups, int group,
                                       double quality);
