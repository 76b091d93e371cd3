// SPDX-License-Identifier: Apache-2.0
// Waiting requests in the order of how they begin: those that begin alike are neighbours, the longer alike the nearer,
// so that a head which several prompts share is computed once and used up before the next (global prefix sharing:
// BatchLLM, arXiv 2412.03594). Requests of one tenant and priority (share) are kin, and begin as their chains say
// (prefix_index.h). A request that is shorter than a block has none.
//
// Trees are told apart by the first block, so that prompts which share nothing cost next to nothing.
#pragma once

#include "router/core/request.h"

enum { KIN_TREES = 65536 };

// A request is worth being told as kin if what it has in common spares one of so many of its rows. A walk looks at so
// many requests, then it ends.
enum { KIN_WORTH = 4, PREFIX_SCAN_MAX = 32 };

struct prefix_groups {
    struct request *roots[KIN_TREES];
};
void prefix_groups_add(struct prefix_groups *index,
                       struct request *r); // its share and its chain stay as they are until:
void prefix_groups_remove(struct prefix_groups *index, struct request *r);

// Goes through the kin of a chain, those that are worth it, from the nearest to the farthest.
struct prefix_walk {
    struct request *const *root;
    const struct tenant_queue *share;
    const uint64_t *chain; // borrowed
    int n;
    struct request *lower, *higher;  // the nearest on either side that were not told yet; NULL: none
    int lower_blocks, higher_blocks; // that they have in common with the chain
    int blocks;                      // and the one that was told last
    int looks;                       // taken so far
};
void prefix_walk_start(struct prefix_walk *walk, const struct prefix_groups *index, const struct tenant_queue *share,
                       const uint64_t *chain, int n);
struct request *prefix_walk_next(struct prefix_walk *walk); // NULL: no more
bool prefix_group_pays(int rows, int blocks);               // of which so many blocks are spared
