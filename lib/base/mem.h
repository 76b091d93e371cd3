// SPDX-License-Identifier: Apache-2.0
// Heap allocation that never returns NULL: when memory runs out, the process logs out_of_memory and aborts. Callers
// bound every size that comes from a file or the network, so a failure means that the machine has no memory left. Free
// every result with free(). Any thread may call.
#pragma once

#include <stddef.h>

void *mem_alloc(size_t bytes);                                  // zeroed
void *mem_alloc_array(size_t count, size_t size_bytes);         // zeroed; aborts when the product overflows
void *mem_resize(void *block, size_t count, size_t size_bytes); // the new part is NOT zeroed; aborts on overflow
void *mem_copy(const void *bytes, size_t size_bytes);
char *mem_string(const char *text); // returns NULL for NULL
char *mem_format(const char *format, ...) __attribute__((format(printf, 1, 2)));

// Makes room for one more item in a growable array. Doubles the capacity when `count` reaches it.
#define MEM_GROW(array, count, capacity)                                                                               \
    do {                                                                                                               \
        if ((count) == (capacity)) {                                                                                   \
            (capacity) = (capacity) ? 2 * (capacity) : 16;                                                             \
            (array) = mem_resize((array), (size_t)(capacity), sizeof *(array));                                        \
        }                                                                                                              \
    } while (0)
