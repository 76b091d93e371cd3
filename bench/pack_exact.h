// SPDX-License-Identifier: Apache-2.0
// Packs a set of lengths into the fewest bins, as a reference for the packing heuristics of bench/pack_offline.h.
// Branch and bound, exponential in the worst case: for small sets, with a limit on the steps.
#pragma once

#include <stdint.h>

// Returns a lower bound on the number of bins: L2 of Martello and Toth (Discrete Applied Mathematics 28, 1990). It
// counts a bin for each item longer than half a bin, and further bins for items that do not fit next to these. It is at
// least ceil(sum / capacity). O(n log n).
int pack_lower_bound(const int32_t *length, int n, int32_t capacity);

// Finds a packing: bin_of[i] becomes the bin of item i, numbered from 0. Returns the number of bins. *lower_p is a
// proven lower bound: equal to the result if the packing is optimal, less if `max_nodes` steps were not enough.
int pack_exact(const int32_t *length, int n, int32_t capacity, int64_t max_nodes, int32_t *bin_of, int *lower_p);
