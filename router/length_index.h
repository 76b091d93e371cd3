// SPDX-License-Identifier: Apache-2.0
// Waiting requests in the order of their length, to find the longest one that fits into the room a bin has left. See
// request_tree.h.
#pragma once

#include "router/request.h"

struct length_index {
    struct request *root;
    int count;
};
void length_index_add(struct length_index *index, struct request *r, int rows);
void length_index_remove(struct length_index *index, struct request *r);

// The longest of at most `rows`, of equals the oldest; then what follows in that order. NULL: none.
struct request *length_index_longest(const struct length_index *index, int64_t rows);
struct request *length_index_next(const struct length_index *index, const struct request *r);
struct request *length_index_shortest(const struct length_index *index); // of equals the oldest
