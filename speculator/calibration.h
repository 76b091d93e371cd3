// SPDX-License-Identifier: Apache-2.0
// A calibration is valid for one pair of main model and speculator and one set of options. It predicts how likely the
// main model still gives the answer of the full prompt when a share of the prompt is kept, from the evidence of the
// scoring (evidence.h). It also has the price of a lost answer for each quality. `forepack calibrate` makes it
// (calibration_fit.h) and stores it as calibration.json next to the speculator's weights.
//
// The probability comes from a logistic regression on the values and their products. The chosen rate minimises rate +
// price x probability of a loss. No other choice keeps fewer tokens for the same number of lost answers: the price is
// the Lagrange multiplier of that number. Every token is kept if the evidence is outside the range of the calibration's
// documents, or if they were too few for the quality. Plain data; any thread.
#pragma once

#include <jansson.h>
#include <stdint.h>

#include "lib/base/status.h"
#include "lib/text/generation.h"
#include "speculator/evidence.h"

#define CALIBRATION_FILE "calibration.json"

enum {
    QUALITY_TARGETS = 9,
    EVIDENCE_VALUES = 7, // values that have a range
    QUALITY_VALUES = 7,  // values of the regression; the last MARGIN_VALUES are of the margins
    MARGIN_VALUES = 2,
    QUALITY_FEATURES = 1 + QUALITY_VALUES + QUALITY_VALUES * (QUALITY_VALUES + 1) / 2,
};
extern const double quality_targets[QUALITY_TARGETS]; // ascending

struct calibration_model {
    uint64_t model, tokenizer; // fingerprints
};

struct calibration {
    struct calibration_model main, speculator;
    int look_ahead, chunk_tokens, pool_window, tail_tokens; // options that the calibration is valid for
    double low[EVIDENCE_VALUES], high[EVIDENCE_VALUES];     // range of the evidence of its documents
    double mean[QUALITY_VALUES], deviation[QUALITY_VALUES]; // mean and deviation of each value of the regression
    // Fits without and with the margins of the look-ahead. Only a host that sees the logits knows the margins.
    struct calibration_fit {
        double weights[QUALITY_FEATURES];
        // Price of a lost answer, in prompts kept whole. Prices do not fall; an infinite price keeps every token.
        double prices[QUALITY_TARGETS];
    } fits[2];
};

void calibration_range_values(const struct evidence *evidence, double values[EVIDENCE_VALUES]);
// Computes the values of the regression for keep rate number `rate` in quality_rates, which is below 1.
void calibration_values(const struct evidence *evidence, int rate, double values[QUALITY_VALUES]);
// Computes the features: 1, then each standardised value, followed by its products with the values up to itself.
// Returns their number, which is smaller without margins.
int calibration_features(const struct calibration *calibration, const struct evidence *evidence, int rate,
                         double features[QUALITY_FEATURES]);
int calibration_feature_of(int value); // index of the feature that is one value alone
// Computes for each rate the probability that the answer of the full prompt is lost.
void calibration_losses(const struct calibration *calibration, const struct evidence *evidence,
                        double losses[QUALITY_RATES - 1]);

struct rate_choice {
    double rate;
    enum rate_reason reason;
};
// Returns the best rate at this price. It does not fall with the price. The reason is RATE_UNSURE if the rate is 1.
struct rate_choice rate_at_price(const double losses[QUALITY_RATES - 1], double price);
double calibration_price(const struct calibration_fit *fit, double quality);
// Returns the rate for a quality over 0. It does not fall with the quality.
struct rate_choice calibration_choose(const struct calibration *calibration, const struct evidence *evidence,
                                      double quality);
// Returns true if the calibration is valid for a prompt of n tokens with these options and this tail.
bool calibration_covers(const struct calibration *calibration, const struct prefill *prefill, int n, int tail_tokens);

uint64_t calibration_fingerprint(const struct calibration *calibration); // not 0

// --- the file

json_t *calibration_to_json(const struct calibration *calibration);
enum status calibration_from_json(const char *path, const json_t *object, struct calibration *calibration);
// Reads the calibration of the model directory. STATUS_NOT_FOUND: there is none. STATUS_DATA: the sentence names the
// file and the defect.
enum status calibration_read(const char *dir, struct calibration *calibration);
// Returns STATUS_DATA unless the calibration was made for this speculator, which is in `dir`.
enum status calibration_check(const struct calibration *calibration, const char *dir,
                              const struct calibration_model *speculator);
