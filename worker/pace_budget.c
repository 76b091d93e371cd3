// SPDX-License-Identifier: Apache-2.0
#include "worker/pace_budget.h"

#include <math.h>

enum {
    // prompt rows in the first pass with decodes and prompts, while the cost of prompt rows is not known
    CHUNK_FIRST = 16,
    CHUNK_MIN = 128,   // least rows of a chunk in a pass without decodes: smaller chunks cost more per row
    CHUNK_US = 500000, // longest time of a chunk in a pass without decodes
};

// Largest part of the budget that may be spent on reading cached entries.
static const double READING_MAX = 0.65;
// Growth of the prompt work, from one pass with decodes to the next.
static const double GROW = 2;

// Returns the work of n rows after `entries` entries.
static double rows_work(const struct pace *p, double entries, double n)
{
    return n * p->row_work + n * (entries + n / 2) * p->pair_work;
}

// Returns the largest number of rows whose work is at most `work`.
static double rows_for(const struct pace *p, double entries, double work)
{
    double linear = p->row_work + entries * p->pair_work, square = p->pair_work / 2;
    return 2 * work / (linear + sqrt(linear * linear + 4 * square * work));
}

void pace_budget_init(struct pace_budget *b, struct pace *pace)
{
    *b = (struct pace_budget){.pace = pace};
}

void pace_budget_set_decodes(struct pace_budget *b, int decodes)
{
    struct pace *p = b->pace;
    b->rows.decodes = decodes;
    b->is_first = true;
    b->work_left = b->row_work_left = INFINITY;
    if (p->target_us == PACE_UNLIMITED) return;
    if (decodes == 0) {
        if (p->us_per_work[0] > 0) b->work_left = CHUNK_US / p->us_per_work[0];
        p->saved_work = 0;
        return;
    }
    b->work_left = 0;
    if (pace_measures_decodes(p, decodes)) {
        b->is_first = false; // this pass has only decode rows
        return;
    }
    double prompt_us = pace_prompt_us(p, decodes, b->rows.sampled), us_per_work = p->us_per_work[1];
    if (us_per_work == 0) us_per_work = p->us_per_work[0];
    // A few prompt rows cost almost nothing if decoding is bound by memory, which says little about the cost of many
    // rows. So the work of rows grows step by step. The time of reading cached entries is known from decode passes.
    b->row_work_left = fmax(GROW * p->mixed_work_max, CHUNK_FIRST * p->row_work);
    b->work_left = (us_per_work > 0 ? prompt_us / us_per_work : b->row_work_left) + p->saved_work;
    p->saved_work = 0;
}

// Returns true if only the size of the pass limits the rows.
static bool budget_is_unlimited(const struct pace_budget *b, bool whole)
{
    return b->work_left == INFINITY || (b->rows.decodes == 0 && whole);
}

// Returns the work that takes as long as reading `entries` cached entries. It is 0 in a pass without decodes, because
// reading overlaps with the work of the rows.
static double reading_work(const struct pace_budget *b, double entries)
{
    const struct pace *p = b->pace;
    return b->rows.decodes > 0 ? entries * p->entry_share * p->balance_rows * p->row_work : 0;
}

// Returns how many rows after `entries` cached entries fit the budget. For the first prompt of a pass, row_work_left
// allows at least CHUNK_FIRST rows.
static double rows_left(const struct pace_budget *b, double entries)
{
    double reading = reading_work(b, entries);
    if (reading > READING_MAX * b->work_left) return 0;
    double rows = rows_for(b->pace, entries, b->work_left - reading);
    if (b->row_work_left == INFINITY) return floor(rows); // without decodes
    return floor(fmin(rows, fmax(rows_for(b->pace, entries, b->row_work_left), b->is_first ? CHUNK_FIRST : 0)));
}

static void budget_charge(struct pace_budget *b, double row_work, double reading)
{
    b->rows.work += row_work + reading;
    b->rows.row_work += row_work;
    b->work_left = fmax(0, b->work_left - row_work - reading);
    b->row_work_left = fmax(0, b->row_work_left - row_work);
}

// Saves the rest of the budget for a later pass.
static void budget_save(struct pace_budget *b)
{
    b->pace->saved_work = b->work_left;
    b->work_left = 0;
    b->is_first = false;
}

int pace_budget_grant_rows(struct pace_budget *b, int entries, int rows_max, bool whole)
{
    double rows = budget_is_unlimited(b, whole) ? rows_max : rows_left(b, entries);
    if (b->rows.decodes == 0 && b->is_first && rows < CHUNK_MIN) rows = CHUNK_MIN;
    if (rows > rows_max) rows = rows_max;
    if (rows < 1) {
        if (b->is_first) budget_save(b);
        return 0;
    }
    budget_charge(b, rows_work(b->pace, entries, rows), reading_work(b, entries));
    b->is_first = false;
    return (int)rows;
}

int pace_budget_grant_draft_rows(struct pace_budget *b, int entries, int rows)
{
    double work = fmin(b->work_left, b->row_work_left);
    if (!budget_is_unlimited(b, true)) rows = (int)fmin(rows, floor(rows_for(b->pace, entries, work)));
    budget_charge(b, rows_work(b->pace, entries, rows), 0);
    return rows;
}

bool pace_budget_would_grant(const struct pace_budget *b, int entries, int rows, bool whole)
{
    return budget_is_unlimited(b, whole) || rows_left(b, entries) >= rows;
}

bool pace_budget_has_rows(const struct pace_budget *b, bool whole)
{
    return b->is_first || pace_budget_would_grant(b, 0, 1, whole);
}

struct pace_budget pace_budget_half(const struct pace_budget *b)
{
    struct pace_budget half = *b;
    half.work_left = b->work_left / 2; // half of INFINITY is INFINITY
    return half;
}

void pace_budget_merge(struct pace_budget *b, const struct pace_budget *half)
{
    struct pace *p = b->pace;
    double other = b->work_left == INFINITY ? 0 : b->work_left / 2;
    *b = *half;
    b->work_left += other + p->saved_work;
    p->saved_work = 0;
    b->is_first = b->rows.decodes == 0 || b->work_left > 0; // a prompt may now use the other half, or save it
}

void pace_budget_add_sampled(struct pace_budget *b)
{
    const struct pace *p = b->pace;
    b->rows.sampled++;
    if (p->us_per_work[1] > 0) b->work_left = fmax(0, b->work_left - p->sample_us / p->us_per_work[1]);
}
