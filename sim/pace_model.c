// SPDX-License-Identifier: Apache-2.0
#include "sim/pace_model.h"

#include <math.h>

#define NEAR 1e-6

enum { FIRST_ROWS = 16 };

struct shape_work pace_shape_work(const struct model_config *c, double balance)
{
    double of_keys = (double)c->n_kv_heads * c->head_size, of_queries = (double)c->n_heads * c->head_size;
    double layer = (double)c->hidden * (2 * of_queries + 2 * of_keys + 3.0 * c->intermediate);
    double row = 2 * layer * c->n_layers / 1e6, all = layer * c->n_layers + (double)c->vocab_size * c->hidden;
    return (struct shape_work){row, row * model_config_pair_rows(c), 2 * of_keys * c->n_layers / all * balance * row};
}

// Returns the work of the pass's prompts that have at least `rows_min` rows. Decode rows come first.
static double row_work_of(const struct scheduler *s, int rows_min)
{
    const struct ragged_batch *batch = &s->pass.builder.batch;
    struct shape_work work = pace_shape_work(s->config, 0);
    double sum = 0;
    for (int i = s->pass.budget.rows.decodes; i < batch->n_seqs; i++) {
        double rows = batch->row_start[i + 1] - batch->row_start[i], entries = batch->kv_len[i];
        if (rows >= rows_min) sum += rows * work.row + rows * (entries + rows / 2) * work.pair;
    }
    return sum;
}

// Returns the work of the pass's prompt rows. In a pass with decodes, reading cached entries counts too.
static double work_of(const struct pace_model *m, const struct scheduler *s)
{
    const struct ragged_batch *batch = &s->pass.builder.batch;
    double sum = row_work_of(s, 1);
    for (int i = s->pass.budget.rows.decodes; s->pass.budget.rows.decodes && i < batch->n_seqs; i++)
        sum += batch->kv_len[i] * pace_shape_work(s->config, m->balance).entry;
    return sum;
}

// Returns the most prompt work that the next mixed pass may have: twice the most so far. A few rows are always allowed.
static double row_work_max(const struct pace_model *m, const struct scheduler *s)
{
    return fmax(2 * m->most, FIRST_ROWS * pace_shape_work(s->config, 0).row);
}

bool pace_is_stale(double decode_us, int decode_rows, int mixed, int decodes)
{
    bool more = decodes > 5 * decode_rows / 4 + 3, fewer = 2 * (decodes + 3) < decode_rows;
    return decode_us == 0 || more || fewer || mixed >= 64;
}

// Scales the measured time of decode rows to another number of decode rows. The difference counts as prompt rows, but
// at most in proportion. More rows count as in passes without decodes, or in mixed ones if these are faster.
double pace_decodes_us_expected(double decode_us, int decode_rows, const double us_per_work[2], double row_work,
                                int decodes)
{
    if (!decodes || decode_us == 0) return 0;
    bool mixed = decodes > decode_rows && us_per_work[1] > 0 && us_per_work[1] < us_per_work[0];
    double row_us = us_per_work[mixed] * row_work;
    double in_proportion = decode_us * decodes / decode_rows, by_rows = decode_us + (decodes - decode_rows) * row_us;
    return decodes > decode_rows ? fmin(by_rows, in_proportion) : fmax(by_rows, in_proportion);
}

static double decodes_us_of(const struct pace_model *m, const struct scheduler *s)
{
    double row_work = pace_shape_work(s->config, 0).row;
    return pace_decodes_us_expected(m->decode_us, m->decode_rows, m->us_per_work, row_work,
                                    s->pass.budget.rows.decodes);
}

static double budget_of(const struct pace_model *m, const struct scheduler *s)
{
    double decodes_us = decodes_us_of(m, s);
    double target_us = s->pace.target_us == PACE_TWICE ? 2 * decodes_us : (double)s->pace.target_us;
    double added_us = fmax(0.88 * target_us - decodes_us, 0.05 * decodes_us);
    double us = m->us_per_work[1] > 0 ? m->us_per_work[1] : m->us_per_work[0];
    return (us > 0 ? added_us / us : row_work_max(m, s)) + m->saved;
}

static bool is_near(double a, double b)
{
    return fabs(a - b) <= NEAR * fmax(fabs(a), fabs(b)) || a == b;
}

// Checks that the work of prompt rows, the budget left and the saved work add up to the budget, in a pass with decodes.
static const char *budget_check(const struct pace_model *m, const struct scheduler *s, double work)
{
    if (s->pace.target_us == PACE_UNLIMITED || !s->pass.budget.rows.decodes) return NULL;
    if (s->pass.n_host_rows && s->backend_samples) return NULL; // see pass_budget.h
    if (pace_is_stale(m->decode_us, m->decode_rows, m->mixed, s->pass.budget.rows.decodes))
        return work > 0 ? "a pass that measures decodes has prompt rows" : NULL;
    if (row_work_of(s, FIRST_ROWS + 1) > (1 + NEAR) * row_work_max(m, s))
        return "prompt rows of mixed passes more than double from one pass to the next";
    double budget = budget_of(m, s), left = s->pass.budget.work_left + s->pace.saved_work;
    return fabs(budget - work - left) <= NEAR * budget
               ? NULL
               : "the budget of prompts in a mixed pass does not follow from pacing";
}

static double between(double value, double least, double most)
{
    return fmin(fmax(value, least), most);
}

static void learn_decodes(struct pace_model *m, int decodes, double us, double row_work)
{
    if (++m->alone < 2) return;
    if (m->decode_us == 0) {
        m->decode_us = us;
    } else if (decodes != m->decode_rows) {
        double expected_us = pace_decodes_us_expected(m->decode_us, m->decode_rows, m->us_per_work, row_work, decodes);
        m->decode_us = fmin(us, 2 * expected_us);
    } else {
        m->decode_us += 0.2 * (between(us, m->decode_us / 2, m->decode_us * 3 / 2) - m->decode_us);
    }
    m->decode_rows = decodes;
    m->mixed = 0;
    if (m->us_per_work[0] == 0) return;
    double rows = m->decode_us / m->us_per_work[0] / row_work;
    m->balance = m->balance_is_known ? fmin(m->balance, rows) : rows;
    m->balance_is_known = true;
}

static void learn_work(struct pace_model *m, int decodes, double added_us, double work, double row_work)
{
    double *known = &m->us_per_work[decodes > 0];
    double measured = added_us / work;
    if (*known == 0) {
        *known = measured;
    } else {
        measured = between(measured, *known / 8, *known * 8);
        *known += (measured > *known ? 0.6 : 0.2) * (measured - *known);
    }
    m->alone = 0;
    if (!decodes) return;
    m->most = fmax(m->most, row_work);
    m->mixed++;
}

// Learns the time of rows that the host samples. They are paced separately if the backend samples.
static void learn_sampling(struct pace_model *m, int rows, int64_t us)
{
    double measured = rows ? (double)us / rows : m->sample_us;
    bool is_first = m->sample_us == 0, is_slower = measured > m->sample_us;
    m->sample_us += (is_first ? 1 : is_slower ? 0.6 : 0.2) * (measured - m->sample_us);
}

static const char *learned_check(const struct pace_model *m, const struct pace *p)
{
    bool same = is_near(m->decode_us, p->decode_us) && is_near(m->balance, p->balance_rows) &&
                is_near(m->us_per_work[0], p->us_per_work[0]) && is_near(m->us_per_work[1], p->us_per_work[1]) &&
                is_near(m->sample_us, p->sample_us);
    return same ? NULL : "what pacing learned from a pass is wrong";
}

const char *pace_model_step(struct pace_model *m, const struct scheduler *s, int64_t us, int64_t sampling_us)
{
    if (!m->is_started) *m = (struct pace_model){.balance = 16, .is_started = true};
    if (s->backend_samples) {
        us -= sampling_us;
        learn_sampling(m, s->pass.n_host_rows, sampling_us);
    }
    double work = work_of(m, s);
    const char *problem = budget_check(m, s, work);
    if (work > 0) {
        learn_work(m, s->pass.budget.rows.decodes, fmax((double)us - decodes_us_of(m, s), (double)us / 50), work,
                   row_work_of(s, 1));
    } else if (s->pass.budget.rows.decodes && s->pass.builder.batch.n_rows == s->pass.builder.batch.n_seqs) {
        learn_decodes(m, s->pass.budget.rows.decodes, (double)us, pace_shape_work(s->config, 0).row);
    }
    m->saved = s->pace.saved_work;
    return problem ? problem : learned_check(m, &s->pace);
}
