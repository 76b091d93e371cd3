// SPDX-License-Identifier: Apache-2.0
#include "speculator/calibration.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "lib/base/fnv.h"

const double quality_targets[QUALITY_TARGETS] = {0.5, 0.7, 0.8, 0.9, 0.95, 0.97, 0.98, 0.99, 0.995};

void calibration_range_values(const struct evidence *evidence, double values[EVIDENCE_VALUES])
{
    const double all[EVIDENCE_VALUES] = {evidence->tokens,      evidence->floor[0], evidence->entropy,
                                         evidence->agreement,   evidence->ended,    evidence->margin,
                                         evidence->margin_least};
    memcpy(values, all, sizeof all);
}

// --- the regression

void calibration_values(const struct evidence *evidence, int rate, double values[QUALITY_VALUES])
{
    const double all[QUALITY_VALUES] = {
        // Tends to infinity as the rate approaches 1, where no answer is lost.
        log2(quality_rates[rate] / (1 - quality_rates[rate])),
        evidence->floor[rate],
        evidence->entropy,
        evidence->agreement,
        log2(evidence->tokens),
        evidence->margin,
        evidence->margin_least,
    };
    memcpy(values, all, sizeof all);
}

int calibration_feature_of(int value)
{
    return 1 + value + value * (value + 1) / 2;
}

int calibration_features(const struct calibration *c, const struct evidence *evidence, int rate,
                         double features[QUALITY_FEATURES])
{
    double z[QUALITY_VALUES];
    int n = 0;
    calibration_values(evidence, rate, z);
    features[n++] = 1;
    for (int i = 0; i < QUALITY_VALUES - (evidence->has_margins ? 0 : MARGIN_VALUES); i++) {
        // If the deviation is 0, all documents have the same value.
        z[i] = c->deviation[i] > 1e-9 ? (z[i] - c->mean[i]) / c->deviation[i] : 0;
        features[n++] = z[i];
        for (int j = 0; j <= i; j++)
            features[n++] = z[i] * z[j];
    }
    return n;
}

void calibration_losses(const struct calibration *c, const struct evidence *evidence, double losses[QUALITY_RATES - 1])
{
    const struct calibration_fit *fit = &c->fits[evidence->has_margins];
    for (int r = 0; r < QUALITY_RATES - 1; r++) {
        double features[QUALITY_FEATURES], log_odds = 0;
        int n = calibration_features(c, evidence, r, features);
        for (int f = 0; f < n; f++)
            log_odds += fit->weights[f] * features[f];
        losses[r] = 1 / (1 + exp(log_odds));
    }
}

// --- the choice

static bool is_in_range(const struct calibration *c, const struct evidence *evidence)
{
    double values[EVIDENCE_VALUES];
    int n = evidence->has_margins ? EVIDENCE_VALUES : EVIDENCE_VALUES - 2;
    calibration_range_values(evidence, values);
    for (int i = 0; i < n; i++) {
        double slack = 0.1 * (c->high[i] - c->low[i]);
        if (!(values[i] >= c->low[i] - slack && values[i] <= c->high[i] + slack)) return false;
    }
    return true;
}

double calibration_price(const struct calibration_fit *fit, double quality)
{
    for (int t = 0; t < QUALITY_TARGETS; t++)
        if (quality <= quality_targets[t] + 1e-9) return fit->prices[t];
    return INFINITY;
}

struct rate_choice rate_at_price(const double losses[QUALITY_RATES - 1], double price)
{
    struct rate_choice best = {1, RATE_UNSURE};
    double least = 1;
    for (int r = QUALITY_RATES - 2; r >= 0; r--) {
        double cost = quality_rates[r] + price * losses[r];
        if (!(cost < least)) continue; // also skips a cost that is not a number
        least = cost;
        best = (struct rate_choice){quality_rates[r], RATE_QUALITY};
    }
    return best;
}

struct rate_choice calibration_choose(const struct calibration *c, const struct evidence *evidence, double quality)
{
    double losses[QUALITY_RATES - 1], price = calibration_price(&c->fits[evidence->has_margins], quality);
    if (quality >= 1) return (struct rate_choice){1, RATE_QUALITY};
    if (!isfinite(price) || !is_in_range(c, evidence)) return (struct rate_choice){1, RATE_UNSURE};
    calibration_losses(c, evidence, losses);
    return rate_at_price(losses, price);
}

bool calibration_covers(const struct calibration *c, const struct prefill *prefill, int n, int tail_tokens)
{
    return !prefill->paper_exact && prefill->look_ahead == c->look_ahead && prefill->chunk_tokens == c->chunk_tokens &&
           prefill->pool_window == c->pool_window && tail_tokens == prefill_tail_tokens(c->tail_tokens, n);
}

// --- the fingerprint

uint64_t calibration_fingerprint(const struct calibration *c)
{
    const int options[] = {c->look_ahead, c->chunk_tokens, c->pool_window, c->tail_tokens};
    uint64_t state = fnv1a(FNV_START, &c->main, sizeof c->main);
    state = fnv1a(state, &c->speculator, sizeof c->speculator);
    state = fnv1a(state, options, sizeof options);
    state = fnv1a(state, c->low, sizeof c->low);
    state = fnv1a(state, c->high, sizeof c->high);
    state = fnv1a(state, c->mean, sizeof c->mean);
    state = fnv1a(state, c->deviation, sizeof c->deviation);
    state = fnv1a(state, c->fits, sizeof c->fits);
    return state ? state : 1;
}
