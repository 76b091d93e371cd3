// SPDX-License-Identifier: Apache-2.0
#include "lib/text/cut.h"

#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "lib/text/cut_parts.h"

enum { UNIT_BYTES_MIN = 32, UNIT_BYTES_MAX = 1024 };

void cut_units_free(struct cut_units *units)
{
    free(units->units);
    *units = (struct cut_units){0};
}

struct cut_units cut_units_whole(size_t n)
{
    struct cut_units units = {0};
    cut_add(&units, (struct cut_unit){.range = {0, n}, .fixed = true});
    return units;
}

// --- lines

static size_t line_end(const char *text, size_t at, size_t end)
{
    const char *stop = memchr(text + at, '\n', end - at);
    return stop ? (size_t)(stop - text) + 1 : end;
}

static bool line_is_blank(const char *text, size_t at, size_t end)
{
    while (at < end && cut_is_blank(text[at]))
        at++;
    return at == end;
}

// Returns the end of the blank lines that begin at `at`.
static size_t skip_blank_lines(const char *text, size_t at, size_t end)
{
    for (size_t next; at < end; at = next) {
        next = line_end(text, at, end);
        if (!line_is_blank(text, at, next)) break;
    }
    return at;
}

// --- code

// Adds [start, end) as runs of lines. A run ends with blank lines, or when it is long.
static void add_code(const char *text, size_t start, size_t end, int block, struct cut_units *units)
{
    while (start < end) {
        size_t at = start;
        do {
            at = line_end(text, at, end);
            size_t next = skip_blank_lines(text, at, end);
            if (next > at || at - start >= UNIT_BYTES_MAX) {
                at = next;
                break;
            }
        } while (at < end);
        cut_add(units, (struct cut_unit){.range = {start, at}, .block = block});
        start = at;
    }
}

static bool line_is_code(const char *text, size_t at, size_t end)
{
    while (end > at && cut_is_blank(text[end - 1]))
        end--;
    bool indented = text[at] == '\t' || (end - at > 2 && text[at] == ' ' && text[at + 1] == ' ');
    return indented || text[end - 1] == '{' || text[end - 1] == '}' || text[end - 1] == ';';
}

static bool looks_like_code(const char *text, size_t start, size_t end)
{
    int lines = 0, code = 0;
    for (size_t at = start, next; at < end; at = next) {
        next = line_end(text, at, end);
        if (line_is_blank(text, at, next)) continue;
        lines++;
        code += line_is_code(text, at, next);
    }
    return lines >= 3 && 2 * code >= lines;
}

// --- prose

// Returns the length of a string of `list` that begins at `at`, or 0.
static size_t match(const char *text, size_t at, size_t end, const char *const *list)
{
    for (; *list; list++) {
        size_t n = strlen(*list);
        if (n <= end - at && memcmp(text + at, *list, n) == 0) return n;
    }
    return 0;
}

// Returns the end of the sentence that begins at `at`, with the blanks after it. A stop such as the dot ends a sentence
// only if a blank follows. `end` is the end of the line.
static size_t sentence_end(const char *text, size_t at, size_t end)
{
    static const char *const stops[] = {".", "!", "?", "\u2026", NULL};
    static const char *const wide_stops[] = {"\u3002", "\uff01", "\uff1f", "\u0964", NULL};
    static const char *const closing[] = {"\"", "'", ")", "]", "*", "\u201d", "\u2019", "\u00bb", "\u300d", NULL};
    while (at < end) {
        size_t stop = match(text, at, end, stops), wide = stop ? 0 : match(text, at, end, wide_stops);
        if (!stop && !wide) {
            at++;
            continue;
        }
        at += stop + wide;
        for (size_t n; (n = match(text, at, end, closing));)
            at += n;
        if (at < end && !wide && text[at] != ' ' && text[at] != '\t') continue;
        while (at < end && (text[at] == ' ' || text[at] == '\t'))
            at++;
        return at;
    }
    return end;
}

// Returns the end of the unit that begins at `at`: sentences of at least UNIT_BYTES_MIN together. A sentence longer
// than UNIT_BYTES_MAX ends after a blank. `end` is the end of the line.
static size_t prose_unit_end(const char *text, size_t at, size_t end)
{
    size_t limit = end - at > UNIT_BYTES_MAX ? at + UNIT_BYTES_MAX + 1 : end, stop = at;
    while (stop < limit && stop - at < UNIT_BYTES_MIN)
        stop = sentence_end(text, stop, limit);
    if (end - stop < UNIT_BYTES_MIN) stop = end;
    if (stop - at <= UNIT_BYTES_MAX) return stop;
    for (size_t i = limit - 1; i > at; i--)
        if (text[i - 1] == ' ') return i;
    while (stop < end && text[stop - 1] != ' ')
        stop++;
    return stop;
}

// Returns true if the line is one unit: it looks like JSON, or it has the characters of a fence, so that a part of the
// line could become a fence.
static bool line_is_whole(const char *text, size_t at, size_t end)
{
    static const char *const fences[] = {"```", "~~~", NULL};
    if (text[at] == '{' || text[at] == '[') return true;
    for (; at < end; at++)
        if (match(text, at, end, fences)) return true;
    return false;
}

// Adds a line of several sentences. `words` is the end of its last word. The end of the line is a frame, so that the
// next line stays a line.
static void add_sentences(const char *text, size_t at, size_t words, size_t end, struct cut_units *units)
{
    int block = ++units->n_blocks;
    for (size_t next; at < words; at = next) {
        next = prose_unit_end(text, at, words);
        cut_add(units, (struct cut_unit){.range = {at, next}, .block = block});
    }
    cut_add(units, (struct cut_unit){.range = {words, end}, .block = block, .frame = true});
}

static void add_prose(const char *text, size_t start, size_t end, struct cut_units *units)
{
    while (start < end) {
        size_t at = skip_blank_lines(text, start, end);
        size_t line = at < end ? line_end(text, at, end) : end, next = skip_blank_lines(text, line, end), words = line;
        while (words > start && cut_is_blank(text[words - 1]))
            words--;
        bool whole = line_is_whole(text, at, line) || prose_unit_end(text, start, words) >= words;
        // A short line, such as a heading, is joined with the next line.
        while (whole && next - start < UNIT_BYTES_MIN && next < end) {
            size_t more = line_end(text, next, end);
            if (more - next > UNIT_BYTES_MAX) break;
            next = skip_blank_lines(text, more, end);
        }
        if (whole)
            cut_add(units, (struct cut_unit){.range = {start, next}});
        else
            add_sentences(text, start, words, next, units);
        start = next;
    }
}

static void add_unfenced(const char *text, size_t start, size_t end, struct cut_units *units)
{
    if (looks_like_code(text, start, end))
        add_code(text, start, end, 0, units);
    else
        add_prose(text, start, end, units);
}

// --- fences

// Returns the number of fence characters with which the line begins, if it is a fence, else 0.
static size_t fence_length(const char *text, size_t at, size_t end)
{
    for (int i = 0; i < 3 && at < end && text[at] == ' '; i++)
        at++;
    size_t n = 0;
    while (at + n < end && (text[at] == '`' || text[at] == '~') && text[at + n] == text[at])
        n++;
    return n >= 3 && (text[at] == '~' || !memchr(text + at + n, '`', end - at - n)) ? n : 0;
}

static char fence_char(const char *text, size_t at)
{
    while (text[at] == ' ')
        at++;
    return text[at];
}

// Returns the start of the fence that closes the block whose first line is `open`, or `end` if none does.
static size_t block_close(const char *text, struct text_range open, size_t end)
{
    size_t length = fence_length(text, open.start, open.end);
    char c = fence_char(text, open.start);
    for (size_t at = open.end, next; at < end; at = next) {
        next = line_end(text, at, end);
        if (fence_length(text, at, next) < length || fence_char(text, at) != c) continue;
        size_t after = at;
        while (after < next && (text[after] == ' ' || text[after] == c))
            after++;
        if (line_is_blank(text, after, next)) return at;
    }
    return end;
}

// Adds the fenced block whose first line is `open`. Returns its end.
static size_t add_block(const char *text, struct text_range open, size_t end, struct cut_units *units)
{
    size_t close = block_close(text, open, end);
    size_t after = close < end ? skip_blank_lines(text, line_end(text, close, end), end) : end;
    bool whole = after - open.start <= UNIT_BYTES_MAX || close == end || open.end == close ||
                 cut_is_json(text + open.end, close - open.end);
    if (whole) {
        cut_add(units, (struct cut_unit){.range = {open.start, after}});
        return after;
    }
    int block = ++units->n_blocks;
    cut_add(units, (struct cut_unit){.range = open, .block = block, .frame = true});
    add_code(text, open.end, close, block, units);
    cut_add(units, (struct cut_unit){.range = {close, after}, .block = block, .frame = true});
    return after;
}

// Adds the whole text. Returns the number of bytes in fenced blocks.
static size_t add_text(const char *text, size_t n, struct cut_units *units)
{
    size_t start = 0, fenced = 0;
    for (size_t at = 0, next; at < n; at = next) {
        next = line_end(text, at, n);
        if (!fence_length(text, at, next)) continue;
        add_unfenced(text, start, at, units);
        start = add_block(text, (struct text_range){at, next}, n, units);
        fenced += start - at;
        next = start;
    }
    add_unfenced(text, start, n, units);
    return fenced;
}

struct cut_units cut_units_create(const char *text, size_t n)
{
    struct cut_units units = {0};
    if (cut_json(text, n, &units)) return units;
    size_t fenced = add_text(text, n, &units);
    units.kind = 2 * fenced > n || looks_like_code(text, 0, n) ? CUT_CODE : CUT_PROSE;
    return units;
}

// --- what remains

// Marks the last kept unit of each block, frames left out. `last` [n_blocks + 1] is -1 for a block without one.
static void find_last(const struct cut_units *units, const bool *keep, int *last)
{
    for (int b = 0; b <= units->n_blocks; b++)
        last[b] = -1;
    for (int i = 0; i < units->n; i++)
        if (keep[i] && !units->units[i].frame) last[units->units[i].block] = i;
}

int cut_kept(const struct cut_units *units, bool *keep, struct text_range *ranges)
{
    int *last = mem_alloc_array((size_t)units->n_blocks + 1, sizeof *last), n = 0;
    find_last(units, keep, last);
    for (int i = 0; i < units->n; i++) {
        const struct cut_unit *unit = &units->units[i];
        if (unit->frame) keep[i] = last[unit->block] >= 0;
        if (unit->fixed) keep[i] = true;
        if (!keep[i]) continue;
        size_t end = unit->range.end - (last[unit->block] == i ? unit->trim : 0);
        if (n && ranges[n - 1].end == unit->range.start)
            ranges[n - 1].end = end;
        else
            ranges[n++] = (struct text_range){unit->range.start, end};
    }
    free(last);
    return n;
}
