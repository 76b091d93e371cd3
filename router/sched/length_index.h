// SPDX-License-Identifier: Apache-2.0
// Waiting requests by their number of rows, to find the longest one that a node has room for. Of equal rows the oldest
// comes first. See request_tree.h.
#pragma once

#include "router/sched/sched_request.h"

struct length_index {
    struct sched_request *root;
    int count;
};
void length_index_add(struct length_index *index, struct sched_request *r); // by the rows of its need
void length_index_remove(struct length_index *index, struct sched_request *r);

// Among the requests that need at most `max`: the longest, and the one that follows `r` in that order. NULL: none.
struct sched_request *length_index_longest(const struct length_index *index, const struct request_need *max);
struct sched_request *length_index_next(const struct length_index *index, const struct sched_request *r,
                                        const struct request_need *max);
