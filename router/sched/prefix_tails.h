// SPDX-License-Identifier: Apache-2.0
// Records, for each tenant queue, at which request of a shared-prefix group (prefix_groups.h) a node's bins stopped. A
// tail is the prefix chain of the queue's last request that went to the node while more requests of the group waited.
// The node's next bin continues with these requests, because the node's cache holds their prefix.
//
// At most PREFIX_TAILS tails are kept, with at most PREFIX_TAILS_BLOCKS blocks in all. The oldest tails are dropped
// first. One thread.
#pragma once

#include "router/sched/waiting_set.h"

enum { PREFIX_TAILS = 16, PREFIX_TAILS_BLOCKS = 5120 };

struct prefix_tail {
    uint64_t tenant_queue; // number of the tenant queue; not a pointer, because the queue may be gone
    uint64_t bin;          // id of the bin in which the node got the request; 0: the entry is unused
    uint64_t *chain;       // [n] owned
    int n;
};

struct prefix_tails {
    struct prefix_tail tail[PREFIX_TAILS];
};
void prefix_tails_fini(struct prefix_tails *tails);

const struct prefix_tail *prefix_tails_find(const struct prefix_tails *tails,
                                            const struct tenant_queue *queue); // NULL: there is none
// Records the tails of a bin. Call when the bin's requests have left the waiting set. Returns the number of waiting
// requests examined.
int prefix_tails_update(struct prefix_tails *tails, const struct waiting_set *set, uint64_t bin,
                        struct sched_request *const *requests, int n);
