// SPDX-License-Identifier: Apache-2.0
#include "lib/http/buffer.h"

#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"

enum { FIRST_BYTES = 256 };

char *http_buffer_reserve(struct http_buffer *b, size_t size)
{
    if (b->capacity - b->to >= size) return b->bytes + b->to;
    size_t used = http_buffer_size(b);
    if (b->from) memmove(b->bytes, b->bytes + b->from, used);
    b->from = 0;
    b->to = used;
    if (b->capacity - used < size) {
        size_t capacity = b->capacity ? 2 * b->capacity : FIRST_BYTES;
        if (capacity < used + size) capacity = used + size;
        b->bytes = mem_resize(b->bytes, capacity, 1);
        b->capacity = capacity;
    }
    return b->bytes + b->to;
}

void http_buffer_append(struct http_buffer *b, const void *bytes, size_t size)
{
    if (!size) return;
    memcpy(http_buffer_reserve(b, size), bytes, size);
    b->to += size;
}

void http_buffer_text(struct http_buffer *b, const char *text)
{
    http_buffer_append(b, text, strlen(text));
}

void http_buffer_consume(struct http_buffer *b, size_t size)
{
    b->from += size;
    if (b->from == b->to) http_buffer_free(b);
}

void http_buffer_move(struct http_buffer *to, struct http_buffer *from)
{
    if (http_buffer_size(to)) {
        http_buffer_append(to, from->bytes + from->from, http_buffer_size(from));
        http_buffer_free(from);
        return;
    }
    http_buffer_free(to);
    *to = *from;
    *from = (struct http_buffer){0};
}

void http_buffer_free(struct http_buffer *b)
{
    free(b->bytes);
    *b = (struct http_buffer){0};
}
