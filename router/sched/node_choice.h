// SPDX-License-Identifier: Apache-2.0
// Rules for the work that a node may get now. Reads the view and changes nothing. node_index.h chooses the next node.
#pragma once

#include "router/sched/view.h"

// Returns true if the node may get a bin. It must not drain or be ejected, must have a free place for a bin and for a
// sequence, and must have no request that runs alone.
bool node_is_open(const struct sched_view *view, const struct sched_node *node);

// Returns the rows of the smallest bin that the node should get. An idle node gets any bin. A busy node would compute a
// small bin only later, so it gets no bin that costs much more per row than a full bin.
int64_t node_min_bin_rows(const struct sched_view *view, const struct sched_node *node);

// Returns the free KV blocks for requests other than the request for which the node is reserved (struct reservation).
int64_t node_blocks_for_others(const struct sched_view *view, const struct sched_node *node);

bool node_has_room(const struct sched_view *view, const struct sched_node *node, const struct sched_request *r);
