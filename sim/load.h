// SPDX-License-Identifier: Apache-2.0
// The load of a scenario that is measured rather than checked: the prompts of a trace, and nodes with the shape of a
// real model, on which pacing depends. The world's state is not recounted during such a run.
#pragma once

#include "engine/model/pass_cost.h"
#include "lib/base/trace.h"
#include "lib/text/config.h"
#include "sim/measured_passes.h"
#include "sim/scenario.h"

// The request with id k + 1 has the prompt of row k. Ids after the last row start at row 0 again with another seed:
// these requests are the warm-up and share no prefix with the rest.
struct scenario_load {
    struct trace trace;
    double length_scale;
    uint64_t seed;
    struct model_config shape[2];     // by the role of a node
    struct measured_passes passes[2]; // by role of a node; the scenario's costs apply if unknown
    bool computed[2];                 // by role of a node: `model` gives the times of passes
    struct pass_shape model[2];
};

// Returns the prompt, [action->request.tokens]; the caller frees it.
int32_t *load_prompt(const struct scenario_load *load, const struct action *action, int vocab);
