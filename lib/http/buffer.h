// SPDX-License-Identifier: Apache-2.0
// A byte queue: bytes are appended at the end and removed at the start. An empty buffer owns no memory, because
// thousands of idle connections have one each. Zero it to initialise.
#pragma once

#include <stddef.h>

struct http_buffer {
    char *bytes; // [capacity] owned
    size_t from, to, capacity;
};

static inline size_t http_buffer_size(const struct http_buffer *b)
{
    return b->to - b->from;
}

static inline const char *http_buffer_start(const struct http_buffer *b)
{
    return b->bytes + b->from;
}

char *http_buffer_reserve(struct http_buffer *b, size_t size); // room for `size` bytes at the end
void http_buffer_append(struct http_buffer *b, const void *bytes, size_t size);
void http_buffer_text(struct http_buffer *b, const char *text);
void http_buffer_consume(struct http_buffer *b, size_t size);
void http_buffer_move(struct http_buffer *to, struct http_buffer *from); // all bytes of `from` to the end of `to`
void http_buffer_free(struct http_buffer *b);
