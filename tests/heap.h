// SPDX-License-Identifier: Apache-2.0
// Bytes that are allocated now. Sanitizers have an allocator of their own.
#pragma once

#include <stddef.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
size_t __sanitizer_get_current_allocated_bytes(void); // its header is not packaged with every gcc
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
