// SPDX-License-Identifier: Apache-2.0
// Overdue requests that may be packed, ordered by due time and then by age. Finds the first request that a node has
// room for. Built on request_tree.h.
#pragma once

#include "router/sched/sched_request.h"

struct due_index {
    struct sched_request *root;
};
void due_index_add(struct due_index *index, struct sched_request *r); // due_us must not change while it is in the index
void due_index_remove(struct due_index *index, struct sched_request *r);

// Returns the last request of the index that comes before `r`, or NULL if there is none. `r` need not be in the index.
struct sched_request *due_index_before(const struct due_index *index, const struct sched_request *r);
// Returns the first request after `r` that needs at most `max`, or NULL if there is none. `r` need not be in the index.
// If `r` is NULL, the search starts at the first request.
struct sched_request *due_index_next(const struct due_index *index, const struct sched_request *r,
                                     const struct request_need *max);
