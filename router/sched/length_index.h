// SPDX-License-Identifier: Apache-2.0
// Waiting requests in the order of their length, to find the longest one that fits into the room a bin has left. See
// request_tree.h.
#pragma once

#include "router/core/request.h"

struct length_index {
    struct request *root;
    int count;
};
void length_index_add(struct length_index *index, struct request *r); // by its index_rows
void length_index_remove(struct length_index *index, struct request *r);

// Of those that need at most `blocks` KV blocks: the longest of at most `rows`, of equals the oldest; then what follows
// in that order. NULL: none.
struct request *length_index_longest(const struct length_index *index, int64_t rows, int64_t blocks);
struct request *length_index_next(const struct length_index *index, const struct request *r, int64_t blocks);
struct request *length_index_shortest(const struct length_index *index, int64_t blocks); // of equals the oldest
