// SPDX-License-Identifier: Apache-2.0
#include "model/span.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

static void reserve(struct span_buffer *buffer, size_t more)
{
    if (buffer->capacity - buffer->n >= more) return;
    size_t capacity = buffer->capacity ? buffer->capacity : 64;
    while (capacity - buffer->n < more)
        capacity *= 2;
    buffer->text = mem_resize(buffer->text, capacity, 1);
    if (buffer->tracked) buffer->origin = mem_resize(buffer->origin, capacity, sizeof *buffer->origin);
    buffer->capacity = capacity;
}

void span_buffer_copy(struct span_buffer *buffer, const struct span *span, size_t start, size_t end)
{
    if (start == end) return;
    reserve(buffer, end - start);
    memcpy(buffer->text + buffer->n, span->text + start, end - start);
    if (buffer->tracked)
        for (size_t i = start; i < end; i++)
            buffer->origin[buffer->n + i - start] = (uint32_t)span_origin(span, i);
    buffer->n += end - start;
}

void span_buffer_add(struct span_buffer *buffer, const char *text, size_t n, size_t origin)
{
    if (!n) return;
    reserve(buffer, n);
    memcpy(buffer->text + buffer->n, text, n);
    if (buffer->tracked)
        for (size_t i = 0; i < n; i++)
            buffer->origin[buffer->n + i] = (uint32_t)origin;
    buffer->n += n;
}

void span_buffer_free(struct span_buffer *buffer)
{
    free(buffer->text);
    free(buffer->origin);
    *buffer = (struct span_buffer){.tracked = buffer->tracked};
}

struct span span_buffer_view(const struct span_buffer *buffer, const struct span *span)
{
    return (struct span){
        .text = buffer->text, .n = buffer->n, .origin = buffer->origin, .base = span->base, .at_start = span->at_start};
}
