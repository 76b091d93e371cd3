// SPDX-License-Identifier: Apache-2.0
#include "lib/text/text_span.h"

#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"

static void reserve(struct text_buffer *buffer, size_t more)
{
    if (buffer->capacity - buffer->n >= more) return;
    size_t capacity = buffer->capacity ? buffer->capacity : 64;
    while (capacity - buffer->n < more)
        capacity *= 2;
    buffer->text = mem_resize(buffer->text, capacity, 1);
    if (buffer->tracked) buffer->origin = mem_resize(buffer->origin, capacity, sizeof *buffer->origin);
    buffer->capacity = capacity;
}

void text_buffer_copy(struct text_buffer *buffer, const struct text_span *span, size_t start, size_t end)
{
    if (start == end) return;
    reserve(buffer, end - start);
    memcpy(buffer->text + buffer->n, span->text + start, end - start);
    if (buffer->tracked)
        for (size_t i = start; i < end; i++)
            buffer->origin[buffer->n + i - start] = (uint32_t)text_span_origin(span, i);
    buffer->n += end - start;
}

void text_buffer_add(struct text_buffer *buffer, const char *text, size_t n, size_t origin)
{
    if (!n) return;
    reserve(buffer, n);
    memcpy(buffer->text + buffer->n, text, n);
    if (buffer->tracked)
        for (size_t i = 0; i < n; i++)
            buffer->origin[buffer->n + i] = (uint32_t)origin;
    buffer->n += n;
}

void text_buffer_free(struct text_buffer *buffer)
{
    free(buffer->text);
    free(buffer->origin);
    *buffer = (struct text_buffer){.tracked = buffer->tracked};
}

struct text_span text_buffer_view(const struct text_buffer *buffer, const struct text_span *span)
{
    return (struct text_span){
        .text = buffer->text, .n = buffer->n, .origin = buffer->origin, .base = span->base, .at_start = span->at_start};
}
