// SPDX-License-Identifier: Apache-2.0
#include "worker/pace.h"

#include <limits.h>
#include <math.h>

enum {
    MIXED_PASSES_MAX = 64, // passes with decode and prompt rows until a pass with decode rows only is measured again
    BALANCE_ROWS = 16,     // value of balance_rows until it is measured
};

// Fraction of the target that is used; the rest covers passes that take longer than predicted.
static const double AIM = 0.88;
// Budget of prompts if the decode rows alone reach the target, as a fraction of the time of the decode rows.
static const double BUDGET_MIN = 0.05;
// Largest part of the added time that may be spent on sampling on the host.
static const double SAMPLING_MAX = 0.5;
// Weight of a new measurement. Slower measurements weigh more, because requests have waited for slow passes.
static const double LEARN = 0.2, LEARN_SLOWER = 0.6;
// The first measurement for a new number of decodes is capped at this multiple of the expected time.
static const double FRESH_MAX = 2;

void pace_init(struct pace *p, const struct model_config *c, int64_t target_us)
{
    double heads = (double)c->n_heads * c->head_size, kv_heads = (double)c->n_kv_heads * c->head_size;
    double gemms = (2 * heads + 2 * kv_heads + layer_mlp_matrices(&c->layer) * (double)c->intermediate) * c->hidden;
    double weights = c->n_layers * gemms + (double)c->hidden * c->vocab_size;
    double row_work = 2e-6 * c->n_layers * gemms;
    *p = (struct pace){.target_us = target_us,
                       .row_work = row_work,
                       .pair_work = row_work * model_config_pair_rows(c),
                       .entry_share = 2 * c->n_layers * kv_heads / weights,
                       .balance_rows = BALANCE_ROWS};
}

bool pace_measures_decodes(const struct pace *p, int decodes)
{
    // A few decodes more or less make no difference.
    bool other = decodes > p->decode_rows * 5 / 4 + 3 || (decodes + 3) * 2 < p->decode_rows;
    bool is_stale = p->decode_us == 0 || other || p->mixed_passes >= MIXED_PASSES_MAX;
    return p->target_us != PACE_UNLIMITED && decodes > 0 && is_stale;
}

// Returns the expected time of the decode rows alone; 0: not known. Each row more or fewer than decode_rows changes the
// time by the time of a prompt row, but at most by the mean time of a row in the measured pass. The time per work of
// passes without decodes includes the fixed time of a pass, so more rows count at most as in passes with decodes.
static double pace_decodes_us(const struct pace *p, int decodes)
{
    if (decodes == 0 || p->decode_us == 0) return 0;
    double other = decodes - p->decode_rows, row_us = p->us_per_work[0] * p->row_work;
    if (other > 0 && p->us_per_work[1] > 0) row_us = fmin(row_us, p->us_per_work[1] * p->row_work);
    return p->decode_us + other * fmin(row_us, p->decode_us / p->decode_rows);
}

// Returns the time that the target allows in addition to decode rows that take `decodes_us`.
static double pace_added_us(const struct pace *p, double decodes_us)
{
    double target_us = AIM * (p->target_us == PACE_TWICE ? 2 * decodes_us : (double)p->target_us);
    return fmax(target_us - decodes_us, BUDGET_MIN * decodes_us);
}

double pace_prompt_us(const struct pace *p, int decodes, int sampled)
{
    double added_us = pace_added_us(p, pace_decodes_us(p, decodes));
    return added_us - fmin(sampled * p->sample_us, SAMPLING_MAX * added_us);
}

int pace_sampled_max(const struct pace *p)
{
    if (p->target_us == PACE_UNLIMITED || p->decode_us == 0 || p->sample_us == 0) return INT_MAX;
    double rows = SAMPLING_MAX * pace_added_us(p, p->decode_us) / p->sample_us;
    return rows < 1 ? 1 : rows < INT_MAX ? (int)rows : INT_MAX;
}

// Returns the known value, moved towards the measured value. If `known` is 0, no value is known yet.
static double learn(double known, double measured)
{
    if (known == 0) return measured;
    return known + (measured > known ? LEARN_SLOWER : LEARN) * (measured - known);
}

void pace_sampling_end(struct pace *p, const struct pace_rows *rows, int64_t us)
{
    if (rows->sampled > 0) p->sample_us = learn(p->sample_us, (double)us / rows->sampled);
}

static double clamp(double value, double min, double max)
{
    return value < min ? min : value > max ? max : value;
}

static void pace_learn_decodes(struct pace *p, int decodes, double us)
{
    if (++p->decode_passes < 2) return;
    bool fresh = p->decode_us == 0 || decodes != p->decode_rows;
    double expected = pace_decodes_us(p, decodes);
    double measured = fresh ? us : clamp(us, 0.5 * p->decode_us, 1.5 * p->decode_us);
    // the pass may have been delayed by something else
    if (fresh && expected > 0) measured = fmin(us, FRESH_MAX * expected);
    p->decode_us = fresh ? measured : p->decode_us + LEARN * (measured - p->decode_us);
    p->decode_rows = decodes;
    p->mixed_passes = 0;
    // A pass with few decode rows is bound by reading weights, at the same speed as reading entries. A pass with many
    // decode rows is bound by arithmetic.
    if (p->us_per_work[0] == 0) return;
    double measured_rows = p->decode_us / (p->us_per_work[0] * p->row_work);
    if (p->balance_is_known && measured_rows > p->balance_rows) return;
    p->balance_rows = measured_rows;
    p->balance_is_known = true;
}

void pace_pass_end(struct pace *p, const struct pace_rows *rows, int64_t us)
{
    if (rows->work == 0) {
        if (rows->decodes > 0) pace_learn_decodes(p, rows->decodes, (double)us);
        return;
    }
    p->decode_passes = 0;
    double added_us = (double)us - pace_decodes_us(p, rows->decodes);
    if (added_us < 0.02 * (double)us) added_us = 0.02 * (double)us;
    double *us_per_work = &p->us_per_work[rows->decodes > 0], measured = added_us / rows->work, known = *us_per_work;
    if (known > 0) measured = clamp(measured, known / 8, known * 8);
    *us_per_work = learn(known, measured);
    if (rows->decodes == 0) return;
    p->mixed_work_max = fmax(p->mixed_work_max, rows->row_work);
    p->mixed_passes++;
}
