// SPDX-License-Identifier: Apache-2.0
// The fewest bins that a set of lengths can be packed into, to judge the router's heuristics by (bench/pack_offline.h):
// branch and bound, exponential in the worst case, so for small sets and with a limit.
#pragma once

#include <stdint.h>

// No packing takes fewer bins: L2 of Martello and Toth (Discrete Applied Mathematics 28, 1990), which counts what
// prompts over half a bin leave beside them. At least ceil(sum / capacity). O(n log n).
int pack_lower_bound(const int32_t *length, int n, int32_t capacity);

// The best packing found: bin_of[i] is the bin of item i, numbered from 0; returns how many there are. *lower_p is what
// is proven to be needed: when it is what was returned, nothing is better. Otherwise `max_nodes` steps were not enough.
int pack_exact(const int32_t *length, int n, int32_t capacity, int64_t max_nodes, int32_t *bin_of, int *lower_p);
