// SPDX-License-Identifier: Apache-2.0
#include "speculator/calibration_fit.h"

#include <math.h>
#include <stdlib.h>

#include "base/mem.h"

enum { DOCUMENTS_MIN = 20, SWEEPS = 400, RATES_BELOW_1 = QUALITY_RATES - 1 };
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
    double *log_odds;
    int n;
    double mean[QUALITY_FEATURES], deviation[QUALITY_FEATURES];
};

static struct rows rows_create(const struct fit_document *documents, int n, const bool *held_out)
{
    struct rows rows = {.n = 0};
    size_t most = (size_t)n * RATES_BELOW_1;
    rows.features = mem_alloc_array(most, sizeof *rows.features);
    rows.right = mem_alloc_array(most, sizeof *rows.right);
    rows.log_odds = mem_alloc_array(most, sizeof *rows.log_odds);
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
    free(rows->log_odds);
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

// A step of one weight towards the maximum: the second derivative is at most a quarter of the sum of squares, so no
// step goes too far. The weights of the keep rate and the coverage stay at 0 or above.
static double weight_step(const struct rows *rows, int f, double weight)
{
    double slope = f ? -ridge * weight : 0, curve = f ? ridge : 0;
    for (int i = 0; i < rows->n; i++) {
        double x = f ? rows->features[i][f] : 1;
        slope += x * (rows->right[i] - probability(rows->log_odds[i]));
        curve += x * x / 4;
    }
    double next = curve > 0 ? weight + slope / curve : weight;
    return (f == 1 || f == 2) && next < 0 ? 0 : next;
}

static void fit_weights(struct rows *rows, int n_features, double weights[QUALITY_FEATURES])
{
    double w[QUALITY_FEATURES] = {0};
    for (int i = 0; i < rows->n; i++)
        rows->log_odds[i] = 0;
    for (int sweep = 0; sweep < SWEEPS; sweep++) {
        for (int f = 0; f < n_features; f++) {
            double change = weight_step(rows, f, w[f]) - w[f];
            w[f] += change;
            for (int i = 0; i < rows->n; i++)
                rows->log_odds[i] += change * (f ? rows->features[i][f] : 1);
        }
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

struct group_loss {
    int documents, wrong;
};

static double loss_bound(const struct group_loss *loss)
{
    return (loss->wrong + 1.0) / (loss->documents + 1);
}

// Whether the held-out documents lose little enough with this threshold.
static bool threshold_holds(const struct calibration *calibration, const struct fit_document *documents, int n,
                            const bool *held_out, int n_groups, double quality)
{
    struct group_loss all = {0, 0}, *groups = mem_alloc_array((size_t)n_groups, sizeof *groups);
    for (int i = 0; i < n; i++) {
        const struct fit_document *d = &documents[i];
        if (!held_out[i] || !d->counts) continue;
        struct rate_choice choice = calibration_choose(calibration, &d->evidence, quality);
        bool wrong = false;
        for (int r = 0; r < RATES_BELOW_1; r++)
            wrong |= quality_rates[r] == choice.rate && !d->right[r];
        groups[d->group].documents++;
        groups[d->group].wrong += wrong;
        all.documents++;
        all.wrong += wrong;
    }
    bool holds = loss_bound(&all) <= 1 - quality + 1e-9;
    for (int g = 0; g < n_groups; g++)
        holds &= groups[g].documents == 0 || loss_bound(&groups[g]) <= 1 - quality + 1e-9;
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
        fit_weights(&rows, margins ? QUALITY_FEATURES : QUALITY_FEATURES - 2, fit->weights);
        fit_thresholds(calibration, fit, seen, n, held_out, n_groups);
        free(seen);
    }
    rows_free(&rows);
    free(held_out);
    return STATUS_OK;
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
        bool wrong = false;
        for (int r = 0; r < RATES_BELOW_1; r++)
            wrong |= quality_rates[r] == choice.rate && !d->right[r];
        n_held_out++;
        outcome.kept += choice.rate;
        outcome.unsure += choice.reason == RATE_UNSURE;
        if (!d->counts) continue;
        all.documents++;
        all.wrong += wrong;
        groups[d->group].documents++;
        groups[d->group].wrong += wrong;
    }
    outcome.kept /= n_held_out ? n_held_out : 1;
    outcome.unsure /= n_held_out ? n_held_out : 1;
    outcome.loss = all.documents ? (double)all.wrong / all.documents : 0;
    for (int g = 0; g < n_groups; g++) {
        double loss = groups[g].documents ? (double)groups[g].wrong / groups[g].documents : 0;
        if (loss > outcome.loss_worst) outcome.loss_worst = loss;
    }
    free(groups);
    free(held_out);
    return outcome;
}
