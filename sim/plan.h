// SPDX-License-Identifier: Apache-2.0
// The capacity planner: a load on a cluster that does not exist yet, run as a scenario without faults, and what its
// clients see. Deterministic: equal options give equal reports.
#pragma once

#include <jansson.h>

#include "router/sched/view.h"
#include "sim/load.h"
#include "sim/plan_options.h"

struct plan {
    const struct plan_options *o;
    struct scenario_load load;
    struct scenario_node node[NODE_ROLES]; // each node of a role
    int nodes[NODE_ROLES];
    int n_requests;   // of the load; their actions come after those of the warm-up
    int n_clipped;    // prompts or outputs that were cut to the context
    int64_t begin_us; // of the load
};

// Prints the report, or a JSON object. Returns an exit code.
int plan_main(const struct plan_options *options, bool json);

// --- for the planner alone

// Sets the limits and costs of plan->node from options, status and shapes.
enum status plan_nodes_make(struct plan *plan);

// The load's report as JSON, run on the scenario; STATUS_INTERNAL with what was violated.
enum status plan_measure(const struct plan *plan, const struct scenario *scenario, json_t **report_p);
void plan_print(const struct plan *plan, const json_t *report);
