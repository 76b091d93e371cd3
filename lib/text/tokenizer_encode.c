// SPDX-License-Identifier: Apache-2.0
// Converts text to ids in this order: split at the added tokens that are found in raw text, normalize the text between
// them, split at the added tokens that are found in normalized text, run the pre-tokenizer steps (each passes its
// pieces to the next), encode each piece with BPE.
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "lib/base/utf8.h"
#include "lib/text/tokenizer_parts.h"

struct encoder {
    const struct tokenizer *tokenizer;
    struct special_policy policy;
    bool tracked; // track byte origins
    struct pattern_scratch *patterns;
    struct bpe_scratch bpe;
    struct text_buffer normalized[2];
    const struct text_span *word; // the word being encoded
    int32_t *ids;
    size_t *starts; // NULL unless tracked
    int n, capacity, max;
};

static enum status too_long(int max)
{
    return status_fail(STATUS_OUT_OF_RANGE, "the text has more than %d tokens", max);
}

// Adds an id. Returns false if there is no room for another id.
static bool add_id(struct encoder *e, int32_t id, size_t start)
{
    if (e->n == e->max) return false;
    if (e->n == e->capacity) {
        e->capacity = e->capacity ? 2 * e->capacity : 64;
        e->ids = mem_resize(e->ids, (size_t)e->capacity, sizeof *e->ids);
        if (e->tracked) e->starts = mem_resize(e->starts, (size_t)e->capacity, sizeof *e->starts);
    }
    if (e->tracked) e->starts[e->n] = start;
    e->ids[e->n++] = id;
    return true;
}

static bool add_bpe_id(void *user, int32_t id, size_t start)
{
    struct encoder *e = user;
    return add_id(e, id, e->tracked ? text_span_origin(e->word, start) : 0);
}

// ---- Pre-tokenizer.

static enum status pretokenize(struct encoder *e, int step, const struct text_span *span);

// Returns true if the next piece belongs to the previous piece.
static bool piece_joins(enum split_behavior behavior, bool before_matched, bool matched)
{
    switch (behavior) {
    case SPLIT_CONTIGUOUS: return before_matched == matched;
    case SPLIT_WITH_PREVIOUS: return matched && !before_matched;
    case SPLIT_WITH_NEXT: return before_matched && !matched;
    default: return false;
    }
}

struct piece {
    size_t start, end;
    bool matched;
};

static enum status pass_to_next_step(struct encoder *e, int step, const struct text_span *span, struct piece piece)
{
    bool removed = piece.matched && e->tokenizer->pretoken[step].behavior == SPLIT_REMOVED;
    if (piece.start == piece.end || removed) return STATUS_OK;
    struct text_span part = text_span_slice(span, piece.start, piece.end);
    return pretokenize(e, step + 1, &part);
}

// Receives the next piece. Extends the pending piece, or else passes it to the next step and makes the next piece
// pending.
static enum status split_piece(struct encoder *e, int step, const struct text_span *span, struct piece *pending,
                               struct piece next)
{
    struct piece done = *pending;
    bool joined =
        done.end > done.start && piece_joins(e->tokenizer->pretoken[step].behavior, done.matched, next.matched);
    *pending = next;
    if (joined) pending->start = done.start;
    return joined ? STATUS_OK : pass_to_next_step(e, step, span, done);
}

static enum status split_at_matches(struct encoder *e, int step, const struct text_span *span)
{
    const struct pretoken_step *rule = &e->tokenizer->pretoken[step];
    struct pattern_walk walk = pattern_walk_start(rule->pattern, e->patterns, span->text, span->n);
    struct piece pending = {0};
    size_t from = 0, start, end;
    bool found = true;
    while (found) {
        TRY(pattern_walk_next(&walk, &start, &end, &found));
        if (!found) start = end = span->n;
        if (start > from) TRY(split_piece(e, step, span, &pending, (struct piece){from, start, rule->invert}));
        if (end > start) TRY(split_piece(e, step, span, &pending, (struct piece){start, end, !rule->invert}));
        from = end;
    }
    return pass_to_next_step(e, step, span, pending);
}

// Runs a step that only rewrites text: it prepends a blank, or replaces blanks by the step's text and prepends that
// text as the step's scheme says. Passes the result to the next step.
static enum status rewrite_blanks(struct encoder *e, int step, const struct text_span *span)
{
    const struct pretoken_step *rule = &e->tokenizer->pretoken[step];
    struct text_buffer buffer = {.tracked = e->tracked};
    if (rule->kind == PRETOKEN_BLANK) {
        if (span->text[0] == ' ') return pretokenize(e, step + 1, span);
        text_buffer_add(&buffer, " ", 1, text_span_origin(span, 0));
        text_buffer_copy(&buffer, span, 0, span->n);
    } else {
        bool starts = span->text[0] == ' ' || (span->n >= rule->n && !memcmp(span->text, rule->text, rule->n));
        bool wanted = rule->scheme == PREPEND_ALWAYS || (rule->scheme == PREPEND_FIRST && span->at_start);
        if (wanted && !starts) text_buffer_add(&buffer, rule->text, rule->n, text_span_origin(span, 0));
        for (size_t from = 0, at; from < span->n; from = at + 1) {
            const char *blank = memchr(span->text + from, ' ', span->n - from);
            at = blank ? (size_t)(blank - span->text) : span->n;
            text_buffer_copy(&buffer, span, from, at);
            if (blank) text_buffer_add(&buffer, rule->text, rule->n, text_span_origin(span, at));
        }
    }
    struct text_span view = text_buffer_view(&buffer, span);
    enum status status = pretokenize(e, step + 1, &view);
    text_buffer_free(&buffer);
    return status;
}

// Runs the pre-tokenizer steps from number `step` to the last on a piece, which must not be empty.
static enum status pretokenize(struct encoder *e, int step, const struct text_span *span)
{
    const struct tokenizer *t = e->tokenizer;
    if (step < t->n_pretoken)
        return t->pretoken[step].kind == PRETOKEN_SPLIT ? split_at_matches(e, step, span)
                                                        : rewrite_blanks(e, step, span);
    if (span->n > BPE_WORD_LIMIT_BYTES)
        return status_fail(STATUS_INVALID, "the tokenizer makes one word of %zu bytes of the text: must be at most %d",
                           span->n, BPE_WORD_LIMIT_BYTES);
    e->word = span;
    return bpe_encode(&t->bpe, &e->bpe, span->text, span->n, add_bpe_id, e) ? STATUS_OK : too_long(e->max);
}

// ---- Added tokens and the text between them.

typedef enum status text_fn(struct encoder *e, const struct text_span *span);

static enum status encode_around_added(struct encoder *e, const struct added_set *set, const struct text_span *span,
                                       text_fn *text)
{
    struct added_match match = {0};
    for (bool found = true; found;) {
        const size_t floor = match.end;
        TRY(added_set_search(set, span, match.next, floor, &e->policy, e->patterns, &match, &found));
        if (!found) match.start = match.end = span->n;
        struct text_span before = text_span_slice(span, floor, match.start > floor ? match.start : floor);
        if (before.n) TRY(text(e, &before));
        // White space that the match before has taken may reach over the whole token.
        const size_t start = match.start < match.next ? match.start : match.next - 1;
        if (found && !add_id(e, match.token->id, text_span_origin(span, start))) return too_long(e->max);
    }
    return STATUS_OK;
}

static enum status encode_normalized(struct encoder *e, const struct text_span *span)
{
    return pretokenize(e, 0, span);
}

static enum status encode_raw(struct encoder *e, const struct text_span *span)
{
    const struct tokenizer *t = e->tokenizer;
    struct text_span normalized;
    enum status status = normalizer_run(&t->normalizer, e->patterns, *span, e->normalized, &normalized);
    if (status || !normalized.n) return status;
    return encode_around_added(e, &t->added_normalized, &normalized, encode_normalized);
}

// ---- Public.

static enum status add_frame(struct encoder *e, const int32_t *ids, int n, size_t start)
{
    for (int i = 0; i < n; i++)
        if (!add_id(e, ids[i], start)) return too_long(e->max);
    return STATUS_OK;
}

enum status tokenizer_encode_untrusted(const struct tokenizer *tokenizer, const char *text, size_t size_bytes,
                                       unsigned flags, const struct text_range *untrusted, int n_untrusted, int max_ids,
                                       int32_t **ids_p, size_t **starts_p, int *n_p)
{
    size_t bad;
    if (size_bytes > TOKENIZER_TEXT_LIMIT_BYTES)
        return status_fail(STATUS_INVALID, "text of %zu bytes: at most %zu", size_bytes, TOKENIZER_TEXT_LIMIT_BYTES);
    if (!utf8_valid(text, size_bytes, &bad))
        return status_fail(STATUS_INVALID, "text is not UTF-8: byte %zu is wrong", bad);
    if (tokenizer_min_tokens(tokenizer, text, size_bytes) > (size_t)max_ids) return too_long(max_ids);

    struct encoder e = {.tokenizer = tokenizer,
                        .policy = {flags & TOKENIZER_PARSE_SPECIAL, untrusted, n_untrusted},
                        .tracked = starts_p || n_untrusted,
                        .max = max_ids,
                        .patterns = pattern_scratch_create(size_bytes)};
    e.normalized[0].tracked = e.normalized[1].tracked = e.tracked;
    struct text_span span = {.text = text, .n = size_bytes, .at_start = true};

    enum status status = STATUS_OK;
    if (flags & TOKENIZER_ADD_SPECIAL) status = add_frame(&e, tokenizer->before, tokenizer->n_before, 0);
    if (status == STATUS_OK) status = encode_around_added(&e, &tokenizer->added, &span, encode_raw);
    if (status == STATUS_OK && flags & TOKENIZER_ADD_SPECIAL)
        status = add_frame(&e, tokenizer->after, tokenizer->n_after, size_bytes);

    pattern_scratch_free(e.patterns);
    bpe_scratch_free(&e.bpe);
    text_buffer_free(&e.normalized[0]);
    text_buffer_free(&e.normalized[1]);
    if (status) {
        free(e.ids);
        free(e.starts);
        return status;
    }
    *ids_p = e.ids ? e.ids : mem_alloc(1);
    if (starts_p)
        *starts_p = e.starts ? e.starts : mem_alloc(1);
    else
        free(e.starts);
    *n_p = e.n;
    return STATUS_OK;
}

enum status tokenizer_encode(const struct tokenizer *tokenizer, const char *text, size_t size_bytes, unsigned flags,
                             int32_t **ids_p, int *n_p)
{
    return tokenizer_encode_untrusted(tokenizer, text, size_bytes, flags, NULL, 0, INT_MAX, ids_p, NULL, n_p);
}
