// SPDX-License-Identifier: Apache-2.0
// Waiting requests, ordered by their number of rows. Finds the longest request that a node has room for. Among requests
// with equally many rows, it finds the oldest. Built on request_tree.h.
#pragma once

#include "router/sched/sched_request.h"

struct length_index {
    struct sched_request *root;
    int count;
};
void length_index_add(struct length_index *index, struct sched_request *r); // ordered by r->need.rows
void length_index_remove(struct length_index *index, struct sched_request *r);

// Search only the requests that need at most `max`. length_index_longest() returns the longest of these requests.
// length_index_next() returns the next request after `r` in descending order. Both return NULL if there is none.
struct sched_request *length_index_longest(const struct length_index *index, const struct request_need *max);
struct sched_request *length_index_next(const struct length_index *index, const struct sched_request *r,
                                        const struct request_need *max);
