// SPDX-License-Identifier: Apache-2.0
// Heap bytes in use. Sanitizers have their own allocator.
#pragma once

#include <stddef.h>

// Share by which an allocator may round sizes up more than glibc's does.
#ifdef __SANITIZE_THREAD__
enum { HEAP_ROUNDING_PERCENT = 5 };
#else
enum { HEAP_ROUNDING_PERCENT = 0 };
#endif

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
size_t __sanitizer_get_current_allocated_bytes(void); // not every gcc package contains its header
static inline size_t heap_bytes(void)
{
    return __sanitizer_get_current_allocated_bytes();
}
#else
#include <malloc.h>
static inline size_t heap_bytes(void)
{
    struct mallinfo2 info = mallinfo2();
    return info.uordblks + info.hblkhd;
}
#endif
