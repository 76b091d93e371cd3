// SPDX-License-Identifier: Apache-2.0
// Brings memory into RAM before its first use, on a thread of the lowest priority.
//
// The kernel clears a page when it is first touched. A huge page takes up to milliseconds, which a prompt would spend
// in its time to first token. The contents of memory stay as they are, so other threads may read and write meanwhile.
#pragma once

#include <stddef.h>

// `regions` regions that are `bytes` long and follow each other. The first pages of all regions come first, then the
// second pages, and so on: the layers of a KV cache fill at the same rate.
struct prefault_range {
    void *start;
    size_t bytes;
    int regions;
};

struct prefault;

// Starts with ranges [0, n), in this order. The memory stays owned by the caller and must exist until prefault_stop.
// Returns NULL if the system cannot create a thread: pages are then cleared at their first use.
struct prefault *prefault_start(const struct prefault_range *ranges, int n);
void prefault_stop(struct prefault *prefault); // NULL is fine; waits for at most one page
