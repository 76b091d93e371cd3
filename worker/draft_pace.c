// SPDX-License-Identifier: Apache-2.0
// See draft_pace.h.
#include "worker/draft_pace.h"

#include <math.h>

// Passes of phases; SETTLE: the first ones, which do not count.
enum { TRIAL = 32, COMPARE = 16, STAY = 512, PAUSE_FIRST = 2048, PAUSE_LAST = 8192, SETTLE = 4 };

static const double WORTH = 1.02; // what a sequence gets with drafts, against without

static const double BETTER = 1.05;   // than the present length
static const double REMEMBER = 0.98; // of the counts, after each verified draft
static const double LEARN = 0.2;     // weight of a new time
static const double JUMP_MAX = 4;    // a measured time above 4 times the average counts as 4 times the average
static const double CHANCE_MAX = 0.99;

void draft_pace_init(struct draft_pace *p)
{
    *p = (struct draft_pace){.accepted = 1, .refused = 1};
}

static int index_of(int sequences)
{
    int i = 0;
    while (sequences > 1 && i < DRAFT_BATCHES - 1) {
        sequences /= 2;
        i++;
    }
    return i;
}

static struct draft_cost *cost_of(struct draft_pace *p, int sequences)
{
    return &p->costs[index_of(sequences)];
}

// Tokens of a sequence in a microsecond.
static double goodput(const struct draft_pace *p, const struct draft_cost *cost, int sequences, int length)
{
    double chance = fmin(p->accepted / (p->accepted + p->refused), CHANCE_MAX);
    double tokens = (1 - pow(chance, length + 1)) / (1 - chance);
    return tokens / (cost->pass_us + (double)sequences * length * cost->row_us);
}

static int best_length(const struct draft_pace *p, const struct draft_cost *cost, int sequences, int most)
{
    int best = 0;
    for (int length = 1; length <= most; length++)
        if (goodput(p, cost, sequences, length) > goodput(p, cost, sequences, best)) best = length;
    return best;
}

static void choose_length(const struct draft_pace *p, struct draft_cost *cost, int sequences, int most)
{
    int best = best_length(p, cost, sequences, most);
    double now = goodput(p, cost, sequences, cost->length);
    if (goodput(p, cost, sequences, best) > BETTER * now) cost->length = best;
}

// Of a short phase with drafts, one row for each sequence at least shows what drafts are worth.
static int length_of(const struct draft_cost *cost)
{
    bool tries = !cost->row_us || cost->phase.length <= TRIAL;
    return cost->length > 0 || !tries ? cost->length : 1;
}

int draft_pace_rows(struct draft_pace *p, int sequences, int most)
{
    struct draft_cost *cost = cost_of(p, sequences);
    if (draft_pace_length(p, sequences) == 0) return 0;
    if (cost->row_us > 0) choose_length(p, cost, sequences, most);
    int length = length_of(cost);
    return length < most ? length : most;
}

int draft_pace_length(const struct draft_pace *p, int sequences)
{
    const struct draft_cost *cost = &p->costs[index_of(sequences)];
    bool is_measured = cost->pass_us > 0; // a pass without draft rows is measured first
    return sequences < 1 || !is_measured || cost->phase.is_off ? 0 : length_of(cost);
}

void draft_pace_verified(struct draft_pace *p, int verified, int accepted)
{
    if (!verified) return;
    p->accepted = REMEMBER * p->accepted + accepted;
    p->refused = REMEMBER * p->refused + (accepted < verified);
}

static void learn(double *known, double measured)
{
    if (*known) measured = fmin(measured, JUMP_MAX * *known);
    *known = *known ? *known + LEARN * (measured - *known) : measured;
}

static int next_length(struct draft_phase *phase)
{
    bool are_known = phase->rate[0] > 0 && phase->rate[1] > 0;
    bool is_worth = phase->rate[0] > WORTH * phase->rate[1];
    if (is_worth) phase->pause = 0;
    if (!phase->is_off) return are_known && is_worth ? STAY : TRIAL;
    if (!are_known || is_worth) return COMPARE;
    phase->pause = !phase->pause ? PAUSE_FIRST : phase->pause < PAUSE_LAST ? 2 * phase->pause : PAUSE_LAST;
    return phase->pause;
}

static void phase_add_pass(struct draft_phase *phase, double tokens, double us)
{
    if (++phase->passes > SETTLE) {
        phase->us += us;
        phase->tokens += tokens;
    }
    if (phase->passes < (phase->length ? phase->length : TRIAL)) return;
    phase->rate[phase->is_off] = phase->tokens / phase->us;
    phase->is_off = !phase->is_off;
    phase->length = next_length(phase);
    phase->passes = 0;
    phase->us = phase->tokens = 0;
}

void draft_pace_pass_end(struct draft_pace *p, int sequences, int draft_rows, int tokens, int64_t us)
{
    struct draft_cost *cost = cost_of(p, sequences);
    if (sequences < 1) return;
    phase_add_pass(&cost->phase, (double)tokens / sequences, fmax((double)us, 1));
    if (!draft_rows) {
        learn(&cost->pass_us, fmax((double)us, 1));
    } else if (cost->pass_us) {
        double least = 1e-3 * cost->pass_us; // a row is never free
        learn(&cost->row_us, fmax(((double)us - cost->pass_us) / draft_rows, least));
    }
}
