// SPDX-License-Identifier: Apache-2.0
#include "sim/pass_budget.h"

#include <math.h>

#include "sim/pace_model.h"

#define ROUNDING 1e-9 // relative, for sums of work

enum { FIRST_ROWS = 16 };

// --- work

static double work_of(const struct pass_budget *b, double entries, double rows)
{
    struct shape_work work = pace_shape_work(b->config, b->pace->balance_rows);
    return rows * work.row + rows * (entries + rows / 2) * work.pair;
}

static double reading_of(const struct pass_budget *b, double entries)
{
    return b->decodes ? entries * pace_shape_work(b->config, b->pace->balance_rows).entry : 0;
}

// Charges the budget for rows and for reading their cached entries.
static void spend(struct pass_budget *b, double row_work, double reading)
{
    b->work_left = fmax(0, b->work_left - row_work - reading);
    b->row_work_left = fmax(0, b->row_work_left - row_work);
}

// --- the budget of a pass

// Returns the time that prompt rows and sampling on the host may add to decodes.
static double added_us_of(const struct pace *p, double decodes_us)
{
    double target_us = p->target_us == PACE_TWICE ? 2 * decodes_us : (double)p->target_us;
    return fmax(0.88 * target_us - decodes_us, 0.05 * decodes_us);
}

// Returns the prompt work that fits in addition to the decodes, less the time of sampling on the host.
static double work_with_decodes(const struct pass_budget *b)
{
    const struct pace *p = b->pace;
    double row = pace_shape_work(b->config, 0).row;
    double decodes_us = pace_decodes_us_expected(p->decode_us, p->decode_rows, p->us_per_work, row, b->decodes);
    double added_us = added_us_of(p, decodes_us);
    added_us = fmax(added_us / 2, added_us - b->sampled * p->sample_us);
    double us = p->us_per_work[1] > 0 ? p->us_per_work[1] : p->us_per_work[0];
    return (us > 0 ? added_us / us : b->row_work_left) + p->saved_work;
}

void pass_budget_init(struct pass_budget *b, const struct pace *pace, const struct model_config *config)
{
    *b = (struct pass_budget){.pace = pace, .config = config, .work_left = INFINITY, .row_work_left = INFINITY};
}

bool pass_budget_measures_decodes(const struct pass_budget *b, int decodes)
{
    const struct pace *p = b->pace;
    return p->target_us != PACE_UNLIMITED && decodes &&
           pace_is_stale(p->decode_us, p->decode_rows, p->mixed_passes, decodes);
}

// The host may use half of the time that the pass may take in addition to its decodes.
int pass_budget_host_rows(const struct pass_budget *b)
{
    const struct pace *p = b->pace;
    if (p->target_us == PACE_UNLIMITED || p->decode_us == 0 || p->sample_us == 0) return PASS_ANY_ROWS;
    double rows = added_us_of(p, p->decode_us) / 2 / p->sample_us;
    return rows < 1 ? 1 : rows < PASS_ANY_ROWS - 1 ? (int)rows : PASS_ANY_ROWS - 1;
}

void pass_budget_add_sampled(struct pass_budget *b)
{
    b->sampled++;
    if (b->pace->us_per_work[1] > 0) spend(b, 0, b->pace->sample_us / b->pace->us_per_work[1]);
}

void pass_budget_begin(struct pass_budget *b, int decodes)
{
    const struct pace *p = b->pace;
    b->decodes = decodes;
    b->is_first = true;
    b->saved = p->saved_work;
    if (p->target_us == PACE_UNLIMITED) return;
    if (!decodes) {
        b->saved = 0;
        if (p->us_per_work[0] > 0) b->work_left = 500000 / p->us_per_work[0];
    } else if (pass_budget_measures_decodes(b, decodes)) {
        b->is_first = false;
        b->work_left = 0;
    } else {
        b->row_work_left = fmax(2 * p->mixed_work_max, FIRST_ROWS * pace_shape_work(b->config, 0).row);
        b->work_left = work_with_decodes(b);
        b->saved = 0;
    }
}

// --- grants

static bool is_unlimited(const struct pass_budget *b, bool whole)
{
    return isinf(b->work_left) || (!b->decodes && whole);
}

// Returns the most rows, up to `most`, whose work is at most `work`. By bisection.
static int rows_within(struct pass_budget *b, int entries, double work, int most)
{
    int low = 0, high = most + 1; // `low` fit, `high` do not
    while (high - low > 1) {
        int middle = low + (high - low) / 2;
        *(work_of(b, entries, middle) <= work ? &low : &high) = middle;
    }
    double beyond = work_of(b, entries, low + 1);
    b->is_unknown |= low < most && fabs(beyond - work) <= ROUNDING * beyond;
    b->is_unknown |= low > 0 && fabs(work_of(b, entries, low) - work) <= ROUNDING * work;
    return low;
}

// Returns 0 if reading the prompt's cached entries would take most of the work left.
static int rows_in_budget(struct pass_budget *b, int entries, int most)
{
    double reading = reading_of(b, entries), border = 0.65 * b->work_left;
    b->is_unknown |= reading > 0 && fabs(reading - border) <= ROUNDING * border;
    if (reading > border || most < 1) return 0;
    int rows = rows_within(b, entries, b->work_left - reading, most);
    if (isinf(b->row_work_left)) return rows;
    int grown = rows_within(b, entries, b->row_work_left, most);
    if (b->is_first && grown < FIRST_ROWS) grown = FIRST_ROWS;
    return rows < grown ? rows : grown;
}

int pass_budget_grant(struct pass_budget *b, int entries, int most, bool whole)
{
    int rows = is_unlimited(b, whole) ? most : rows_in_budget(b, entries, most);
    if (!b->decodes && b->is_first && rows < 128) rows = most < 128 ? most : 128;
    if (rows < 1 && b->is_first) {
        b->saved = b->work_left;
        b->work_left = 0;
    }
    b->is_first = false;
    if (rows < 1) return 0;
    spend(b, work_of(b, entries, rows), reading_of(b, entries));
    return rows;
}

int pass_budget_grant_drafts(struct pass_budget *b, int entries, int most)
{
    int rows = is_unlimited(b, true) ? most : rows_within(b, entries, fmin(b->work_left, b->row_work_left), most);
    spend(b, work_of(b, entries, rows), 0);
    return rows;
}

bool pass_budget_would_grant(struct pass_budget *b, int entries, int rows, bool whole)
{
    return is_unlimited(b, whole) || rows_in_budget(b, entries, rows) >= rows;
}

bool pass_budget_is_left(struct pass_budget *b, bool whole)
{
    return b->is_first || pass_budget_would_grant(b, 0, 1, whole);
}

double pass_budget_reserve_half(struct pass_budget *b)
{
    double half = isinf(b->work_left) ? 0 : b->work_left / 2;
    b->work_left -= half;
    return half;
}

void pass_budget_release_half(struct pass_budget *b, double half)
{
    b->work_left += half + b->saved;
    b->saved = 0;
    b->is_first = !b->decodes || b->work_left > 0;
}
