// SPDX-License-Identifier: Apache-2.0
// Shared-prefix groups: waiting requests ordered by prefix chain (prefix_chain.h). Requests of one tenant queue whose
// prompts start with the same tokens are neighbours; the more they share, the nearer they are. Packing them one after
// another computes a shared prefix once and uses it up before the next one (global prefix sharing: BatchLLM, arXiv
// 2412.03594). A request shorter than a block has no chain and is in no group.
//
// There is a tree for each value of a hash of the first block, so that prompts that share nothing cost next to nothing.
#pragma once

#include "router/sched/sched_request.h"

enum { PREFIX_TREES = 65536 };

// A shared prefix pays if it spares at least one of PREFIX_PAYS_ROWS of the request's rows. A walk examines at most
// PREFIX_SCAN_MAX requests.
enum { PREFIX_PAYS_ROWS = 4, PREFIX_SCAN_MAX = 32 };
bool prefix_group_pays(int rows, int shared_blocks);

struct prefix_groups {
    struct sched_request *roots[PREFIX_TREES];
};
// Add and remove a request. Its tenant queue and chain must not change while it is in the groups.
void prefix_groups_add(struct prefix_groups *groups, struct sched_request *r);
void prefix_groups_remove(struct prefix_groups *groups, struct sched_request *r);
// Returns the number of leading blocks that the request, which is not in the groups, shares with the nearest request in
// them.
int prefix_groups_shared(const struct prefix_groups *groups, const struct sched_request *r);

// Visits the requests of a tenant queue for which sharing a prefix with a chain pays, longest shared prefix first. The
// groups must not change during a walk.
struct prefix_walk {
    struct sched_request *const *root;
    const struct tenant_queue *tenant_queue;
    const uint64_t *chain; // [n] borrowed
    int n;
    struct sched_request *lower, *higher; // the nearest not yet visited on either side of the chain; NULL: none
    int lower_blocks, higher_blocks;      // blocks they share with the chain
    int blocks;                           // blocks of the chain that the last visited request shares
    int scan_cost;                        // requests examined so far
};
void prefix_walk_start(struct prefix_walk *walk, const struct prefix_groups *groups, const struct tenant_queue *queue,
                       const uint64_t *chain, int n);
struct sched_request *prefix_walk_next(struct prefix_walk *walk); // NULL at the end
