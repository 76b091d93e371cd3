// SPDX-License-Identifier: Apache-2.0
// Segments of shared memory that ranks of one host open together.
#pragma once

#include <stddef.h>

#include "kernels/comm.h"

// Maps a segment that this rank shares with its part of `over`: one of `n_parts` equal parts of consecutive ranks. A
// segment has `rank_bytes` zero bytes for each rank of the part. Each rank allocates its own bytes, so they are on the
// rank's NUMA node. Called by all ranks. Fails on all ranks if one rank fails; only ranks that failed themselves have a
// status_message(). The memory lives until the last rank unmaps it or ends, and no file is left.
enum status shm_segments_open(struct comm *over, int n_parts, size_t rank_bytes, void **memory_p);
