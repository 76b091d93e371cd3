// SPDX-License-Identifier: Apache-2.0
#include "base/mem.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"

static void *checked(void *block, size_t bytes)
{
    if (!block && bytes) {
        log_error("out_of_memory bytes=%zu", bytes);
        abort();
    }
    return block;
}

void *mem_alloc(size_t bytes)
{
    return checked(calloc(1, bytes ? bytes : 1), bytes);
}

void *mem_alloc_array(size_t count, size_t size_bytes)
{
    if (!count || !size_bytes) return mem_alloc(1);
    return checked(calloc(count, size_bytes), count);
}

void *mem_resize(void *block, size_t count, size_t size_bytes)
{
    if (!count || !size_bytes) count = size_bytes = 1; // keep a block to free, never realloc(p, 0)
    return checked(reallocarray(block, count, size_bytes), count);
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
    return checked(n < 0 ? NULL : text, 1);
}
