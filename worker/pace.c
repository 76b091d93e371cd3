// SPDX-License-Identifier: Apache-2.0
// See pace.h.
#include "worker/pace.h"

#include <limits.h>
#include <math.h>

enum {
    CHUNK_FIRST = 16,      // rows in the first mixed pass, while their cost is not known
    CHUNK_MIN = 128,       // rows without decodes: smaller chunks cost more per row
    CHUNK_US = 500000,     // without decodes
    MIXED_PASSES_MAX = 64, // until decodes are measured alone again
    BALANCE_ROWS = 16,     // until it is measured
};

// Fraction of the target that is used; the rest covers passes that take longer than predicted.
static const double AIM = 0.88;
// Budget of prompts as a fraction of the decodes' time, when the decodes alone reach the target.
static const double BUDGET_MIN = 0.05;
// Largest part of the budget that may be spent on reading cached entries.
static const double READING_MAX = 0.65;
// Largest part of the time beside decodes that may be spent on sampling on the host.
static const double SAMPLING_MAX = 0.5;
// Weight of a new measurement. Slow passes weigh more: requests have waited for them.
static const double LEARN = 0.2, LEARN_SLOWER = 0.6;
// Largest time that is learned of another number of decodes, as a multiple of what earlier measurements expect.
static const double FRESH_MAX = 2;
// Growth of the prompt work in mixed passes, from one pass to the next.
static const double GROW = 2;

void pace_init(struct pace *p, const struct model_config *c, int64_t target_us)
{
    double heads = (double)c->n_heads * c->head_size, kv_heads = (double)c->n_kv_heads * c->head_size;
    double gemms = (2 * heads + 2 * kv_heads + 3.0 * c->intermediate) * c->hidden;
    double weights = c->n_layers * gemms + (double)c->hidden * c->vocab_size;
    double row_work = 2e-6 * c->n_layers * gemms;
    *p = (struct pace){.target_us = target_us,
                       .row_work = row_work,
                       .pair_work = row_work * model_config_pair_rows(c),
                       .entry_share = 2 * c->n_layers * kv_heads / weights,
                       .balance_rows = BALANCE_ROWS};
}

// The work of n rows behind `entries` entries.
static double pace_work(const struct pace *p, double entries, double n)
{
    return n * p->row_work + n * (entries + n / 2) * p->pair_work;
}

// The largest number of rows whose work is at most `work`.
static double pace_rows_for(const struct pace *p, double entries, double work)
{
    double linear = p->row_work + entries * p->pair_work, square = p->pair_work / 2;
    return 2 * work / (linear + sqrt(linear * linear + 4 * square * work));
}

bool pace_measures_decodes(const struct pace *p, int decodes)
{
    // A few decodes more or less make no difference.
    bool other = decodes > p->decode_rows * 5 / 4 + 3 || (decodes + 3) * 2 < p->decode_rows;
    bool is_stale = p->decode_us == 0 || other || p->mixed_passes >= MIXED_PASSES_MAX;
    return p->target_us != PACE_UNLIMITED && decodes > 0 && is_stale;
}

// The time of the decode rows alone. They may be some more or fewer than the measured ones: each of those takes at most
// as long as a prompt row, and at most its part of the measured time.
static double pace_decodes_us(const struct pace *p)
{
    if (p->decodes == 0 || p->decode_us == 0) return 0;
    double other = p->decodes - p->decode_rows, row_us = p->us_per_work[0] * p->row_work;
    return p->decode_us + other * fmin(row_us, p->decode_us / p->decode_rows);
}

// The time that the target allows beside decode rows that take `decodes_us`.
static double pace_added_us(const struct pace *p, double decodes_us)
{
    double target_us = AIM * (p->target_us == PACE_TWICE ? 2 * decodes_us : (double)p->target_us);
    return fmax(target_us - decodes_us, BUDGET_MIN * decodes_us);
}

int pace_sampled_max(const struct pace *p)
{
    if (p->target_us == PACE_UNLIMITED || p->decode_us == 0 || p->sample_us == 0) return INT_MAX;
    double rows = SAMPLING_MAX * pace_added_us(p, p->decode_us) / p->sample_us;
    return rows < 1 ? 1 : rows < INT_MAX ? (int)rows : INT_MAX;
}

void pace_pass_begin(struct pace *p, int decodes)
{
    p->decodes = decodes;
    p->work = p->row_work_sum = 0;
    p->is_first = true;
    p->budget = p->row_budget = INFINITY;
    if (p->target_us == PACE_UNLIMITED) return;
    if (decodes == 0) {
        if (p->us_per_work[0] > 0) p->budget = CHUNK_US / p->us_per_work[0];
        p->saved_work = 0;
        return;
    }
    p->budget = 0;
    if (pace_measures_decodes(p, decodes)) {
        p->is_first = false; // this pass decodes alone
        return;
    }
    double added_us = pace_added_us(p, pace_decodes_us(p)), us_per_work = p->us_per_work[1];
    added_us -= fmin(p->sampled * p->sample_us, SAMPLING_MAX * added_us);
    if (us_per_work == 0) us_per_work = p->us_per_work[0];
    // Where decoding is bound by memory, a few prompt rows cost almost nothing, which says little about many rows. Of
    // reading cached entries the decodes' time says enough.
    p->row_budget = fmax(GROW * p->mixed_work_max, CHUNK_FIRST * p->row_work);
    p->budget = (us_per_work > 0 ? added_us / us_per_work : p->row_budget) + p->saved_work;
    p->saved_work = 0;
}

// Only the size of the pass limits the rows.
static bool pace_is_unlimited(const struct pace *p, bool whole)
{
    return p->budget == INFINITY || (p->decodes == 0 && whole);
}

// The work that takes as long as reading `entries` cached entries. 0 without decodes, when it overlaps the rows' work.
static double pace_reading_work(const struct pace *p, double entries)
{
    return p->decodes > 0 ? entries * p->entry_share * p->balance_rows * p->row_work : 0;
}

// Rows behind `entries` cached entries that fit both budgets. The first prompt of a pass may have a first chunk,
// however long its rows take behind their entries.
static double pace_rows_left(const struct pace *p, double entries)
{
    double reading = pace_reading_work(p, entries);
    if (reading > READING_MAX * p->budget) return 0;
    double rows = pace_rows_for(p, entries, p->budget - reading);
    if (p->row_budget == INFINITY) return floor(rows); // without decodes
    return floor(fmin(rows, fmax(pace_rows_for(p, entries, p->row_budget), p->is_first ? CHUNK_FIRST : 0)));
}

static void pace_deduct(struct pace *p, double row_work, double reading)
{
    p->work += row_work + reading;
    p->row_work_sum += row_work;
    p->budget = fmax(0, p->budget - row_work - reading);
    p->row_budget = fmax(0, p->row_budget - row_work);
}

// Saves the rest of the budget for a later pass.
static void pace_save_budget(struct pace *p)
{
    p->saved_work = p->budget;
    p->budget = 0;
    p->is_first = false;
}

int pace_grant_rows(struct pace *p, int entries, int rows_max, bool whole)
{
    double rows = pace_is_unlimited(p, whole) ? rows_max : pace_rows_left(p, entries);
    if (p->decodes == 0 && p->is_first && rows < CHUNK_MIN) rows = CHUNK_MIN;
    if (rows > rows_max) rows = rows_max;
    if (rows < 1) {
        if (p->is_first) pace_save_budget(p);
        return 0;
    }
    pace_deduct(p, pace_work(p, entries, rows), pace_reading_work(p, entries));
    p->is_first = false;
    return (int)rows;
}

int pace_grant_draft_rows(struct pace *p, int entries, int rows)
{
    double work = fmin(p->budget, p->row_budget);
    if (!pace_is_unlimited(p, true)) rows = (int)fmin(rows, floor(pace_rows_for(p, entries, work)));
    pace_deduct(p, pace_work(p, entries, rows), 0);
    return rows;
}

bool pace_would_grant(const struct pace *p, int entries, int rows, bool whole)
{
    return pace_is_unlimited(p, whole) || pace_rows_left(p, entries) >= rows;
}

double pace_reserve_half(struct pace *p)
{
    double reserved = p->budget == INFINITY ? 0 : p->budget / 2;
    p->budget -= reserved;
    return reserved;
}

void pace_release_half(struct pace *p, double reserved)
{
    p->budget += reserved + p->saved_work; // the latter was saved from the other half
    p->saved_work = 0;
    p->is_first = p->decodes == 0 || p->budget > 0; // the prompt it was reserved for may begin or save, too
}

bool pace_has_budget(const struct pace *p, bool whole)
{
    return p->is_first || pace_would_grant(p, 0, 1, whole);
}

void pace_add_sampled(struct pace *p)
{
    p->sampled++;
    if (p->us_per_work[1] > 0) p->budget = fmax(0, p->budget - p->sample_us / p->us_per_work[1]);
}

void pace_sampling_end(struct pace *p, int64_t us)
{
    if (p->sampled == 0) return;
    double measured = (double)us / p->sampled, known = p->sample_us;
    p->sample_us = known == 0 ? measured : known + (measured > known ? LEARN_SLOWER : LEARN) * (measured - known);
    p->sampled = 0;
}

static double clamp(double value, double min, double max)
{
    return value < min ? min : value > max ? max : value;
}

static void pace_learn_decodes(struct pace *p, double us)
{
    if (++p->decode_passes < 2) return;
    bool fresh = p->decode_us == 0 || p->decodes != p->decode_rows;
    double expected = pace_decodes_us(p);
    double measured = fresh ? us : clamp(us, 0.5 * p->decode_us, 1.5 * p->decode_us);
    if (fresh && expected > 0) measured = fmin(us, FRESH_MAX * expected); // something else may have held up the pass
    p->decode_us = fresh ? measured : p->decode_us + LEARN * (measured - p->decode_us);
    p->decode_rows = p->decodes;
    p->mixed_passes = 0;
    // Few decode rows are bound by reading weights, at the speed of reading entries; many are bound by arithmetic.
    if (p->us_per_work[0] == 0) return;
    double measured_rows = p->decode_us / (p->us_per_work[0] * p->row_work);
    if (p->balance_is_known && measured_rows > p->balance_rows) return;
    p->balance_rows = measured_rows;
    p->balance_is_known = true;
}

void pace_pass_end(struct pace *p, int64_t us)
{
    if (p->work == 0) {
        if (p->decodes > 0) pace_learn_decodes(p, (double)us);
        return;
    }
    p->decode_passes = 0;
    double added_us = (double)us - pace_decodes_us(p);
    if (added_us < 0.02 * (double)us) added_us = 0.02 * (double)us;
    double *us_per_work = &p->us_per_work[p->decodes > 0], measured = added_us / p->work, known = *us_per_work;
    if (known > 0) measured = clamp(measured, known / 8, known * 8);
    *us_per_work = known == 0 ? measured : known + (measured > known ? LEARN_SLOWER : LEARN) * (measured - known);
    if (p->decodes == 0) return;
    p->mixed_work_max = fmax(p->mixed_work_max, p->row_work_sum);
    p->mixed_passes++;
}
