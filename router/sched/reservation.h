// SPDX-License-Identifier: Apache-2.0
// Chooses the overdue request that has a worker group reserved (struct reservation in view.h). Reads the view and
// changes only the order of the index.
#pragma once

#include "router/sched/view.h"

// Returns the reservation that holds from now on. A choice stays once it is made, because always moving to the emptiest
// group might never end.
struct reservation reservation_update(const struct sched_view *view, struct node_index *workers);
