// SPDX-License-Identifier: Apache-2.0
// Waiting requests by their number of rows, to find the longest one that fits into the rows and KV blocks that are
// left. Of equal rows the oldest comes first. See request_tree.h.
#pragma once

#include "router/sched/sched_request.h"

struct length_index {
    struct sched_request *root;
    int count;
};
void length_index_add(struct length_index *index, struct sched_request *r); // by its index_rows
void length_index_remove(struct length_index *index, struct sched_request *r);

// All consider only requests that need at most `blocks` KV blocks; NULL: none. The longest of at most `rows` rows; the
// one that follows `r` in that order; the shortest.
struct sched_request *length_index_longest(const struct length_index *index, int64_t rows, int64_t blocks);
struct sched_request *length_index_next(const struct length_index *index, const struct sched_request *r,
                                        int64_t blocks);
struct sched_request *length_index_shortest(const struct length_index *index, int64_t blocks);
