// SPDX-License-Identifier: Apache-2.0
#include "worker/pace.h"

#include <math.h>

enum {
    CHUNK_FIRST = 16,  // rows beside decodes, while it is not known what they cost
    CHUNK_MIN = 128,   // rows without decodes: fewer would be dearer, each
    CHUNK_US = 500000, // without decodes
    MIXED_MAX = 64,    // passes until the decodes are measured alone again
    BALANCE = 16,      // rows whose work takes as long as to read the weights, while it is not known
};

// Of the time that there is: the rest is for passes that take longer than was expected of them.
static const double AIM = 0.88;
// Of the time that decodes alone take: for prompts, where those take all there is.
static const double BUDGET_MIN = 0.05;
// Of the time for a prompt: reading is worth it for some work.
static const double READING_MAX = 0.65;
// Attention runs at about half the rate of the products.
static const double PAIR_COST = 2;
// A pass that took long is believed sooner than one that was quick: it has kept somebody waiting.
static const double LEARN = 0.2, LEARN_SLOWER = 0.6, GROW = 2;

void pace_init(struct pace *p, const struct model_config *c, int64_t target_us)
{
    double heads = (double)c->n_heads * c->head_size, kv_heads = (double)c->n_kv_heads * c->head_size;
    double products = (2 * heads + 2 * kv_heads + 3.0 * c->intermediate) * c->hidden;
    double weights = c->n_layers * products + (double)c->hidden * c->vocab_size;
    *p = (struct pace){.target_us = target_us,
                       .row_work = 2e-6 * c->n_layers * products, // MFLOP
                       .pair_work = 4e-6 * c->n_layers * heads * PAIR_COST,
                       .entry_share = 2 * c->n_layers * kv_heads / weights,
                       .balance = BALANCE};
}

// The work of rows entries .. entries + n - 1.
static double work_of(const struct pace *p, double entries, double n)
{
    return n * p->row_work + n * (entries + n / 2) * p->pair_work;
}

// The most rows whose work is at most `work`.
static double rows_for(const struct pace *p, double entries, double work)
{
    double linear = p->row_work + entries * p->pair_work, square = p->pair_work / 2;
    return 2 * work / (linear + sqrt(linear * linear + 4 * square * work));
}

static bool alone_is_stale(const struct pace *p)
{
    // A few more or less make no difference.
    bool other = p->decodes > p->alone_decodes * 5 / 4 + 3 || (p->decodes + 3) * 2 < p->alone_decodes;
    return p->alone_us == 0 || other || p->mixed >= MIXED_MAX;
}

void pace_begin(struct pace *p, int decodes)
{
    p->decodes = decodes;
    p->work = 0;
    p->first = true;
    p->work_left = INFINITY;
    if (p->target_us == PACE_FREELY) return;
    if (decodes == 0) {
        if (p->us_per_work[0] > 0) p->work_left = CHUNK_US / p->us_per_work[0];
        p->saved = 0;
        return;
    }
    p->work_left = 0;
    if (alone_is_stale(p)) {
        p->first = false; // this pass decodes alone
        return;
    }
    double target_us = AIM * (p->target_us == PACE_TWICE ? 2 * p->alone_us : (double)p->target_us);
    double added_us = fmax(target_us - p->alone_us, BUDGET_MIN * p->alone_us), us_per_work = p->us_per_work[1];
    if (us_per_work == 0) us_per_work = p->us_per_work[0];
    double in_time = us_per_work > 0 ? added_us / us_per_work : INFINITY;
    // Few rows come nearly for free where decoding waits for memory: what they cost says little of many.
    double most = fmax(GROW * p->most_work, CHUNK_FIRST * p->row_work);
    p->work_left = fmin(in_time, most) + p->saved;
    p->saved = 0;
}

// Nothing bounds the rows but the pass itself.
static bool is_free(const struct pace *p, bool whole)
{
    return p->work_left == INFINITY || (p->decodes == 0 && whole);
}

// Reading so many entries takes as long as this work; beside decodes, where it is not hidden behind the rows'.
static double reading_of(const struct pace *p, double entries)
{
    return p->decodes > 0 ? entries * p->entry_share * p->balance * p->row_work : 0;
}

// How many rows behind so many entries there is time for.
static double rows_left(const struct pace *p, double entries)
{
    double reading = reading_of(p, entries);
    return reading > READING_MAX * p->work_left ? 0 : floor(rows_for(p, entries, p->work_left - reading));
}

// The rest of the pass is left for one of those to come.
static void stand_back(struct pace *p)
{
    p->saved = p->work_left;
    p->work_left = 0;
    p->first = false;
}

int pace_take(struct pace *p, int entries, int most, bool whole)
{
    double rows = is_free(p, whole) ? most : rows_left(p, entries);
    if (p->decodes == 0 && p->first && rows < CHUNK_MIN) rows = CHUNK_MIN;
    if (rows > most) rows = most;
    if (rows < 1) {
        if (p->first) stand_back(p);
        return 0;
    }
    double work = work_of(p, entries, rows) + reading_of(p, entries);
    p->work += work;
    p->work_left = p->work_left > work ? p->work_left - work : 0;
    p->first = false;
    return (int)rows;
}

bool pace_allows(const struct pace *p, int entries, int rows, bool whole)
{
    return is_free(p, whole) || rows_left(p, entries) >= rows;
}

double pace_withhold_half(struct pace *p)
{
    double withheld = p->work_left == INFINITY ? 0 : p->work_left / 2;
    p->work_left -= withheld;
    return withheld;
}

void pace_give_back(struct pace *p, double withheld)
{
    p->work_left += withheld + p->saved; // the latter by somebody who stood back from the other half
    p->saved = 0;
    p->first = p->decodes == 0 || p->work_left > 0; // whoever it was withheld for is brought forward, too
}

bool pace_open(const struct pace *p, bool whole)
{
    return p->first || pace_allows(p, 0, 1, whole);
}

static double within(double value, double least, double most)
{
    return value < least ? least : value > most ? most : value;
}

static void learn_alone(struct pace *p, double us)
{
    if (++p->alone_run < 2) return;
    bool fresh = p->alone_us == 0 || p->decodes != p->alone_decodes;
    double told = fresh ? us : within(us, 0.5 * p->alone_us, 1.5 * p->alone_us);
    p->alone_us = fresh ? told : p->alone_us + LEARN * (told - p->alone_us);
    p->alone_decodes = p->decodes;
    p->mixed = 0;
    // Few decodes wait for the weights, which are read as fast as entries are; many compute.
    if (p->us_per_work[0] == 0) return;
    double told_balance = p->alone_us / (p->us_per_work[0] * p->row_work);
    if (p->balance_is_known && told_balance > p->balance) return;
    p->balance = told_balance;
    p->balance_is_known = true;
}

void pace_end(struct pace *p, int64_t us)
{
    if (p->work == 0) {
        if (p->decodes > 0) learn_alone(p, (double)us);
        return;
    }
    p->alone_run = 0;
    double added_us = (double)us - (p->decodes ? p->alone_us : 0);
    if (added_us < 0.02 * (double)us) added_us = 0.02 * (double)us;
    double *us_per_work = &p->us_per_work[p->decodes > 0], told = added_us / p->work, known = *us_per_work;
    told = known > 0 ? within(told, known / 8, known * 8) : told;
    *us_per_work = known == 0 ? told : known + (told > known ? LEARN_SLOWER : LEARN) * (told - known);
    if (p->decodes == 0) return;
    p->most_work = fmax(p->most_work, p->work);
    p->mixed++;
}
