// SPDX-License-Identifier: Apache-2.0
// Shared-prefix groups: waiting requests ordered by prefix chain (prefix_chain.h). Requests of one tenant queue whose
// prompts start with the same tokens are neighbours. The more tokens two requests share, the nearer they are. If
// neighbours are packed one after another, a shared prefix is computed only once, and all its requests are served
// before the next prefix (global prefix sharing: BatchLLM, arXiv 2412.03594). A request shorter than a block has no
// chain and is in no group.
//
// The requests are spread over PREFIX_TREES trees by a hash of the tenant queue and the first block. Requests that can
// share a prefix are in one tree. A request that shares no prefix is mostly alone in its tree, so it costs almost
// nothing.
#pragma once

#include "router/sched/sched_request.h"

enum { PREFIX_TREES = 65536 };

// A shared prefix pays if it saves at least 1 / PREFIX_PAYS_ROWS of the request's rows. A walk examines at most
// PREFIX_SCAN_MAX requests.
enum { PREFIX_PAYS_ROWS = 4, PREFIX_SCAN_MAX = 32 };
bool prefix_group_pays(int rows, int shared_blocks);

struct prefix_groups {
    struct sched_request *roots[PREFIX_TREES];
};
// Add and remove a request. Its tenant queue and its chain must not change while the request is in the groups.
void prefix_groups_add(struct prefix_groups *groups, struct sched_request *r);
void prefix_groups_remove(struct prefix_groups *groups, struct sched_request *r);
// Returns the number of leading blocks that the request shares with the nearest request in the groups. The request
// itself must not be in the groups.
int prefix_groups_shared(const struct prefix_groups *groups, const struct sched_request *r);

// Visits the requests of a tenant queue that share enough leading blocks with a given chain (prefix_group_pays()). The
// request that shares the most blocks comes first. The groups must not change during a walk.
struct prefix_walk {
    struct sched_request *const *root;
    const struct tenant_queue *tenant_queue;
    const uint64_t *chain; // [n] borrowed
    int n;
    struct sched_request *lower, *higher; // nearest request not yet visited, on each side of the chain; NULL: none
    int lower_blocks, higher_blocks;      // leading blocks that `lower` and `higher` share with the chain
    int blocks;                           // leading blocks that the last visited request shares with the chain
    int scan_cost;                        // requests examined so far
};
void prefix_walk_start(struct prefix_walk *walk, const struct prefix_groups *groups, const struct tenant_queue *queue,
                       const uint64_t *chain, int n);
struct sched_request *prefix_walk_next(struct prefix_walk *walk); // NULL at the end
