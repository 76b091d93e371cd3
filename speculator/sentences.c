// SPDX-License-Identifier: Apache-2.0
#include "speculator/sentences.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"

// Returns the length of `bytes` [n] without a suffix from `ends`. Removes at most one suffix.
static size_t strip_one(const char *bytes, size_t n, const char *const *ends)
{
    for (; *ends; ends++) {
        size_t length = strlen(*ends);
        if (n >= length && memcmp(bytes + n - length, *ends, length) == 0) return n - length;
    }
    return n;
}

// Returns the mark of the last character before closing quotes and brackets. SENTENCE_STOPS: a stop that ends a
// sentence if a blank follows. SENTENCE_ENDS: a stop that ends a sentence whatever follows. 0: no stop. Returns
// SENTENCE_ONLY_CLOSES for a token of quotes and brackets only.
static uint8_t last_mark(const char *bytes, size_t n)
{
    static const char *const closing[] = {"\"", "'", ")", "]", "*", "\u201d", "\u2019", "\u00bb", NULL};
    static const char *const stops[] = {".", "!", "?", "\u2026", NULL};
    static const char *const wide_stops[] = {"\u3002", "\uff01", "\uff1f", "\u0964", NULL};
    for (size_t shorter; (shorter = strip_one(bytes, n, closing)) < n;)
        n = shorter;
    if (!n) return SENTENCE_ONLY_CLOSES;
    if (strip_one(bytes, n, wide_stops) < n) return SENTENCE_ENDS;
    return strip_one(bytes, n, stops) < n ? SENTENCE_STOPS : 0;
}

static uint8_t token_mark(const struct tokenizer *tokenizer, int32_t id)
{
    const char *bytes;
    size_t n;
    tokenizer_piece(tokenizer, id, &bytes, &n);
    if (!n) return 0;
    if (tokenizer_is_special(tokenizer, id)) return SENTENCE_ENDS_LINE;
    uint8_t mark = last_mark(bytes, n);
    if (memchr(bytes, '\n', n)) mark |= SENTENCE_ENDS_LINE;
    if (*bytes == '\n' || *bytes == '\r') mark |= SENTENCE_LINE_BREAK_FIRST;
    if (*bytes == ' ' || *bytes == '\t') mark |= SENTENCE_BLANK_FIRST;
    return mark;
}

struct sentence_table sentence_table_create(const struct tokenizer *tokenizer)
{
    struct sentence_table table = {.n = tokenizer_vocab_size(tokenizer)};
    table.marks = mem_alloc_array((size_t)table.n, sizeof *table.marks);
    for (int32_t id = 0; id < table.n; id++)
        table.marks[id] = token_mark(tokenizer, id);
    return table;
}

void sentence_table_free(struct sentence_table *table)
{
    free(table->marks);
    *table = (struct sentence_table){0};
}

static bool ends_here(uint8_t mark, uint8_t next)
{
    if (next & SENTENCE_LINE_BREAK_FIRST) return false;
    if (mark & SENTENCE_ENDS_LINE) return true;
    if (mark & SENTENCE_ENDS) return !(next & SENTENCE_ONLY_CLOSES);
    return mark & SENTENCE_STOPS && next & SENTENCE_BLANK_FIRST;
}

void sentence_ends(const struct sentence_table *table, const int32_t *tokens, int n, uint8_t *ends)
{
    uint8_t mark = 0;
    for (int j = 0; j < n; j++) {
        uint8_t next = tokens[j] < table->n ? table->marks[tokens[j]] : 0;
        if (j) ends[j - 1] = ends_here(mark, next);
        bool goes_on = next & SENTENCE_ONLY_CLOSES;
        mark = goes_on ? next | (mark & (SENTENCE_ENDS | SENTENCE_STOPS)) : next;
    }
    ends[n - 1] = 1;
}

uint8_t *sentence_ends_create(const struct sentence_table *table, const int32_t *tokens, int n)
{
    if (!table) return NULL;
    uint8_t *ends = mem_alloc((size_t)n);
    sentence_ends(table, tokens, n, ends);
    return ends;
}
