// SPDX-License-Identifier: Apache-2.0
// A calibration is valid for one pair of main model and speculator and one set of options. From the evidence of the
// scoring (evidence.h), it predicts the probability that the main model still gives the answer of the full prompt if
// only a share of the prompt is kept. It also stores the price of a lost answer for each quality. `forepack calibrate`
// makes it (calibration_fit.h) and stores it as calibration.json next to the speculator's weights.
//
// The probability is a logistic regression on values of the evidence and their products. The chosen keep rate minimises
// rate + price x probability that the answer is lost. No other choice of rates keeps fewer tokens for the same number
// of lost answers: the price is the Lagrange multiplier of this number. Every token is kept if the evidence is outside
// the range of the calibration's documents by over a tenth of the range, or if the documents were too few for the
// quality. Plain data; any thread.
#pragma once

#include <jansson.h>
#include <stdint.h>

#include "lib/base/status.h"
#include "lib/text/generation.h"
#include "speculator/evidence.h"

#define CALIBRATION_FILE "calibration.json"

enum {
    QUALITY_TARGETS = 9,
    EVIDENCE_VALUES = 7, // number of values whose range in the documents is stored
    QUALITY_VALUES = 7,  // number of values in the regression; the last MARGIN_VALUES values are margins
    MARGIN_VALUES = 2,
    QUALITY_FEATURES = 1 + QUALITY_VALUES + QUALITY_VALUES * (QUALITY_VALUES + 1) / 2,
};
extern const double quality_targets[QUALITY_TARGETS]; // ascending

struct calibration_model {
    uint64_t model, tokenizer; // fingerprints of the model and of its tokenizer
};

struct calibration {
    struct calibration_model main, speculator;
    int look_ahead, chunk_tokens, pool_window, tail_tokens; // options for which the calibration is valid
    double low[EVIDENCE_VALUES], high[EVIDENCE_VALUES];     // range of the evidence in the calibration's documents
    double mean[QUALITY_VALUES], deviation[QUALITY_VALUES]; // mean and deviation of each value of the regression
    // Fits without [0] and with [1] the margins of the look-ahead (struct evidence). Margins are known only if the host
    // has the logits.
    struct calibration_fit {
        double weights[QUALITY_FEATURES];
        // Price of a lost answer, in prompts kept whole, for each quality of quality_targets. Prices never decrease
        // with the quality. An infinite price keeps every token.
        double prices[QUALITY_TARGETS];
    } fits[2];
};

void calibration_range_values(const struct evidence *evidence, double values[EVIDENCE_VALUES]);
// Computes the values of the regression for the keep rate quality_rates[rate], which must be below 1.
void calibration_values(const struct evidence *evidence, int rate, double values[QUALITY_VALUES]);
// Computes the features: 1, then each standardised value, followed by its products with all values up to and including
// itself. Returns the number of features, which is smaller without margins.
int calibration_features(const struct calibration *calibration, const struct evidence *evidence, int rate,
                         double features[QUALITY_FEATURES]);
int calibration_feature_of(int value); // index of the feature that is just this value
// Computes for each keep rate below 1 the probability that the answer of the full prompt is lost.
void calibration_losses(const struct calibration *calibration, const struct evidence *evidence,
                        double losses[QUALITY_RATES - 1]);

struct rate_choice {
    double rate;
    enum rate_reason reason;
};
// Returns the best keep rate at this price. A higher price never gives a lower rate. The reason is RATE_UNSURE if the
// rate is 1.
struct rate_choice rate_at_price(const double losses[QUALITY_RATES - 1], double price);
double calibration_price(const struct calibration_fit *fit, double quality);
// Returns the keep rate for a quality over 0. A higher quality never gives a lower rate.
struct rate_choice calibration_choose(const struct calibration *calibration, const struct evidence *evidence,
                                      double quality);
// Returns true if the calibration is valid for a prompt of n tokens with these options and this tail window.
bool calibration_covers(const struct calibration *calibration, const struct prefill *prefill, int n, int tail_tokens);

uint64_t calibration_fingerprint(const struct calibration *calibration); // not 0

// --- the file

json_t *calibration_to_json(const struct calibration *calibration);
enum status calibration_from_json(const char *path, const json_t *object, struct calibration *calibration);
// Reads the calibration in the model directory `dir`. Returns STATUS_NOT_FOUND if there is none. Returns STATUS_DATA if
// the file has a defect; status_message() names the file and the defect.
enum status calibration_read(const char *dir, struct calibration *calibration);
// Returns STATUS_DATA unless the calibration was made for this speculator. `dir` is the model directory, for the
// message.
enum status calibration_check(const struct calibration *calibration, const char *dir,
                              const struct calibration_model *speculator);
