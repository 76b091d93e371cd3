// SPDX-License-Identifier: Apache-2.0
// Measures a few passes while a node starts, so that the router knows the node's costs from the first request on.
//
// The passes write to KV blocks that no sequence holds yet, and publish nothing. All but the first run at most one
// layer, and their time is scaled to all layers: whole passes of a large model would delay the start.
#pragma once

#include <stdint.h>

#include "engine/engine.h"

enum { START_PASSES_MAX = 5 };

struct start_pass {
    int rows;
    int64_t pairs, us; // attention pairs; time of all layers
};

struct start_costs {
    int n;
    struct start_pass passes[START_PASSES_MAX];
};

struct start_limits {
    int rows, entries; // most rows of a pass; most KV entries of a sequence
    bool importance;   // measure the work of a speculator, which wants the importance of the last row
    int64_t us;        // time for passes that the estimate can do without
};

// Leader: runs the passes through all ranks. The first pass also proves that the node can compute. It is not counted in
// limits->us. The group must not serve yet. A failed pass leaves the group unusable, see group_abort().
enum status start_costs_measure(struct engine *e, const struct start_limits *limits, struct start_costs *costs_p);

// Leader: runs one short pass through all ranks instead, if the costs are known already (kept_costs.h). It proves that
// the node can compute, and reads one layer of the weights only.
enum status start_costs_skip(struct engine *e, const struct start_limits *limits);
