// SPDX-License-Identifier: Apache-2.0
// A stretch of text on its way to tokens, and a buffer in which a step rewrites it. Each byte can remember the byte
// of the original text it came from (only when asked: it costs four bytes per byte).
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct span {
    const char *text; // borrowed
    size_t n;
    const uint32_t *origin; // [n] or NULL: byte i came from byte base + i (or nobody asked)
    size_t base;
    bool at_start; // begins where the original text does
};

static inline size_t span_origin(const struct span *span, size_t i)
{
    return span->origin ? span->origin[i] : span->base + i;
}

static inline struct span span_part(const struct span *span, size_t start, size_t end)
{
    return (struct span){.text = span->text + start,
                         .n = end - start,
                         .origin = span->origin ? span->origin + start : NULL,
                         .base = span->base + start,
                         .at_start = span->at_start && start == 0};
}

struct span_buffer {
    char *text;       // owned
    uint32_t *origin; // owned, NULL unless `tracked`
    size_t n, capacity;
    bool tracked; // set by the owner before the first byte goes in
};

// Appends bytes [start, end) of `span`.
void span_buffer_copy(struct span_buffer *buffer, const struct span *span, size_t start, size_t end);
// Appends text that stands for what begins at byte `origin` of the original.
void span_buffer_add(struct span_buffer *buffer, const char *text, size_t n, size_t origin);
void span_buffer_free(struct span_buffer *buffer);

// The whole buffer as the rewritten form of `span`.
struct span span_buffer_view(const struct span_buffer *buffer, const struct span *span);
