// SPDX-License-Identifier: Apache-2.0
#include "lib/base/mem.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/log.h"

// Aborts if an allocation of `count` objects failed.
static void *mem_check(void *block, size_t count, size_t size_bytes)
{
    if (block) return block;
    log_event(LOG_ERROR, "out_of_memory", LOG_FIELD("count", count), LOG_FIELD("size_bytes", size_bytes));
    abort();
}

void *mem_alloc(size_t bytes)
{
    return mem_check(calloc(1, bytes ? bytes : 1), 1, bytes);
}

void *mem_alloc_array(size_t count, size_t size_bytes)
{
    if (!count || !size_bytes) return mem_alloc(1);
    return mem_check(calloc(count, size_bytes), count, size_bytes);
}

void *mem_resize(void *block, size_t count, size_t size_bytes)
{
    if (!count || !size_bytes) count = size_bytes = 1; // realloc(p, 0) would free the block
    return mem_check(reallocarray(block, count, size_bytes), count, size_bytes);
}

void *mem_copy(const void *bytes, size_t size_bytes)
{
    void *copy = mem_alloc(size_bytes);
    if (size_bytes) memcpy(copy, bytes, size_bytes);
    return copy;
}

char *mem_string(const char *text)
{
    return text ? mem_copy(text, strlen(text) + 1) : NULL;
}

char *mem_format(const char *format, ...)
{
    char *text = NULL;
    va_list args;
    va_start(args, format);
    int n = vasprintf(&text, format, args);
    va_end(args);
    return mem_check(n < 0 ? NULL : text, 1, 1);
}
