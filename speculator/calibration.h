// SPDX-License-Identifier: Apache-2.0
// A calibration: for one pair of main model and speculator, and one set of options, how likely the main model gives the
// answer of the full prompt when a share of the prompt is kept, given the evidence of the scoring (evidence.h), and
// what a lost answer may cost for a quality. Made by `forepack calibrate` (calibration_fit.h), kept as calibration.json
// beside the speculator's weights.
//
// The probability is a logistic regression with the products of its values. The rate that is chosen minimises
// rate + price x probability of a loss: of all ways to choose, this keeps the fewest tokens for a number of lost
// answers (the price is the Lagrange multiplier of that number). Evidence outside the range of the calibration's
// documents, and a quality for which they were too few, keep every token. Plain data; any thread.
#pragma once

#include <jansson.h>
#include <stdint.h>

#include "lib/base/status.h"
#include "lib/text/generation.h"
#include "speculator/evidence.h"

#define CALIBRATION_FILE "calibration.json"

enum {
    QUALITY_TARGETS = 9,
    EVIDENCE_VALUES = 7, // that have a range
    QUALITY_VALUES = 7,  // of the regression; the last MARGIN_VALUES are of the margins
    MARGIN_VALUES = 2,
    QUALITY_FEATURES = 1 + QUALITY_VALUES + QUALITY_VALUES * (QUALITY_VALUES + 1) / 2,
};
extern const double quality_targets[QUALITY_TARGETS]; // ascending

struct calibration_model {
    uint64_t model, tokenizer; // fingerprints
};

struct calibration {
    struct calibration_model main, speculator;
    int look_ahead, chunk_tokens, pool_window, tail_tokens; // the options it is valid for
    double low[EVIDENCE_VALUES], high[EVIDENCE_VALUES];     // what the evidence of its documents was between
    double mean[QUALITY_VALUES], deviation[QUALITY_VALUES]; // of the values
    // Without and with the margins of the look-ahead, which only a host that sees the logits knows.
    struct calibration_fit {
        double weights[QUALITY_FEATURES];
        double prices[QUALITY_TARGETS]; // of a lost answer, in prompts kept whole; not falling; infinite: keep all
    } fits[2];
};

void calibration_range_values(const struct evidence *evidence, double values[EVIDENCE_VALUES]);
// Of a keep rate, below 1, by its index in quality_rates.
void calibration_values(const struct evidence *evidence, int rate, double values[QUALITY_VALUES]);
// 1, then each standardised value, followed by its products with the values up to itself. Returns their number, which
// is smaller without margins.
int calibration_features(const struct calibration *calibration, const struct evidence *evidence, int rate,
                         double features[QUALITY_FEATURES]);
int calibration_feature_of(int value); // the index of the feature that is a value alone
// The probability that the answer of the full prompt is lost, by rate.
void calibration_losses(const struct calibration *calibration, const struct evidence *evidence,
                        double losses[QUALITY_RATES - 1]);

struct rate_choice {
    double rate;
    enum rate_reason reason;
};
// The best rate at this price, not falling with it; RATE_UNSURE if it is 1.
struct rate_choice rate_at_price(const double losses[QUALITY_RATES - 1], double price);
double calibration_price(const struct calibration_fit *fit, double quality);
// The rate for a quality over 0; it does not fall when the quality rises.
struct rate_choice calibration_choose(const struct calibration *calibration, const struct evidence *evidence,
                                      double quality);
// Whether it is valid for a prompt of n tokens with these options and this tail.
bool calibration_covers(const struct calibration *calibration, const struct prefill *prefill, int n, int tail_tokens);

uint64_t calibration_fingerprint(const struct calibration *calibration); // not 0

// --- the file

json_t *calibration_to_json(const struct calibration *calibration);
enum status calibration_from_json(const char *path, const json_t *object, struct calibration *calibration);
// STATUS_NOT_FOUND: the model directory has none. STATUS_DATA: the sentence names the file and what is wrong.
enum status calibration_read(const char *dir, struct calibration *calibration);
// STATUS_DATA unless it was made for this speculator, which is in `dir`.
enum status calibration_check(const struct calibration *calibration, const char *dir,
                              const struct calibration_model *speculator);
