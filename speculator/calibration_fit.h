// SPDX-License-Identifier: Apache-2.0
// Fits a calibration to documents whose answers were measured at every keep rate. Deterministic; one thread.
//
// Prices are set by cross-validation: the documents of each group are divided into FOLDS folds, and the loss of each
// document is predicted by a regression fitted to the other folds. A price is acceptable if, with a confidence of 90 %,
// the pruned prompts of all documents lose at most the share 1 - quality of the right answers. Each single group may
// lose at most GROUP_LOSS times this share. A document that is answered right only from the pruned prompt compensates
// for one lost answer. The price of a quality is the lowest price such that it and all higher prices are acceptable. A
// small sample promises little, whatever it shows: there is no price unless 1 - quality of its right answers are at
// least LOSSES_MIN answers. So 50 documents promise a quality of at most 0.9.
#pragma once

#include "speculator/calibration.h"

enum { GROUP_LOSS = 3, FOLDS = 3, LOSSES_MIN = 5 };

struct fit_document {
    struct evidence evidence;
    int group;
    bool counts;                   // the full prompt gave the right answer
    bool right[QUALITY_RATES - 1]; // the answer is right at each keep rate below 1
};

// Predicted probability, at each keep rate below 1, that the answer of the full prompt is lost.
struct predicted_losses {
    double at[QUALITY_RATES - 1];
};

// Sets the members low, high, mean, deviation and fits of the calibration. Groups are numbered from 0. Stores in
// `predicted` [n] the losses of each document, as predicted by the regression that was fitted to the other folds.
// Returns STATUS_INVALID if there are too few documents.
enum status calibration_fit(const struct fit_document *documents, int n, int n_groups, struct calibration *calibration,
                            struct predicted_losses *predicted);

// Outcome for a set of documents at one quality.
struct fit_outcome {
    double kept;       // mean keep rate
    double loss;       // lost minus gained right answers, as a share of the right answers from the full prompts
    double loss_worst; // loss in the group that loses the largest share
    double unsure;     // share of documents whose prompt is kept whole
};
// Returns the outcome at the keep rates that are chosen for `quality` from the predicted losses. Group -1 means all
// groups.
struct fit_outcome calibration_measure(const struct calibration *calibration, const struct fit_document *documents,
                                       const struct predicted_losses *predicted, int n, int n_groups, int group,
                                       double quality);

// Returns the highest of quality_targets for which some prompts are pruned; 0: none.
double calibration_highest_quality(const struct calibration *calibration);
// Returns the right answers from full prompts that a sample must have at least for this quality.
int calibration_documents_for(double quality);
