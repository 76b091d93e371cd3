// SPDX-License-Identifier: Apache-2.0
#include "worker/draft_pace.h"

#include <math.h>

// Lengths of phases, in passes. TRIAL: a phase with drafts while it is not known whether drafts gain; TRIAL_MIN: such a
// phase if drafts are hopeless. STAY and COMPARE: phases with and without drafts while drafts gain. PAUSE: phases
// without drafts while drafts do not gain. The first SETTLE passes of a phase do not count.
enum { TRIAL = 32, TRIAL_MIN = 12, COMPARE = 16, STAY = 512, PAUSE_FIRST = 256, PAUSE_LAST = 8192, SETTLE = 4 };

// Drafts gain if they raise the tokens per second of a sequence by this factor.
static const double WORTH = 1.02;
static const double HOPELESS = 0.8; // a phase with drafts below this ratio ends after TRIAL_MIN passes

static const double BETTER = 1.05;   // a new length is chosen if its goodput exceeds the current goodput by this factor
static const double REMEMBER = 0.98; // factor of the counts after each verified draft
static const double LEARN = 0.2;     // weight of a new time
static const double JUMP_MAX = 4;    // a measured time above 4 times the average counts as 4 times the average
static const double CHANCE_MAX = 0.99;

void draft_pace_init(struct draft_pace *p)
{
    *p = (struct draft_pace){.accepted = 1, .refused = 1, .speculated = {1, 1}, .lookup = {1, 1}};
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

// Returns the expected tokens per sequence and microsecond.
static double goodput(const struct draft_pace *p, const struct draft_times *times, int sequences, int length)
{
    double chance = fmin(p->accepted / (p->accepted + p->refused), CHANCE_MAX);
    double tokens = (1 - pow(chance, length + 1)) / (1 - chance);
    return tokens / (times->pass_us + (double)sequences * length * times->row_us);
}

static int best_length(const struct draft_pace *p, const struct draft_times *times, int sequences, int most)
{
    int best = 0;
    for (int length = 1; length <= most; length++)
        if (goodput(p, times, sequences, length) > goodput(p, times, sequences, best)) best = length;
    return best;
}

static void choose_length(const struct draft_pace *p, struct draft_times *times, int sequences, int most)
{
    int best = best_length(p, times, sequences, most);
    double now = goodput(p, times, sequences, times->length);
    if (goodput(p, times, sequences, best) > BETTER * now) times->length = best;
}

static const struct draft_times *times_of(const struct draft_cost *cost)
{
    return &cost->times[cost->phase.is_off];
}

// Returns the length of drafts. The length is at least 1 at the start of a phase, so that costs and acceptance are
// measured.
static int length_of(const struct draft_cost *cost)
{
    const struct draft_times *times = times_of(cost);
    bool tries = !times->row_us || cost->phase.passes < TRIAL;
    return times->length > 0 || !tries ? times->length : 1;
}

// Returns true if a pass without draft rows has been measured.
static bool is_measured(const struct draft_cost *cost, int sequences)
{
    return sequences >= 1 && times_of(cost)->pass_us > 0;
}

int draft_pace_rows(struct draft_pace *p, int sequences, int most)
{
    struct draft_cost *cost = cost_of(p, sequences);
    if (!is_measured(cost, sequences)) return 0;
    if (times_of(cost)->row_us > 0) choose_length(p, &cost->times[cost->phase.is_off], sequences, most);
    int length = length_of(cost);
    return length < most ? length : most;
}

static double chance_of(const struct draft_record *record)
{
    return record->accepted / (record->accepted + record->refused);
}

int draft_pace_first_rows(const struct draft_pace *p, int decodes, int most)
{
    const struct draft_cost *cost = &p->costs[index_of(decodes)];
    const struct draft_times *times = times_of(cost);
    // times of the other phase are better than no times
    if (!(times->row_us > 0)) times = &cost->times[!cost->phase.is_off];
    if (decodes < 1 || !(times->pass_us > 0 && times->row_us > 0)) return most;
    double token_us = times->pass_us / decodes, chance = fmin(chance_of(&p->speculated), CHANCE_MAX), yield = chance;
    int rows = 0;
    for (; rows < most && yield * token_us > times->row_us; rows++)
        yield *= chance;
    return rows;
}

int draft_pace_length(const struct draft_pace *p, int sequences)
{
    const struct draft_cost *cost = &p->costs[index_of(sequences)];
    return is_measured(cost, sequences) && !cost->phase.is_off ? length_of(cost) : 0;
}

bool draft_pace_prefers_lookup(const struct draft_pace *p)
{
    return chance_of(&p->lookup) >= chance_of(&p->speculated);
}

void draft_pace_verified(struct draft_pace *p, bool from_lookup, int verified, int accepted)
{
    struct draft_record *record = from_lookup ? &p->lookup : &p->speculated;
    if (!verified) return;
    p->accepted = REMEMBER * p->accepted + accepted;
    p->refused = REMEMBER * p->refused + (accepted < verified);
    record->accepted = REMEMBER * record->accepted + accepted;
    record->refused = REMEMBER * record->refused + (accepted < verified);
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
    bool is_hopeless = !phase->is_off && phase->passes >= TRIAL_MIN && phase->rate[1] > 0 &&
                       phase->tokens < HOPELESS * phase->rate[1] * phase->us;
    if (phase->passes < (phase->length ? phase->length : TRIAL) && !is_hopeless) return;
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
    struct draft_times *times = &cost->times[cost->phase.is_off];
    if (!draft_rows) {
        learn(&times->pass_us, fmax((double)us, 1));
    } else if (times->pass_us) {
        double least = 1e-3 * times->pass_us; // lower limit: a row is never free
        learn(&times->row_us, fmax(((double)us - times->pass_us) / draft_rows, least));
    }
    phase_add_pass(&cost->phase, (double)tokens / sequences, fmax((double)us, 1));
}
