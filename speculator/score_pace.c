// SPDX-License-Identifier: Apache-2.0
#include "speculator/score_pace.h"

#include <math.h>

#include "lib/text/generation.h"

// Weight of a new measurement.
static const double LEARN = 0.3;

void score_pace_init(struct score_pace *p, const struct model_config *config)
{
    *p = (struct score_pace){.pair_rows = model_config_pair_rows(config)};
}

bool score_pace_look_ahead_first(const struct score_pace *p)
{
    return p->credit_us >= p->step_us;
}

void score_pace_look_ahead_done(struct score_pace *p, bool others_waited, int64_t us)
{
    p->step_us += (p->step_us > 0 ? LEARN : 1) * ((double)us - p->step_us);
    if (others_waited) p->credit_us -= (double)us;
}

void score_pace_prompts_done(struct score_pace *p, int64_t us)
{
    double earned_us = LOOK_AHEAD_SHARE * (double)us;
    p->credit_us = fmin(p->credit_us + earned_us, LOOK_AHEAD_SAVED_PASSES * earned_us);
}

double score_pace_work(const struct score_pace *p, int entries, int rows)
{
    return rows * (1 + p->pair_rows * entries);
}

int score_pace_rows(const struct score_pace *p, int entries, double work)
{
    return (int)(work / (1 + p->pair_rows * entries));
}
