// SPDX-License-Identifier: Apache-2.0
// Chooses the overdue request that has a worker group reserved (struct reservation in view.h). Reads the view, changes
// nothing but the order of the index.
#pragma once

#include "router/sched/view.h"

// Returns the reservation that holds from now on. A choice once made is kept: always moving to the emptiest group could
// go on for ever.
struct reservation reservation_update(const struct sched_view *view, struct node_index *workers);
