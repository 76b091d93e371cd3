// SPDX-License-Identifier: Apache-2.0
// A calibration: for one pair of main model and speculator, and one set of options, how likely the main model gives the
// answer of the full prompt when a share of the prompt is kept, given the evidence of the scoring (evidence.h), and how
// likely it must be for a quality. Made by `forepack calibrate` (calibration_fit.h), kept as calibration.json beside
// the speculator's weights.
//
// The probability is a logistic regression; the smallest rate whose probability is high enough is chosen. The
// thresholds were set on documents that the regression has not seen (conformal risk control, arXiv 2208.02814).
// Evidence outside the range of the calibration's documents, and a quality for which they were too few, keep every
// token. Plain data; any thread.
#pragma once

#include <jansson.h>
#include <stdint.h>

#include "base/status.h"
#include "model/generation.h"
#include "speculator/evidence.h"

#define CALIBRATION_FILE "calibration.json"

enum { QUALITY_TARGETS = 9, QUALITY_FEATURES = 8, MARGIN_FEATURES = 2, EVIDENCE_VALUES = 7 };
extern const double quality_targets[QUALITY_TARGETS]; // ascending

struct calibration_model {
    uint64_t model, tokenizer; // fingerprints
};

struct calibration {
    struct calibration_model main, speculator;
    int look_ahead, chunk_tokens, pool_window, tail_tokens; // the options it is valid for
    double low[EVIDENCE_VALUES], high[EVIDENCE_VALUES];     // what the evidence of its documents was between
    // Without and with the margins of the look-ahead, which only a host that sees the logits knows.
    struct calibration_fit {
        double weights[QUALITY_FEATURES];
        double thresholds[QUALITY_TARGETS]; // log-odds, not falling; infinite: keep every token
    } fits[2];
};

// The features of a keep rate, below 1, by its index in quality_rates. The last MARGIN_FEATURES are of the margins.
void calibration_features(const struct evidence *evidence, int rate, double features[QUALITY_FEATURES]);
void calibration_values(const struct evidence *evidence, double values[EVIDENCE_VALUES]); // that have a range

struct rate_choice {
    double rate;
    enum rate_reason reason;
};
// The smallest rate that is likely enough to reach `quality`, over 0; it does not fall when the quality rises.
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
