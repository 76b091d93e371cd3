// SPDX-License-Identifier: Apache-2.0
// Waiting requests in the order of how they begin: those that begin alike are neighbours, the longer alike the nearer,
// so that a head which several prompts share is computed once and used up before the next (global prefix sharing:
// BatchLLM, arXiv 2412.03594). Requests of one tenant and priority (share) are kin, and begin as their chains say
// (prefix_index.h). A request that is shorter than a block has none.
//
// Trees are told apart by the first block, so that prompts which share nothing cost next to nothing.
#pragma once

#include "router/request.h"

enum { KIN_TREES = 65536 };

// A request is worth being told as kin if what it has in common spares one of so many of its rows. A walk looks at so
// many requests, then it ends.
enum { KIN_WORTH = 4, KIN_LOOKS = 32 };

struct kin_index {
    struct request *roots[KIN_TREES];
};
void kin_index_add(struct kin_index *index, struct request *r); // its share and its chain stay as they are until:
void kin_index_remove(struct kin_index *index, struct request *r);

// Goes through the kin of a chain, those that are worth it, from the nearest to the farthest.
struct kin_walk {
    struct request *const *root;
    const struct core_share *share;
    const uint64_t *chain; // borrowed
    int n;
    struct request *lower, *higher;  // the nearest on either side that were not told yet; NULL: none
    int lower_blocks, higher_blocks; // that they have in common with the chain
    int blocks;                      // and the one that was told last
    int looks;                       // taken so far
};
void kin_walk_start(struct kin_walk *walk, const struct kin_index *index, const struct core_share *share,
                    const uint64_t *chain, int n);
struct request *kin_walk_next(struct kin_walk *walk); // NULL: no more
bool kin_is_worth(int rows, int blocks);              // of which so many blocks are spared
