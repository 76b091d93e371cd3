// SPDX-License-Identifier: Apache-2.0
#include "speculator/calibration_fit.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"

enum { DOCUMENTS_MIN = 20, NEWTON_STEPS = 20, RATES_BELOW_1 = QUALITY_RATES - 1 };
static const double ridge = 3; // penalty on the weights of standardised values and their products

// --- the regression

static void find_scales(const struct fit_document *documents, int n, struct calibration *c)
{
    double values[QUALITY_VALUES], squares[QUALITY_VALUES] = {0};
    int rows = 0;
    for (int i = 0; i < n; i++) {
        for (int r = 0; r < RATES_BELOW_1 && documents[i].counts; r++) {
            calibration_values(&documents[i].evidence, r, values);
            rows++;
            for (int v = 0; v < QUALITY_VALUES; v++) { // Welford's method
                double difference = values[v] - c->mean[v];
                c->mean[v] += difference / rows;
                squares[v] += difference * (values[v] - c->mean[v]);
            }
        }
    }
    for (int v = 0; v < QUALITY_VALUES; v++)
        c->deviation[v] = sqrt(squares[v] / rows);
}

// Rows of the regression: one for each keep rate below 1 of each document that is answered right from the full prompt.
struct rows {
    double (*features)[QUALITY_FEATURES];
    bool *right;
    int *fold;
    int n, n_features;
};

static struct rows rows_create(const struct calibration *c, const struct fit_document *documents, const int *folds,
                               int n)
{
    size_t most = (size_t)n * RATES_BELOW_1;
    struct rows rows = {.features = mem_alloc_array(most, sizeof *rows.features),
                        .right = mem_alloc_array(most, sizeof *rows.right),
                        .fold = mem_alloc_array(most, sizeof *rows.fold)};
    for (int i = 0; i < n; i++) {
        for (int r = 0; r < RATES_BELOW_1 && documents[i].counts; r++) {
            rows.n_features = calibration_features(c, &documents[i].evidence, r, rows.features[rows.n]);
            rows.right[rows.n] = documents[i].right[r];
            rows.fold[rows.n++] = folds[i];
        }
    }
    return rows;
}

static void rows_free(struct rows *rows)
{
    free(rows->features);
    free(rows->right);
    free(rows->fold);
}

// Computes the gradient (`slope`) and the negative second derivatives (`curve`) of the penalised log-likelihood. Leaves
// out the rows of `fold`. Only the lower triangle of the symmetric `curve` is set.
static void likelihood_at(const struct rows *rows, int fold, const double w[QUALITY_FEATURES],
                          double slope[QUALITY_FEATURES], double curve[QUALITY_FEATURES][QUALITY_FEATURES])
{
    for (int f = 0; f < rows->n_features; f++) {
        slope[f] = f ? -ridge * w[f] : 0;
        memset(curve[f], 0, sizeof curve[f]);
        curve[f][f] = f ? ridge : 1e-9;
    }
    for (int i = 0; i < rows->n; i++) {
        if (rows->fold[i] == fold) continue;
        const double *x = rows->features[i];
        double log_odds = 0;
        for (int f = 0; f < rows->n_features; f++)
            log_odds += w[f] * x[f];
        double p = 1 / (1 + exp(-log_odds)), weight = p * (1 - p);
        for (int f = 0; f < rows->n_features; f++) {
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

// Fits the weights by Newton's method to all rows except the rows of `fold`; FOLDS leaves out no row. The penalised
// log-likelihood is concave, and the penalty keeps the weights small.
static void fit_weights(const struct rows *rows, int fold, double w[QUALITY_FEATURES])
{
    double step[QUALITY_FEATURES], curve[QUALITY_FEATURES][QUALITY_FEATURES], size = 1;
    memset(w, 0, QUALITY_FEATURES * sizeof *w);
    for (int k = 0; k < NEWTON_STEPS && size > 1e-9; k++) {
        likelihood_at(rows, fold, w, step, curve);
        solve(rows->n_features, curve, step);
        size = 0;
        for (int f = 0; f < rows->n_features; f++) {
            w[f] += step[f];
            size = fmax(size, fabs(step[f]));
        }
    }
}

// --- the prices

// Counts of a group at the chosen rates, compared with the full prompts.
struct group_loss {
    int right;           // right answers from the full prompts
    int lost;            // right answers lost minus right answers gained by the pruned prompts
    int lost_and_gained; // right answers lost plus right answers gained
};

// Returns an upper bound on the loss with a confidence of 90 %, from the normal approximation of the difference of two
// counts.
static double loss_bound(const struct group_loss *loss)
{
    return (loss->lost + 1.282 * sqrt(loss->lost_and_gained) + 1) / (loss->right + 1);
}

static bool is_right_at(const struct fit_document *d, double rate)
{
    for (int r = 0; r < RATES_BELOW_1; r++)
        if (quality_rates[r] == rate) return d->right[r];
    return d->counts;
}

static void loss_add(struct group_loss *loss, const struct fit_document *d, double rate)
{
    bool right = is_right_at(d, rate);
    loss->right += d->counts;
    loss->lost += d->counts - right;
    loss->lost_and_gained += d->counts != right;
}

// Returns true if the price is acceptable for the quality, see calibration_fit.h.
static bool price_holds(const struct fit_document *documents, const struct predicted_losses *predicted, int n,
                        int n_groups, double quality, double price)
{
    const double most = 1 - quality + 1e-9;
    struct group_loss all = {0}, *groups = mem_alloc_array((size_t)n_groups, sizeof *groups);
    for (int i = 0; i < n; i++) {
        struct rate_choice choice = rate_at_price(predicted[i].at, price);
        loss_add(&groups[documents[i].group], &documents[i], choice.rate);
        loss_add(&all, &documents[i], choice.rate);
    }
    bool holds = loss_bound(&all) <= most;
    for (int g = 0; g < n_groups; g++)
        holds &= groups[g].right == 0 || loss_bound(&groups[g]) <= GROUP_LOSS * most;
    free(groups);
    return holds;
}

enum { PRICES = 16 * 16 }; // prices to try: from 2^10 down to 2^-5.94 in steps of a factor 2^(1/16)

// Returns the lowest price such that it and all higher prices are acceptable. Returns INFINITY if even the highest
// price is not acceptable.
static double find_price(const struct fit_document *documents, const struct predicted_losses *predicted, int n,
                         int n_groups, double quality)
{
    double found = INFINITY;
    for (int k = 0; k < PRICES; k++) {
        double price = exp2(10 - k / 16.0);
        if (!price_holds(documents, predicted, n, n_groups, quality, price)) break;
        found = price;
    }
    return found;
}

int calibration_documents_for(double quality)
{
    return quality < 1 ? (int)ceil(LOSSES_MIN / (1 - quality) - 1e-6) : INT_MAX;
}

double calibration_highest_quality(const struct calibration *calibration)
{
    double highest = 0;
    for (int t = 0; t < QUALITY_TARGETS; t++)
        if (isfinite(calibration->fits[0].prices[t]) || isfinite(calibration->fits[1].prices[t]))
            highest = quality_targets[t];
    return highest;
}

static int count_right(const struct fit_document *documents, int n)
{
    int count = 0;
    for (int i = 0; i < n; i++)
        count += documents[i].counts;
    return count;
}

static void fit_prices(struct calibration_fit *fit, const struct fit_document *documents,
                       const struct predicted_losses *predicted, int n, int n_groups)
{
    const int right = count_right(documents, n);
    for (int t = 0; t < QUALITY_TARGETS; t++) {
        const bool enough = right >= calibration_documents_for(quality_targets[t]);
        double found = enough ? find_price(documents, predicted, n, n_groups, quality_targets[t]) : INFINITY;
        fit->prices[t] = t ? fmax(found, fit->prices[t - 1]) : found;
    }
}

// --- the fit

static void find_ranges(const struct fit_document *documents, int n, struct calibration *calibration)
{
    for (int i = 0; i < n; i++) {
        double values[EVIDENCE_VALUES];
        calibration_range_values(&documents[i].evidence, values);
        for (int v = 0; v < EVIDENCE_VALUES; v++) {
            if (i == 0 || values[v] < calibration->low[v]) calibration->low[v] = values[v];
            if (i == 0 || values[v] > calibration->high[v]) calibration->high[v] = values[v];
        }
    }
}

static int *folds_create(const struct fit_document *documents, int n, int n_groups)
{
    int *folds = mem_alloc_array((size_t)n, sizeof *folds), *seen = mem_alloc_array((size_t)n_groups, sizeof *seen);
    for (int i = 0; i < n; i++)
        folds[i] = seen[documents[i].group]++ % FOLDS;
    free(seen);
    return folds;
}

// Returns a copy of the documents, which the caller frees. If `margins` is false, the copy has no margins, as if the
// host had no logits.
static struct fit_document *documents_as(const struct fit_document *documents, int n, bool margins)
{
    struct fit_document *copy = mem_copy(documents, (size_t)n * sizeof *copy);
    for (int i = 0; i < n; i++)
        copy[i].evidence.has_margins &= margins;
    return copy;
}

static void fit_one(struct calibration *c, struct calibration_fit *fit, const struct fit_document *documents,
                    const int *folds, int n, int n_groups, struct predicted_losses *predicted)
{
    struct rows rows = rows_create(c, documents, folds, n);
    for (int fold = 0; fold <= FOLDS; fold++) {
        fit_weights(&rows, fold, fit->weights);
        for (int i = 0; i < n; i++)
            if (folds[i] == fold) calibration_losses(c, &documents[i].evidence, predicted[i].at);
    }
    fit_prices(fit, documents, predicted, n, n_groups);
    rows_free(&rows);
}

static enum status check_documents(const struct fit_document *documents, int n)
{
    const int count = count_right(documents, n);
    if (count >= DOCUMENTS_MIN) return STATUS_OK;
    return status_fail(STATUS_INVALID,
                       "%d of %d documents are answered right from the full prompt: at least %d are needed", count, n,
                       DOCUMENTS_MIN);
}

enum status calibration_fit(const struct fit_document *documents, int n, int n_groups, struct calibration *calibration,
                            struct predicted_losses *predicted)
{
    TRY(check_documents(documents, n));
    int *folds = folds_create(documents, n, n_groups);
    find_ranges(documents, n, calibration);
    find_scales(documents, n, calibration);
    for (int margins = 0; margins < 2; margins++) {
        struct fit_document *seen = documents_as(documents, n, margins);
        fit_one(calibration, &calibration->fits[margins], seen, folds, n, n_groups, predicted);
        free(seen);
    }
    free(folds);
    return STATUS_OK;
}

static double loss_share(const struct group_loss *loss)
{
    return loss->right ? (double)loss->lost / loss->right : 0;
}

struct fit_outcome calibration_measure(const struct calibration *calibration, const struct fit_document *documents,
                                       const struct predicted_losses *predicted, int n, int n_groups, int group,
                                       double quality)
{
    struct group_loss *groups = mem_alloc_array((size_t)n_groups, sizeof *groups), all = {0};
    struct fit_outcome outcome = {0};
    int n_measured = 0;
    for (int i = 0; i < n; i++) {
        const struct fit_document *d = &documents[i];
        if (group >= 0 && d->group != group) continue;
        double price = calibration_price(&calibration->fits[d->evidence.has_margins], quality);
        struct rate_choice choice = rate_at_price(predicted[i].at, price);
        n_measured++;
        outcome.kept += choice.rate;
        outcome.unsure += choice.reason == RATE_UNSURE;
        loss_add(&groups[d->group], d, choice.rate);
        loss_add(&all, d, choice.rate);
    }
    outcome.kept /= n_measured ? n_measured : 1;
    outcome.unsure /= n_measured ? n_measured : 1;
    outcome.loss = loss_share(&all);
    outcome.loss_worst = outcome.loss;
    for (int g = 0; g < n_groups; g++)
        if (groups[g].right) outcome.loss_worst = fmax(outcome.loss_worst, loss_share(&groups[g]));
    free(groups);
    return outcome;
}
