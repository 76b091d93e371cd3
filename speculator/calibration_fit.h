// SPDX-License-Identifier: Apache-2.0
// Fits a calibration to documents whose answers were measured at every keep rate. Deterministic; one thread.
//
// A third of the documents of each group fits the regression, the others set the thresholds: the smallest probability
// from which on the held-out documents reach the quality, a share of the right answers from the full prompts. The loss
// is at most 1 - quality over all of them, and at most GROUP_LOSS times that in every group, both with a correction for
// the number of documents (conformal risk control, arXiv 2208.02814). A document that only the pruned prompt answers
// right makes up for one that is lost.
#pragma once

#include "speculator/calibration.h"

enum { GROUP_LOSS = 3 };

struct fit_document {
    struct evidence evidence;
    int group;
    bool counts;                   // the full prompt gave the right answer
    bool right[QUALITY_RATES - 1]; // at each keep rate
};

// Of the held-out documents, at one quality.
struct fit_outcome {
    double kept;       // mean keep rate
    double loss;       // right answers lost, less those gained, as a share of those from the full prompts
    double loss_worst; // in the group with the largest share
    double unsure;     // share of the documents whose prompt is kept whole
};

// Groups are numbered from 0. Sets the members low, high and fits. STATUS_INVALID: too few documents.
enum status calibration_fit(const struct fit_document *documents, int n, int n_groups, struct calibration *calibration);
// What calibration_choose() gives for the held-out documents; group -1: all of them.
struct fit_outcome calibration_measure(const struct calibration *calibration, const struct fit_document *documents,
                                       int n, int n_groups, int group, double quality);
