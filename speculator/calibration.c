// SPDX-License-Identifier: Apache-2.0
#include "speculator/calibration.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/fnv.h"

const double quality_targets[QUALITY_TARGETS] = {0.5, 0.7, 0.8, 0.9, 0.95, 0.97, 0.98, 0.99, 0.995};

void calibration_features(const struct evidence *evidence, int rate, double features[QUALITY_FEATURES])
{
    const double values[QUALITY_FEATURES] = {
        1,
        log2(quality_rates[rate] / (1 - quality_rates[rate])), // nothing is lost as the rate nears 1
        evidence->floor[rate],
        evidence->entropy,
        evidence->agreement,
        log2(evidence->tokens),
        evidence->margin,
        evidence->margin_least,
    };
    memcpy(features, values, sizeof values);
}

void calibration_values(const struct evidence *evidence, double values[EVIDENCE_VALUES])
{
    const double all[EVIDENCE_VALUES] = {evidence->tokens,      evidence->floor[0], evidence->entropy,
                                         evidence->agreement,   evidence->ended,    evidence->margin,
                                         evidence->margin_least};
    memcpy(values, all, sizeof all);
}

// --- the choice

static bool is_in_range(const struct calibration *c, const struct evidence *evidence)
{
    double values[EVIDENCE_VALUES];
    int n = evidence->has_margins ? EVIDENCE_VALUES : EVIDENCE_VALUES - 2;
    calibration_values(evidence, values);
    for (int i = 0; i < n; i++) {
        double slack = 0.1 * (c->high[i] - c->low[i]);
        if (!(values[i] >= c->low[i] - slack && values[i] <= c->high[i] + slack)) return false;
    }
    return true;
}

static double threshold_of(const struct calibration_fit *fit, double quality)
{
    for (int t = 0; t < QUALITY_TARGETS; t++)
        if (quality <= quality_targets[t] + 1e-9) return fit->thresholds[t];
    return INFINITY;
}

static double log_odds(const struct calibration_fit *fit, const struct evidence *evidence, int rate)
{
    double features[QUALITY_FEATURES], sum = 0;
    calibration_features(evidence, rate, features);
    for (int f = 0; f < QUALITY_FEATURES; f++)
        sum += fit->weights[f] * features[f];
    return sum;
}

struct rate_choice calibration_choose(const struct calibration *c, const struct evidence *evidence, double quality)
{
    const struct calibration_fit *fit = &c->fits[evidence->has_margins];
    const struct rate_choice everything = {1, quality >= 1 ? RATE_QUALITY : RATE_UNSURE};
    double threshold = threshold_of(fit, quality);
    if (quality >= 1 || !isfinite(threshold) || !is_in_range(c, evidence)) return everything;
    for (int r = 0; r < QUALITY_RATES - 1; r++)
        if (log_odds(fit, evidence, r) >= threshold) return (struct rate_choice){quality_rates[r], RATE_QUALITY};
    return everything;
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
    state = fnv1a(state, c->fits, sizeof c->fits);
    return state ? state : 1;
}
