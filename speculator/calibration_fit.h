// SPDX-License-Identifier: Apache-2.0
// Fits a calibration to documents whose answers were measured at every keep rate. Deterministic; one thread.
//
// A third of the documents of each group fits the regression, the others set the thresholds: the smallest probability
// from which on the mean loss of the held-out documents, with a correction for their number (conformal risk control,
// arXiv 2208.02814), is at most 1 - quality, over all of them and in every group.
#pragma once

#include "speculator/calibration.h"

struct fit_document {
    struct evidence evidence;
    int group;
    bool counts;                   // the full prompt gave the right answer; others have nothing to lose
    bool right[QUALITY_RATES - 1]; // at each keep rate
};

// Of the held-out documents that count, at one quality.
struct fit_outcome {
    double kept;       // mean keep rate of all held-out documents
    double loss;       // share of wrong answers
    double loss_worst; // in the group with the largest share
    double unsure;     // share of all held-out documents whose prompt is kept whole
};

// Groups are numbered from 0. Sets the members low, high and fits. STATUS_INVALID: too few documents.
enum status calibration_fit(const struct fit_document *documents, int n, int n_groups, struct calibration *calibration);
// What calibration_choose() gives for the held-out documents; group -1: all of them.
struct fit_outcome calibration_measure(const struct calibration *calibration, const struct fit_document *documents,
                                       int n, int n_groups, int group, double quality);
