// SPDX-License-Identifier: Apache-2.0
// See normalizer.h. NFC works on parts of one ASCII character and the non-ASCII characters after it. ASCII never
// composes with a preceding character, so parts are independent. Most parts are copied, and byte origins are exact
// where a part starts.
#include "lib/text/normalizer.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "lib/base/mem.h"
#include "lib/text/unicode.h"

void normalizer_fini(struct normalizer *normalizer)
{
    for (int i = 0; i < normalizer->n_steps; i++) {
        pattern_free(normalizer->steps[i].pattern);
        free(normalizer->steps[i].text);
    }
    normalizer->n_steps = 0;
}

// ---- NFC (Unicode Standard Annex 15).

// Returns true for blocks of starters that NFC does not change and that never compose with a preceding character.
static bool is_inert(int32_t c)
{
    return c < 0x300 || (c >= 0x400 && c <= 0x482) || (c >= 0x2010 && c <= 0x2027) || (c >= 0x3041 && c <= 0x3096) ||
           (c >= 0x30A1 && c <= 0x30FA) || (c >= 0x3000 && c <= 0x3029) || (c >= 0x4E00 && c <= 0x9FFF) ||
           (c >= 0xAC00 && c <= 0xD7A3) || (c >= 0xFF01 && c <= 0xFFEF) || (c >= 0x1F300 && c <= 0x1FAFF);
}

static bool chunk_is_inert(const char *text, size_t n)
{
    for (size_t at = 0, length; at < n; at += length)
        if (!is_inert(utf8_decode(text + at, &length))) return false;
    return true;
}

static int combining_class(int32_t c)
{
    return utf8proc_get_property(c)->combining_class;
}

// Puts marks in canonical order: a stable sort by combining class in each run of marks. Uses a counting sort, because a
// hostile text may consist of marks only.
static void order_marks(int32_t *c, size_t n)
{
    int32_t *sorted = NULL;
    for (size_t start = 0, end; start < n; start = end) {
        bool ordered = true;
        int class, last = 0;
        for (end = start; end < n && (class = combining_class(c[end])) != 0; end++, last = class)
            ordered = ordered && class >= last;
        if (end == start) end++; // a starter
        if (ordered) continue;
        size_t place[257] = {0};
        for (size_t i = start; i < end; i++)
            place[combining_class(c[i]) + 1]++;
        for (int i = 0; i < 256; i++)
            place[i + 1] += place[i];
        if (!sorted) sorted = mem_alloc_array(n, sizeof *sorted);
        for (size_t i = start; i < end; i++)
            sorted[place[combining_class(c[i])]++] = c[i];
        memcpy(c + start, sorted, (end - start) * sizeof *c);
    }
    free(sorted);
}

struct composer {
    int32_t *characters; // owned
    size_t capacity;
    struct bytes out; // the composed part
};

static void compose_chunk(struct composer *composer, const char *text, size_t n)
{
    size_t count = 0, room = 4 * n + 4; // a character decomposes to at most four code points for each byte
    if (composer->capacity < room) {
        composer->capacity = 2 * room;
        composer->characters = mem_resize(composer->characters, composer->capacity, sizeof(int32_t));
    }
    int32_t *c = composer->characters;
    for (size_t at = 0, length; at < n; at += length) {
        int boundary = 0;
        int32_t one = utf8_decode(text + at, &length);
        utf8proc_ssize_t made = utf8proc_decompose_char(one, c + count, (utf8proc_ssize_t)(room - count),
                                                        UTF8PROC_DECOMPOSE | UTF8PROC_STABLE, &boundary);
        count += made > 0 ? (size_t)made : 0;
    }
    order_marks(c, count);
    utf8proc_ssize_t composed =
        utf8proc_normalize_utf32(c, (utf8proc_ssize_t)count, UTF8PROC_COMPOSE | UTF8PROC_STABLE);
    for (utf8proc_ssize_t i = 0; i < composed; i++) {
        bytes_reserve(&composer->out, 4);
        composer->out.n += utf8_encode(c[i], composer->out.data + composer->out.n);
    }
}

static void run_nfc(const struct text_span *span, struct text_buffer *out)
{
    struct composer composer = {0};
    const struct bytes *composed = &composer.out;
    for (size_t start = 0, end; start < span->n; start = end) {
        for (end = start + 1; end < span->n && (span->text[end] & 0x80);)
            end++;
        const char *text = span->text + start;
        size_t n = end - start;
        composer.out.n = 0;
        if (n > 1 && !chunk_is_inert(text, n)) compose_chunk(&composer, text, n);
        if (composed->n == 0 || (composed->n == n && !memcmp(composed->data, text, n))) {
            text_buffer_copy(out, span, start, end);
            continue;
        }
        // The first character keeps its origin. The remaining characters get the origin of the second character.
        size_t head = utf8_length(composed->data[0]), second = start + utf8_length(text[0]);
        text_buffer_add(out, composed->data, head, text_span_origin(span, start));
        text_buffer_add(out, composed->data + head, composed->n - head,
                        text_span_origin(span, second < end ? second : start));
    }
    free(composer.characters);
    bytes_free(&composer.out);
}

static bool is_ascii(const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (text[i] & 0x80) return false;
    return true;
}

// ---- Prepend and Replace.

// Returns the largest size of the output of a step for a text of n bytes. Steps of known tokenizers at most triple the
// text.
static size_t bytes_max(size_t n)
{
    return 16 * n + (64 << 10);
}

static enum status grown_too_much(void)
{
    return status_fail(STATUS_INVALID,
                       "the tokenizer's normalizer makes this text more than 16 times longer: its steps "
                       "replace or prepend too much");
}

static enum status run_replace(const struct normalizer_step *step, struct pattern_scratch *scratch,
                               const struct text_span *span, size_t out_max, struct text_buffer *out)
{
    struct pattern_walk walk = pattern_walk_start(step->pattern, scratch, span->text, span->n);
    size_t from = 0, start, end;
    bool found;
    for (;;) {
        TRY(pattern_walk_next(&walk, &start, &end, &found));
        if (!found) break;
        if (out->n + step->n > out_max) return grown_too_much();
        text_buffer_copy(out, span, from, start);
        text_buffer_add(out, step->text, step->n, text_span_origin(span, start < span->n ? start : span->n - 1));
        from = end;
    }
    text_buffer_copy(out, span, from, span->n);
    return STATUS_OK;
}

enum status normalizer_run(const struct normalizer *normalizer, struct pattern_scratch *scratch, struct text_span span,
                           struct text_buffer buffers[2], struct text_span *out_p)
{
    int written = 0;
    size_t n_max = bytes_max(span.n);
    for (int i = 0; i < normalizer->n_steps && span.n; i++) {
        const struct normalizer_step *step = &normalizer->steps[i];
        enum status status = STATUS_OK;
        if (step->kind == NORMALIZER_NFC && is_ascii(span.text, span.n)) continue;
        struct text_buffer *out = &buffers[written++ & 1];
        out->n = 0;
        switch (step->kind) {
        case NORMALIZER_NFC: run_nfc(&span, out); break;
        case NORMALIZER_PREPEND:
            if (step->n > n_max) return grown_too_much();
            text_buffer_add(out, step->text, step->n, text_span_origin(&span, 0));
            text_buffer_copy(out, &span, 0, span.n);
            break;
        case NORMALIZER_REPLACE: status = run_replace(step, scratch, &span, n_max, out); break;
        }
        if (status) return status;
        if (out->n > n_max) return grown_too_much();
        TRY(pattern_scratch_spend(scratch, out->n));
        span = text_buffer_view(out, &span);
    }
    *out_p = span;
    return STATUS_OK;
}
