// SPDX-License-Identifier: Apache-2.0
#include "speculator/calibration_fit.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

enum { DOCUMENTS_MIN = 20, NEWTON_STEPS = 20, RATES_BELOW_1 = QUALITY_RATES - 1 };
static const double ridge = 1; // of the standardised weights

// --- the held-out documents

// Two of three documents of each group: a bound on the loss needs more of them than ten weights do.
static bool *held_out_of(const struct fit_document *documents, int n, int n_groups)
{
    bool *held_out = mem_alloc_array((size_t)n, sizeof *held_out);
    int *seen = mem_alloc_array((size_t)n_groups, sizeof *seen);
    for (int i = 0; i < n; i++)
        held_out[i] = seen[documents[i].group]++ % 3 > 0;
    free(seen);
    return held_out;
}

// --- the regression

// A row for each document that is not held out and keep rate.
struct rows {
    double (*features)[QUALITY_FEATURES]; // standardised, but for the constant
    bool *right;
    int n;
    double mean[QUALITY_FEATURES], deviation[QUALITY_FEATURES];
};

static struct rows rows_create(const struct fit_document *documents, int n, const bool *held_out)
{
    struct rows rows = {.n = 0};
    size_t most = (size_t)n * RATES_BELOW_1;
    rows.features = mem_alloc_array(most, sizeof *rows.features);
    rows.right = mem_alloc_array(most, sizeof *rows.right);
    for (int i = 0; i < n; i++) {
        if (held_out[i] || !documents[i].counts) continue;
        for (int r = 0; r < RATES_BELOW_1; r++) {
            calibration_features(&documents[i].evidence, r, rows.features[rows.n]);
            rows.right[rows.n++] = documents[i].right[r];
        }
    }
    return rows;
}

static void rows_free(struct rows *rows)
{
    free(rows->features);
    free(rows->right);
}

static void rows_standardise(struct rows *rows)
{
    for (int f = 1; f < QUALITY_FEATURES; f++) {
        double sum = 0, squares = 0;
        for (int i = 0; i < rows->n; i++)
            sum += rows->features[i][f];
        double mean = rows->mean[f] = sum / rows->n;
        for (int i = 0; i < rows->n; i++)
            squares += (rows->features[i][f] - mean) * (rows->features[i][f] - mean);
        double deviation = rows->deviation[f] = sqrt(squares / rows->n);
        for (int i = 0; i < rows->n; i++)
            rows->features[i][f] = deviation > 1e-9 ? (rows->features[i][f] - mean) / deviation : 0;
    }
}

static double probability(double log_odds)
{
    return 1 / (1 + exp(-log_odds));
}

// The slope of the likelihood, with the ridge, and its curvature: `curve` is symmetric, below its diagonal only.
static void likelihood_at(const struct rows *rows, int n_features, const double w[QUALITY_FEATURES],
                          double slope[QUALITY_FEATURES], double curve[QUALITY_FEATURES][QUALITY_FEATURES])
{
    for (int f = 0; f < n_features; f++) {
        slope[f] = f ? -ridge * w[f] : 0;
        memset(curve[f], 0, sizeof curve[f]);
        curve[f][f] = f ? ridge : 1e-9;
    }
    for (int i = 0; i < rows->n; i++) {
        const double *x = rows->features[i];
        double sum = 0;
        for (int f = 0; f < n_features; f++)
            sum += w[f] * x[f];
        double p = probability(sum), weight = p * (1 - p);
        for (int f = 0; f < n_features; f++) {
            slope[f] += x[f] * (rows->right[i] - p);
            for (int g = 0; g <= f; g++)
                curve[f][g] += weight * x[f] * x[g];
        }
    }
}

// Solves curve * x = slope by Cholesky's method, in place: `slope` becomes x.
static void solve(int n, double curve[QUALITY_FEATURES][QUALITY_FEATURES], double slope[QUALITY_FEATURES])
{
    for (int f = 0; f < n; f++) {
        for (int g = 0; g <= f; g++) {
            for (int k = 0; k < g; k++)
                curve[f][g] -= curve[f][k] * curve[g][k];
            curve[f][g] = f == g ? sqrt(curve[f][f]) : curve[f][g] / curve[g][g];
        }
        for (int k = 0; k < f; k++)
            slope[f] -= curve[f][k] * slope[k];
        slope[f] /= curve[f][f];
    }
    for (int f = n - 1; f >= 0; f--) {
        for (int k = f + 1; k < n; k++)
            slope[f] -= curve[k][f] * slope[k];
        slope[f] /= curve[f][f];
    }
}

// Newton's method: the likelihood is concave, and the ridge keeps its maximum near.
static void fit_weights(const struct rows *rows, int n_features, double weights[QUALITY_FEATURES])
{
    double w[QUALITY_FEATURES] = {0}, step[QUALITY_FEATURES], curve[QUALITY_FEATURES][QUALITY_FEATURES];
    for (int k = 0; k < NEWTON_STEPS; k++) {
        likelihood_at(rows, n_features, w, step, curve);
        solve(n_features, curve, step);
        for (int f = 0; f < n_features; f++)
            w[f] += step[f];
    }
    for (int f = 0; f < QUALITY_FEATURES; f++) { // back to features as they are
        bool used = f && rows->deviation[f] > 1e-9;
        weights[f] = f == 0 ? weights[0] + w[0] : used ? w[f] / rows->deviation[f] : 0;
        if (used) weights[0] -= weights[f] * rows->mean[f];
    }
}

// --- the thresholds

enum { STEPS = 400 };
static const double step_first = -2, step_size = 0.04; // log-odds

// Right answers from full prompts, and how many fewer there are at the chosen rates.
struct group_loss {
    int right, lost;
};

static double loss_bound(const struct group_loss *loss)
{
    return (loss->lost + 1.0) / (loss->right + 1);
}

static bool is_right_at(const struct fit_document *d, double rate)
{
    for (int r = 0; r < RATES_BELOW_1; r++)
        if (quality_rates[r] == rate) return d->right[r];
    return d->counts;
}

static void loss_add(struct group_loss *loss, const struct fit_document *d, double rate)
{
    loss->right += d->counts;
    loss->lost += d->counts - is_right_at(d, rate);
}

// Whether the held-out documents lose little enough with this threshold.
static bool threshold_holds(const struct calibration *calibration, const struct fit_document *documents, int n,
                            const bool *held_out, int n_groups, double quality)
{
    const double most = 1 - quality + 1e-9;
    struct group_loss all = {0, 0}, *groups = mem_alloc_array((size_t)n_groups, sizeof *groups);
    for (int i = 0; i < n; i++) {
        if (!held_out[i]) continue;
        struct rate_choice choice = calibration_choose(calibration, &documents[i].evidence, quality);
        loss_add(&groups[documents[i].group], &documents[i], choice.rate);
        loss_add(&all, &documents[i], choice.rate);
    }
    bool holds = loss_bound(&all) <= most;
    for (int g = 0; g < n_groups; g++)
        holds &= groups[g].right == 0 || loss_bound(&groups[g]) <= GROUP_LOSS * most;
    free(groups);
    return holds;
}

// From the strictest threshold down to the last one that holds, as do all above it.
static double find_threshold(struct calibration *calibration, struct calibration_fit *fit,
                             const struct fit_document *documents, int n, const bool *held_out, int n_groups,
                             int target)
{
    double found = INFINITY;
    for (int k = STEPS - 1; k >= 0; k--) {
        fit->thresholds[target] = step_first + k * step_size;
        if (!threshold_holds(calibration, documents, n, held_out, n_groups, quality_targets[target])) break;
        found = fit->thresholds[target];
    }
    return found;
}

static void fit_thresholds(struct calibration *calibration, struct calibration_fit *fit,
                           const struct fit_document *documents, int n, const bool *held_out, int n_groups)
{
    for (int t = 0; t < QUALITY_TARGETS; t++) {
        double found = find_threshold(calibration, fit, documents, n, held_out, n_groups, t);
        fit->thresholds[t] = t && found < fit->thresholds[t - 1] ? fit->thresholds[t - 1] : found;
    }
}

// --- the whole

static void find_ranges(const struct fit_document *documents, int n, struct calibration *calibration)
{
    for (int i = 0; i < n; i++) {
        double values[EVIDENCE_VALUES];
        calibration_values(&documents[i].evidence, values);
        for (int v = 0; v < EVIDENCE_VALUES; v++) {
            if (i == 0 || values[v] < calibration->low[v]) calibration->low[v] = values[v];
            if (i == 0 || values[v] > calibration->high[v]) calibration->high[v] = values[v];
        }
    }
}

// As calibration_choose() sees documents whose evidence has no margins.
static struct fit_document *documents_as(const struct fit_document *documents, int n, bool margins)
{
    struct fit_document *copy = mem_copy(documents, (size_t)n * sizeof *copy);
    for (int i = 0; i < n; i++)
        copy[i].evidence.has_margins &= margins;
    return copy;
}

static enum status check_documents(const struct fit_document *documents, int n)
{
    int count = 0;
    for (int i = 0; i < n; i++)
        count += documents[i].counts;
    if (count >= DOCUMENTS_MIN) return STATUS_OK;
    return status_fail(STATUS_INVALID,
                       "%d of %d documents are answered right from the full prompt: at least %d are needed", count, n,
                       DOCUMENTS_MIN);
}

enum status calibration_fit(const struct fit_document *documents, int n, int n_groups, struct calibration *calibration)
{
    TRY(check_documents(documents, n));
    bool *held_out = held_out_of(documents, n, n_groups);
    struct rows rows = rows_create(documents, n, held_out);
    rows_standardise(&rows);
    find_ranges(documents, n, calibration);
    for (int margins = 0; margins < 2; margins++) {
        struct fit_document *seen = documents_as(documents, n, margins);
        struct calibration_fit *fit = &calibration->fits[margins];
        *fit = (struct calibration_fit){.weights = {0}};
        fit_weights(&rows, QUALITY_FEATURES - (margins ? 0 : MARGIN_FEATURES), fit->weights);
        fit_thresholds(calibration, fit, seen, n, held_out, n_groups);
        free(seen);
    }
    rows_free(&rows);
    free(held_out);
    return STATUS_OK;
}

static double loss_share(const struct group_loss *loss)
{
    return loss->right ? (double)loss->lost / loss->right : 0;
}

struct fit_outcome calibration_measure(const struct calibration *calibration, const struct fit_document *documents,
                                       int n, int n_groups, int group, double quality)
{
    bool *held_out = held_out_of(documents, n, n_groups);
    struct group_loss *groups = mem_alloc_array((size_t)n_groups, sizeof *groups), all = {0, 0};
    struct fit_outcome outcome = {0};
    int n_held_out = 0;
    for (int i = 0; i < n; i++) {
        const struct fit_document *d = &documents[i];
        if (!held_out[i] || (group >= 0 && d->group != group)) continue;
        struct rate_choice choice = calibration_choose(calibration, &d->evidence, quality);
        n_held_out++;
        outcome.kept += choice.rate;
        outcome.unsure += choice.reason == RATE_UNSURE;
        loss_add(&groups[d->group], d, choice.rate);
        loss_add(&all, d, choice.rate);
    }
    outcome.kept /= n_held_out ? n_held_out : 1;
    outcome.unsure /= n_held_out ? n_held_out : 1;
    outcome.loss = loss_share(&all);
    outcome.loss_worst = outcome.loss;
    for (int g = 0; g < n_groups; g++)
        if (groups[g].right) outcome.loss_worst = fmax(outcome.loss_worst, loss_share(&groups[g]));
    free(groups);
    free(held_out);
    return outcome;
}
