// SPDX-License-Identifier: Apache-2.0
// Brings memory into RAM before its first use, on a thread of the lowest priority.
//
// The kernel clears or maps a page at its first touch. Clearing a huge page can take milliseconds, which would add to a
// prompt's time to first token. The contents of memory do not change, so other threads may read and write meanwhile.
#pragma once

#include <stdbool.h>
#include <stddef.h>

// A range of `regions` regions, one after another, each `bytes` long. The first pages of all regions come first, then
// the second pages, and so on: the layers of a KV cache fill at the same rate.
struct prefault_range {
    void *start;
    size_t bytes;
    int regions;
    bool read_only; // pages of a file: they are read, and cannot be written
};

struct prefault;

// Starts the thread on ranges [0, n), in this order. The caller owns the memory and keeps it until prefault_stop().
// Returns NULL if the system cannot create a thread: pages are then cleared at their first use.
struct prefault *prefault_start(const struct prefault_range *ranges, int n);
void prefault_stop(struct prefault *prefault); // NULL is fine; waits for at most one page
