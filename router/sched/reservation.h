// SPDX-License-Identifier: Apache-2.0
// Chooses the overdue request that has a worker group reserved (struct reservation in view.h). Reads the view and
// changes only the order of the index.
#pragma once

#include "router/sched/view.h"

// Returns the reservation that is valid from now on. A request keeps the group that was reserved for it first. If the
// reservation always moved to the group with the most free blocks, no group might ever have enough.
struct reservation reservation_update(const struct sched_view *view, struct node_index *workers);
