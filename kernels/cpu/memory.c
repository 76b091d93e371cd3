// SPDX-License-Identifier: Apache-2.0
// Memory of the CPU backend, in huge pages if large.
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "kernels/cpu/cpu.h"

void *cpu_memory_alloc(size_t count, size_t size_bytes, bool zero)
{
    size_t bytes;
    if (__builtin_mul_overflow(count, size_bytes, &bytes) || bytes > SIZE_MAX - HUGE_PAGE_BYTES) return NULL;
    size_t unit = bytes < 2 * HUGE_PAGE_BYTES ? 64 : HUGE_PAGE_BYTES;
    bytes = (bytes + unit) / unit * unit; // never 0 bytes
    void *block = aligned_alloc(unit, bytes);
    if (block && unit == HUGE_PAGE_BYTES)
        madvise(block, bytes, MADV_HUGEPAGE); // fewer page faults and page table walks
    if (block && zero) memset(block, 0, bytes);
    return block;
}
