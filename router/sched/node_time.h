// SPDX-License-Identifier: Apache-2.0
// Predicts from the cost model of one node (cost.h) how long it takes for rows, and when it finishes its work. Reads
// the view, changes nothing. estimate.h has estimates for a whole pool.
#pragma once

#include "router/sched/view.h"

// Returns true if the node's cost model holds for a prompt of `rows` rows.
bool node_time_is_known(const struct sched_view *view, const struct sched_node *node, int64_t rows);

// Returns the time of `rows` prompt rows on the node by the cost model, with the rows of its decoding sequences in each
// pass. `cost` may be another node's model.
double node_time_work_us(const struct sched_node *node, const struct cost_model *cost, double rows, double pairs);

// Returns when the node finishes its work and a prompt of `rows` rows after `cached` entries, by its cost model,
// whether or not it is fitted.
double node_time_finish_us(const struct sched_node *node, int64_t rows, int64_t cached);

// Returns the rows of the smallest bin that costs this node little more per row than a full bin.
int64_t node_time_min_bin_rows(const struct sched_view *view, const struct sched_node *node);
