// SPDX-License-Identifier: Apache-2.0
// Offline bin packing of prompt lengths, to compare packing rules on whole data sets. The router packs online, by
// router/sched/bin_planner.h. Best-fit decreasing is the rule of the Prepacking paper's reference (arXiv 2404.09529):
// longest item first, each into the fullest bin with room, or the earliest of equally full bins. First-fit decreasing
// takes the first bin with room. Both O(k log k).
#pragma once

#include <stdint.h>

enum pack_rule { PACK_BEST_FIT, PACK_FIRST_FIT };

// Sets bin_of[i] to the bin of item i, numbered from 0 in the order of opening, and returns the number of bins. Every
// length must be from 1 to capacity (the caller cuts longer prompts into chunks or raises the capacity). Uses about 12
// n + 4 capacity bytes of temporary memory. (The Check library has a public function `pack`, hence the name.)
int pack_items(const int32_t *length, int n, int32_t capacity, enum pack_rule rule, int32_t *bin_of);
