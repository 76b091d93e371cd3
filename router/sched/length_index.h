// SPDX-License-Identifier: Apache-2.0
// Waiting requests by number of rows. Finds the longest one that a node has room for; of equal rows the oldest. See
// request_tree.h.
#pragma once

#include "router/sched/sched_request.h"

struct length_index {
    struct sched_request *root;
    int count;
};
void length_index_add(struct length_index *index, struct sched_request *r); // by the rows of its need
void length_index_remove(struct length_index *index, struct sched_request *r);

// Return the longest request that needs at most `max`, or the next one after `r` in that order, or NULL.
struct sched_request *length_index_longest(const struct length_index *index, const struct request_need *max);
struct sched_request *length_index_next(const struct length_index *index, const struct sched_request *r,
                                        const struct request_need *max);
