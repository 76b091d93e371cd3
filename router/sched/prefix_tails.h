// SPDX-License-Identifier: Apache-2.0
// The places where the bins of one node left off in each shared-prefix group: the prefix chain of the last request of a
// tenant queue that the node received while further requests of its group waited. The node's next bin continues with
// them. Holds the tenant queues used last: at most PREFIX_TAILS of them, with PREFIX_TAILS_BLOCKS blocks in all. One
// thread.
#pragma once

#include "router/sched/waiting_set.h"

enum { PREFIX_TAILS = 16, PREFIX_TAILS_BLOCKS = 5120 };

struct prefix_tail {
    uint64_t tenant_queue; // its number: the queue itself may be gone
    uint64_t bin;          // the request's bin; 0: unused entry
    uint64_t *chain;       // [n] owned
    int n;
};

struct prefix_tails {
    struct prefix_tail tail[PREFIX_TAILS];
};
void prefix_tails_fini(struct prefix_tails *tails);

const struct prefix_tail *prefix_tails_find(const struct prefix_tails *tails, const struct tenant_queue *queue);
// Records the last prefix of each tenant queue in a bin whose requests have left the waiting set. Returns the scan
// cost.
int prefix_tails_update(struct prefix_tails *tails, const struct waiting_set *set, uint64_t bin,
                        struct sched_request *const *requests, int n);
