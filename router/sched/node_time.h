// SPDX-License-Identifier: Apache-2.0
// Predicts from the cost model of one node (cost.h) how long the node takes to compute rows, and when it finishes its
// work. Reads the view and changes nothing. estimate.h has estimates for a whole pool.
#pragma once

#include "router/sched/view.h"

// Returns true if the node's cost model holds for a prompt of `rows` rows.
bool node_time_is_known(const struct sched_view *view, const struct sched_node *node, int64_t rows);

// Returns the decode rows of a pass: the passes in a pipeline share the decoding sequences
// evenly.
double node_time_pass_decodes(const struct sched_node *node);

// Predicts the time in microseconds of `rows` prompt rows on the node, in which each pass occupies a stage of the
// node's pipeline. Each pass also has decode rows. `cost` may be the cost model of another node.
double node_time_work_us(const struct sched_node *node, const struct cost_model *cost, double rows, double pairs);

// Returns the time in microseconds from the end of the prompt's last pass in the first stage of a pipeline to its
// result.
double node_time_fill_us(const struct sched_node *node, const struct cost_model *cost, int64_t rows, int64_t cached);

// Returns the time in microseconds until the node finishes its work and one more prompt. The prompt has `rows` rows to
// compute after `cached` KV entries in the prefix cache. Uses the node's cost model even if it is not fitted.
double node_time_finish_us(const struct sched_node *node, int64_t rows, int64_t cached);

// Returns the rows of the smallest bin that costs this node little more per row than a full bin.
int64_t node_time_min_bin_rows(const struct sched_view *view, const struct sched_node *node);
