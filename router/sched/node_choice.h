// SPDX-License-Identifier: Apache-2.0
// What a node may take now. Reads the view, changes nothing. Which node is next: node_index.h.
#pragma once

#include "router/sched/view.h"

// A node is open if it has a free place for a bin and for a sequence.
bool node_is_open(const struct sched_view *view, const struct sched_node *node);

// The smallest bin for the node. An idle one gets any; a busy one, which would compute it later anyway, one that costs
// little more per row than a full bin.
int64_t node_min_bin_rows(const struct sched_view *view, const struct sched_node *node);

// The KV blocks left for requests other than the one that the node is reserved for.
int64_t node_blocks_for_others(const struct sched_view *view, const struct sched_node *node);

bool node_has_room(const struct sched_view *view, const struct sched_node *node, const struct sched_request *r);
