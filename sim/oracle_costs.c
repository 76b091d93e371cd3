// SPDX-License-Identifier: Apache-2.0
#include "sim/oracle_costs.h"

#include <math.h>

#include "router/core/node.h"
#include "sim/oracle_waiting.h"

#define ERROR_MAX       2.0 // factor: the noise of a pass is at most 40 %
#define ERROR_QUIET_MAX 1.25

// The model may miss a few passes of each of about ten sizes (powers of two of rows), until the fit knows the size.
enum { PASSES_MIN = 100, MISSES_PERCENT = 20 };

static bool is_steady(const struct world *w)
{
    for (int i = 0; i < w->scenario->n_actions; i++) {
        enum action_kind kind = w->scenario->actions[i].kind;
        if (kind == ACTION_SLOW || kind == ACTION_LIE) return false;
    }
    return !w->scenario->load;
}

// Returns the largest allowed error of a fit. Simulated passes follow the cost model plus noise. If there is no noise,
// the error is at most a quarter.
static double error_max(const struct world *w, int index)
{
    double noise = (double)w->scenario->nodes[index].noise_percent / 100;
    return fmin(ERROR_MAX, ERROR_QUIET_MAX * (1 + noise) / (1 - noise));
}

// Checks that the noise that the cost model learned is at least a quarter of the spread. Times spread evenly by 30 %
// have a deviation of 17 %, and the error of the fit adds to it.
static void noise_check(struct world *w, const struct cost_model *cost, int passes, double spread)
{
    double noise = cost_noise(cost);
    HOLDS(noise >= 0 && noise <= 1);
    HOLDS(passes < PASSES_MIN || spread < 0.1 || noise >= spread / 4);
}

void oracle_costs(struct world *w, struct cost_watch *watch, const struct core_node *node, int index,
                  const Forepack__Cluster__V1__NodeMessage *message)
{
    double rows, pairs, us;
    if (message->kind_case == FOREPACK__CLUSTER__V1__NODE_MESSAGE__KIND_STEP) {
        rows = message->step->rows, pairs = (double)message->step->pairs, us = message->step->step_us;
    } else if (message->kind_case == FOREPACK__CLUSTER__V1__NODE_MESSAGE__KIND_SCORED) {
        rows = message->scored->rows, pairs = (double)message->scored->pairs, us = message->scored->pass_us;
    } else {
        return;
    }
    // Neither rows nor pairs account for the time of sampling on the host.
    if (!node || us < 100 || !is_steady(w) || w->scenario->nodes[index].sample_us) return;
    double learned_us = cost_pass_us(&node->sched.cost, 1, rows, pairs);
    if (!node->sched.cost.passes) return;
    watch->passes++;
    double error = error_max(w, index);
    noise_check(w, &node->sched.cost, watch->passes, (double)w->scenario->nodes[index].noise_percent / 100);
    watch->misses += learned_us > error * us || us > error * learned_us;
    if (watch->passes >= PASSES_MIN && 100 * watch->misses > MISSES_PERCENT * watch->passes)
        world_fail(w, "the cost model missed %d of %d passes: %.0f rows, %.0f pairs took %.0f us, it has %.0f us",
                   watch->misses, watch->passes, rows, pairs, us, learned_us);
}
