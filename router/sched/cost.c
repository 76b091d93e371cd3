// SPDX-License-Identifier: Apache-2.0
// The coefficients solve the normal equations of the sums over all sizes. They must not be negative, so the equations
// are solved for each of the seven subsets of the three terms. The best solution with no negative coefficient is used.
#include "router/sched/cost.h"

#include <limits.h>
#include <math.h>

#define MOMENT_DECAY 0.9 // for the sums of a size with each further pass of that size: half is left after 7 passes
#define MEMORY_US    600000000 // ten minutes
#define SHARE_DECAY  0.95      // for the sums of a share with each further pass
#define SHARE_MIN    0.02      // prompts always get some time
#define OUTLIER      2.0       // factor over the prediction: longer passes weigh less
#define NOISE_DECAY  0.995     // for the squared errors with each further pass
enum { PASSES_MIN = 4 };

// Small weights (fixed, row, pair) pull the three coefficients towards zero. The row coefficient has the smallest
// weight. So if the passes cannot tell the terms apart, for example because all have one size, the fit attributes the
// time to the rows.
static const double pull[3] = {1e-3, 1e-7, 1e-4};

double cost_pairs(double rows, double cached)
{
    return rows * cached + rows * (rows + 1) / 2;
}

double cost_pass_us(const struct cost_model *m, double passes, double rows, double pairs)
{
    return m->fixed_us * passes + m->row_us * rows + m->pair_us * pairs;
}

int cost_size(int64_t rows)
{
    int size = 0;
    while (rows > 1 && size < COST_SIZES - 1) {
        rows >>= 1;
        size++;
    }
    return size;
}

// Solves the n equations of the matrix a and the right side b in place, by elimination. The matrix is symmetric
// positive definite.
static void equations_solve(double a[3][3], double b[3], int n)
{
    for (int k = 0; k < n; k++) {
        for (int i = k + 1; i < n; i++) {
            double factor = a[i][k] / a[k][k];
            for (int j = k; j < n; j++)
                a[i][j] -= factor * a[k][j];
            b[i] -= factor * b[k];
        }
    }
    for (int k = n - 1; k >= 0; k--) {
        for (int j = k + 1; j < n; j++)
            b[k] -= a[k][j] * b[j];
        b[k] /= a[k][k];
    }
}

static void noise_learn(struct cost_model *m, double us, double predicted_us)
{
    double error = fmin(us / predicted_us - 1, 1);
    m->predicted = NOISE_DECAY * m->predicted + 1;
    m->errors = NOISE_DECAY * m->errors + error * error;
}

double cost_noise(const struct cost_model *m)
{
    return m->predicted > 0 ? sqrt(m->errors / m->predicted) : 0;
}

static bool moments_known(const struct cost_moments *moments, int64_t now_us)
{
    return moments->max_rows && now_us - moments->learned_us < MEMORY_US;
}

// Forgets the sizes that did not occur for MEMORY_US. Returns true if any size is left.
static bool moments_forget(struct cost_model *m, int64_t now_us)
{
    bool left = false;
    for (int size = 0; size < COST_SIZES; size++) {
        struct cost_moments *moments = &m->moments[size];
        if (!moments_known(moments, now_us)) *moments = (struct cost_moments){.max_rows = 0};
        left |= moments->max_rows > 0;
    }
    return left;
}

static void model_fit(struct cost_model *m)
{
    double g[3][3] = {{0}}, s[3] = {0};
    for (int size = 0; size < COST_SIZES; size++) {
        int at = 0;
        for (int i = 0; i < 3; i++) {
            for (int j = i; j < 3; j++)
                g[i][j] += m->moments[size].products[at++];
            s[i] += m->moments[size].sums[i];
        }
    }
    // Scales each term to unit size, because rows and pairs differ by orders of magnitude.
    double unit[3];
    for (int i = 0; i < 3; i++)
        unit[i] = 1 / sqrt(g[i][i]);
    double best[3] = {0}, best_gain = 0;
    for (int subset = 1; subset < 8; subset++) {
        int term[3], n = 0;
        for (int i = 0; i < 3; i++) {
            if (subset >> i & 1) term[n++] = i;
        }
        double a[3][3], x[3], gain = 0;
        bool valid = true;
        for (int i = 0; i < n; i++) {
            for (int j = 0; j < n; j++) {
                int low = term[i] < term[j] ? term[i] : term[j], high = term[i] < term[j] ? term[j] : term[i];
                a[i][j] = g[low][high] * unit[low] * unit[high] + (i == j ? pull[term[i]] : 0);
            }
            x[i] = s[term[i]] * unit[term[i]];
        }
        equations_solve(a, x, n);
        for (int i = 0; i < n; i++) {
            valid &= isfinite(x[i]) && x[i] >= 0;
            gain += x[i] * s[term[i]] * unit[term[i]]; // reduction of the squared error by these terms
        }
        if (!valid || gain <= best_gain) continue;
        best_gain = gain;
        for (int i = 0; i < 3; i++)
            best[i] = 0;
        for (int i = 0; i < n; i++)
            best[term[i]] = x[i] * unit[term[i]];
    }
    m->fixed_us = best[0];
    m->row_us = best[1];
    m->pair_us = best[2];
}

void cost_learn(struct cost_model *m, int64_t rows, int64_t pairs, int64_t pass_us, int64_t now_us)
{
    if (rows < 1 || pairs < rows || pass_us < 1) return;
    if (!moments_forget(m, now_us)) m->passes = 0;
    double us = (double)pass_us, scale = us;
    if (m->passes >= PASSES_MIN) {
        // Errors are relative to the prediction, so slow and fast passes weigh the same, and varying times are
        // averaged. A pass that takes over OUTLIER times the prediction weighs less. Its time is not clipped, because
        // the prediction may be wrong, as for the first short passes after a long prompt. Clipped times would then be
        // wrong too, and would stay in the sums for many passes.
        double predicted_us = cost_pass_us(m, 1, (double)rows, (double)pairs);
        scale = fmax(us / OUTLIER, predicted_us);
        noise_learn(m, us, predicted_us);
    }
    const double term[3] = {1 / scale, (double)rows / scale, (double)pairs / scale};
    struct cost_moments *moments = &m->moments[cost_size(rows)];
    int at = 0;
    for (int i = 0; i < 3; i++) {
        for (int j = i; j < 3; j++, at++)
            moments->products[at] = MOMENT_DECAY * moments->products[at] + term[i] * term[j];
        moments->sums[i] = MOMENT_DECAY * moments->sums[i] + term[i] * us / scale;
    }
    if (m->passes < INT_MAX) m->passes++;
    if (rows > moments->max_rows) moments->max_rows = rows;
    moments->learned_us = now_us;
    model_fit(m);
}

void cost_prompt_done(struct cost_model *m, int64_t rows, int64_t now_us)
{
    if (rows < m->done_rows && now_us - m->done_us < MEMORY_US) return;
    m->done_rows = rows;
    m->done_us = now_us;
}

void cost_begin(struct cost_model *m, const struct cost_pass *passes, int n, int64_t now_us)
{
    for (int round = 0; round < PASSES_MIN && m->passes < PASSES_MIN; round++)
        for (int i = 0; i < n; i++)
            cost_learn(m, passes[i].rows, passes[i].pairs, passes[i].us, now_us);
    for (int i = 0; i < n; i++)
        cost_prompt_done(m, passes[i].pairs / passes[i].rows + passes[i].rows / 2, now_us);
}

bool cost_knows(const struct cost_model *m, int64_t rows, int64_t now_us)
{
    if (m->passes < PASSES_MIN) return false;
    if (4 * m->done_rows >= rows && now_us - m->done_us < MEMORY_US) return true;
    for (int size = 0; size < COST_SIZES; size++) {
        if (moments_known(&m->moments[size], now_us) && 4 * m->moments[size].max_rows >= rows) return true;
    }
    return false;
}

void cost_share_learn(struct cost_share *s, double prompt_us, double pass_us)
{
    s->prompt_us = SHARE_DECAY * s->prompt_us + fmin(fmax(prompt_us, 0), pass_us);
    s->pass_us = SHARE_DECAY * s->pass_us + pass_us;
}

double cost_share_of(const struct cost_share *s)
{
    return s->pass_us > 0 ? fmax(s->prompt_us / s->pass_us, SHARE_MIN) : 1;
}
