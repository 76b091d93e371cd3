// SPDX-License-Identifier: Apache-2.0
// Bin packing of prompt lengths: which prompts share a forward pass. Best-fit decreasing is the rule of the Prepacking
// paper's reference (arXiv 2404.09529): longest first, each into the fullest bin that still has room, ties to the
// earlier bin; first-fit decreasing takes the first bin with room. Both O(k log k).
#pragma once

#include <stdint.h>

enum pack_rule { PACK_BEST_FIT, PACK_FIRST_FIT };

// bin_of[i] becomes the bin of item i, numbered from 0 in the order they were opened; returns how many there are.
// Every length is from 1 to capacity (the caller cuts longer prompts into chunks or raises the capacity).
// (Not `pack`: the Check library has a public function of that name.) Takes about 12 n + 4 capacity bytes meanwhile.
int pack_items(const int32_t *length, int n, int32_t capacity, enum pack_rule rule, int32_t *bin_of);
