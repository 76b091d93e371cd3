// SPDX-License-Identifier: Apache-2.0
// The capacity planner. Runs a load on a cluster that does not exist yet, as a scenario without faults, and reports
// what its clients see. Deterministic: equal options give equal reports.
#pragma once

#include <jansson.h>

#include "router/sched/view.h"
#include "sim/load.h"
#include "sim/plan_options.h"

struct plan {
    const struct plan_options *o;
    struct scenario_load load;
    struct scenario_node node[NODE_ROLES]; // limits and costs of each node of a role
    int nodes[NODE_ROLES];
    double qps;       // arrival rate; 0: the arrival times of the trace
    int n_requests;   // requests of the load, without the warm-up
    int n_clipped;    // requests whose prompt or output was cut to the context
    int64_t begin_us; // start of the load
};

// Prints the report, or a JSON object. Returns an exit code.
int plan_main(const struct plan_options *options, bool json);

// --- only for the planner's files

// Sets the limits and costs of plan->node from options, status and shapes.
enum status plan_nodes_make(struct plan *plan);

// Runs the load on the scenario and returns its report as JSON, or STATUS_INTERNAL with the violation.
enum status plan_measure(const struct plan *plan, const struct scenario *scenario, json_t **report_p);
void plan_print(const struct plan *plan, const json_t *report);
