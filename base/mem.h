// SPDX-License-Identifier: Apache-2.0
// Heap memory that is there or the process ends: callers bound every size they take from outside, so running
// out means the machine is full, and a server that limps on without memory helps nobody.
#pragma once

#include <stddef.h>

void *mem_alloc(size_t bytes);                                  // zeroed; never NULL; free with free()
void *mem_alloc_array(size_t count, size_t size_bytes);         // zeroed; aborts on overflow
void *mem_resize(void *block, size_t count, size_t size_bytes); // new part is NOT zeroed
void *mem_copy(const void *bytes, size_t size_bytes);
char *mem_string(const char *text); // NULL gives NULL
char *mem_format(const char *format, ...) __attribute__((format(printf, 1, 2)));

// Makes room for one more item in a growable array: doubles when `count` reaches `*capacity`.
#define MEM_GROW(array, count, capacity)                                                                               \
    do {                                                                                                               \
        if ((count) == (capacity)) {                                                                                   \
            (capacity) = (capacity) ? 2 * (capacity) : 16;                                                             \
            (array) = mem_resize((array), (size_t)(capacity), sizeof *(array));                                        \
        }                                                                                                              \
    } while (0)
