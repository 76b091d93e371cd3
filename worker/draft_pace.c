// SPDX-License-Identifier: Apache-2.0
// See draft_pace.h.
#include "worker/draft_pace.h"

#include <math.h>

enum { PROBE_FIRST = 32, PROBE_LAST = 1024 };

static const double BETTER = 1.05;   // than the present length
static const double REMEMBER = 0.98; // of the counts, after each verified draft
static const double LEARN = 0.2;     // weight of a new time
static const double JUMP_MAX = 4;    // a measured time above 4 times the average counts as 4 times the average
static const double CHANCE_MAX = 0.99;

void draft_pace_init(struct draft_pace *p)
{
    *p = (struct draft_pace){.accepted = 1, .refused = 1};
    for (int i = 0; i < DRAFT_BATCHES; i++)
        p->costs[i].probe_in = p->costs[i].probe_every = PROBE_FIRST;
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

// Whether this pass is to measure the other kind of pass. One with draft rows waits for a draft.
static bool is_probe(struct draft_cost *cost, int most)
{
    if (cost->probe_in > 0) cost->probe_in--;
    if (cost->probe_in > 0 || (!cost->length && most < 1)) return false;
    if (cost->length) {
        cost->probe_every = PROBE_FIRST;
    } else if (cost->probe_every < PROBE_LAST) {
        cost->probe_every *= 2;
    }
    cost->probe_in = cost->probe_every;
    return true;
}

static void choose_length(const struct draft_pace *p, struct draft_cost *cost, int sequences, int most)
{
    int best = best_length(p, cost, sequences, most);
    double now = goodput(p, cost, sequences, cost->length);
    if (goodput(p, cost, sequences, best) > BETTER * now) cost->length = best;
}

int draft_pace_rows(struct draft_pace *p, int sequences, int most)
{
    struct draft_cost *cost = cost_of(p, sequences);
    if (sequences < 1 || !cost->pass_us) return 0; // measures a pass without draft rows first
    if (!cost->row_us) return most < 1 ? 0 : 1;
    choose_length(p, cost, sequences, most);
    if (is_probe(cost, most)) return cost->length == 0;
    return cost->length < most ? cost->length : most;
}

int draft_pace_length(const struct draft_pace *p, int sequences)
{
    const struct draft_cost *cost = &p->costs[index_of(sequences)];
    if (sequences < 1 || !cost->pass_us) return 0;
    bool wants_one = !cost->row_us || cost->probe_in == 0;
    return cost->length ? cost->length : wants_one;
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

void draft_pace_pass_end(struct draft_pace *p, int sequences, int draft_rows, int64_t us)
{
    struct draft_cost *cost = cost_of(p, sequences);
    if (sequences < 1) return;
    if (!draft_rows) {
        learn(&cost->pass_us, fmax((double)us, 1));
    } else if (cost->pass_us) {
        double least = 1e-3 * cost->pass_us; // a row is never free
        learn(&cost->row_us, fmax(((double)us - cost->pass_us) / draft_rows, least));
    }
}
