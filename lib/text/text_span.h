// SPDX-License-Identifier: Apache-2.0
// Part of a text on its way to tokens, and a buffer for the text that a normalizer or pre-tokenizer step rewrites.
// Origins map each byte to a byte of the original text. They cost four bytes for each byte and are optional.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct text_span {
    const char *text; // borrowed
    size_t n;
    const uint32_t *origin; // [n]; NULL: byte i came from byte base + i (or origins are not tracked)
    size_t base;
    bool at_start; // the span starts where the original text starts
};

static inline size_t text_span_origin(const struct text_span *span, size_t i)
{
    return span->origin ? span->origin[i] : span->base + i;
}

static inline struct text_span text_span_slice(const struct text_span *span, size_t start, size_t end)
{
    return (struct text_span){.text = span->text + start,
                              .n = end - start,
                              .origin = span->origin ? span->origin + start : NULL,
                              .base = span->base + start,
                              .at_start = span->at_start && start == 0};
}

struct text_buffer {
    char *text;       // owned
    uint32_t *origin; // owned, NULL unless `tracked`
    size_t n, capacity;
    bool tracked; // set by the owner before the first byte is added
};

// Appends bytes [start, end) of `span`.
void text_buffer_copy(struct text_buffer *buffer, const struct text_span *span, size_t start, size_t end);
// Appends text that replaces the original text from byte `origin` on.
void text_buffer_add(struct text_buffer *buffer, const char *text, size_t n, size_t origin);
void text_buffer_free(struct text_buffer *buffer);

// Returns the whole buffer as the rewritten form of `span`.
struct text_span text_buffer_view(const struct text_buffer *buffer, const struct text_span *span);
