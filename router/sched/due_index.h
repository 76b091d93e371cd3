// SPDX-License-Identifier: Apache-2.0
// Urgent requests that may be packed in the order in which they are due, to find the first that a node has the KV
// blocks for. See request_tree.h.
#pragma once

#include "router/core/request.h"

struct due_index {
    struct request *root;
};
void due_index_add(struct due_index *index, struct request *r); // by its due_us, which stays as it is until:
void due_index_remove(struct due_index *index, struct request *r);

struct request *due_index_before(const struct due_index *index, const struct request *r); // the last due before `r`
// Of those that need at most `blocks` KV blocks, the one due next after `r`, which need not be there any more; NULL:
// the first of all. Of equals the oldest. NULL: none.
struct request *due_index_next(const struct due_index *index, const struct request *r, int64_t blocks);
