// SPDX-License-Identifier: Apache-2.0
// Texts with origins, and operations on strings. A slice shares the text of its string, so its origins need no copy.
// Every other operation copies bytes together with their spans.
#include <string.h>
#include <utf8proc.h>

#include "lib/jinja/value.h"

struct text *text_new(struct run *run, size_t capacity)
{
    struct text *text = heap_alloc(run, sizeof *text);
    if (capacity) text->data = heap_grow(run, NULL, 0, capacity);
    text->capacity = capacity;
    return text;
}

static void text_reserve(struct run *run, struct text *text, size_t more)
{
    if (text->capacity - text->used >= more) return;
    if (more > run->limits.memory_bytes)
        run_fail(run, "the template needs more than %zu bytes of memory", run->limits.memory_bytes);
    size_t capacity = text->used + more + text->used / 2 + 32;
    text->data = heap_grow(run, text->data, text->used, capacity);
    text->capacity = capacity;
}

static void span_add(struct run *run, struct text *text, size_t start, size_t end, int tag)
{
    if (tag < 0 || start == end) return;
    struct jinja_span *last = text->n_spans ? &text->spans[text->n_spans - 1] : NULL;
    if (last && last->end == start && last->tag == tag) {
        last->end = end;
        return;
    }
    HEAP_GROW(run, text->spans, text->n_spans, text->spans_capacity);
    text->spans[text->n_spans++] = (struct jinja_span){start, end, tag};
}

static void text_add_bytes(struct run *run, struct text *text, const char *data, size_t n)
{
    run_spend(run, n / 16);
    if (text == run->out) {
        run->output_bytes += n;
        if (run->output_bytes > run->limits.output_bytes)
            run_fail(run, "the text is longer than %zu bytes", run->limits.output_bytes);
    }
    text_reserve(run, text, n);
    if (n) memcpy(text->data + text->used, data, n);
    text->used += n;
}

void text_add(struct run *run, struct text *text, const char *data, size_t n, int tag)
{
    text_add_bytes(run, text, data, n);
    span_add(run, text, text->used - n, text->used, tag);
}

// Returns the first span of `text` that ends after `start`.
static size_t span_find(const struct text *text, size_t start)
{
    size_t low = 0, high = text->n_spans;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (text->spans[middle].end <= start)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

void text_add_string(struct run *run, struct text *text, const struct string *s)
{
    size_t to = text->used;
    text_add_bytes(run, text, s->data, s->n);
    if (!s->text) return;
    size_t end = s->start + s->n;
    for (size_t i = span_find(s->text, s->start); i < s->text->n_spans && s->text->spans[i].start < end; i++) {
        struct jinja_span span = s->text->spans[i];
        size_t from = span.start > s->start ? span.start : s->start, until = span.end < end ? span.end : end;
        run_spend(run, 1);
        span_add(run, text, to + from - s->start, to + until - s->start, span.tag);
    }
}

struct value value_text(struct run *run, const struct text *text)
{
    struct string *s = heap_alloc(run, sizeof *s);
    *s = (struct string){text->data ? text->data : "", text->used, text, 0};
    return (struct value){.kind = KIND_STRING, .string = s};
}

struct value value_bytes(struct run *run, const char *data, size_t n)
{
    struct string *s = heap_alloc(run, sizeof *s);
    *s = (struct string){.data = data, .n = n};
    return (struct value){.kind = KIND_STRING, .string = s};
}

struct value value_string(struct run *run, const char *text)
{
    return value_bytes(run, text, strlen(text));
}

struct value value_part(struct run *run, struct value v, size_t start, size_t end)
{
    const struct string *from = v.string;
    if (start == 0 && end == from->n) return v;
    struct string *s = heap_alloc(run, sizeof *s);
    *s = (struct string){from->data + start, end - start, from->text, from->start + start};
    return (struct value){.kind = KIND_STRING, .safe = v.safe, .string = s};
}

int string_tag(const struct string *s)
{
    if (!s->text) return JINJA_TEMPLATE;
    size_t i = span_find(s->text, s->start);
    return i < s->text->n_spans && s->text->spans[i].start < s->start + s->n ? s->text->spans[i].tag : JINJA_TEMPLATE;
}

// ---- Characters.

size_t utf8_count(const char *data, size_t n)
{
    size_t count = 0;
    for (size_t i = 0; i < n; i++)
        count += (data[i] & 0xC0) != 0x80;
    return count;
}

size_t utf8_offset(const char *data, size_t n, size_t index)
{
    size_t at = 0;
    for (; at < n; at++)
        if ((data[at] & 0xC0) != 0x80 && index-- == 0) return at;
    return n;
}

int32_t utf8_get(const char *data, size_t *length_p)
{
    const unsigned char *s = (const unsigned char *)data;
    *length_p = s[0] < 0x80 ? 1 : s[0] < 0xE0 ? 2 : s[0] < 0xF0 ? 3 : 4;
    switch (*length_p) {
    case 1: return s[0];
    case 2: return (s[0] & 0x1F) << 6 | (s[1] & 0x3F);
    case 3: return (s[0] & 0x0F) << 12 | (s[1] & 0x3F) << 6 | (s[2] & 0x3F);
    default: return (s[0] & 0x07) << 18 | (s[1] & 0x3F) << 12 | (s[2] & 0x3F) << 6 | (s[3] & 0x3F);
    }
}

bool char_is_space(int32_t c)
{
    return (c >= 9 && c <= 13) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

size_t string_find(const char *data, size_t n, const char *part, size_t part_n)
{
    const char *at = part_n == 0 ? data : n ? memmem(data, n, part, part_n) : NULL;
    return at ? (size_t)(at - data) : SIZE_MAX;
}

// ---- Operations.

struct value string_concat(struct run *run, struct value a, struct value b)
{
    if (a.safe != b.safe) {
        if (a.safe)
            b = string_escape(run, b);
        else
            a = string_escape(run, a);
    }
    if (!a.string->n || !b.string->n) return a.string->n ? a : b;
    struct text *text = (struct text *)a.string->text;
    size_t n = a.string->n + b.string->n, start = a.string->start;
    // Extend the buffer in place if possible: a loop that collects its text must not copy it each time.
    if (!text || start + a.string->n != text->used || text->capacity - text->used < b.string->n) {
        text = text_new(run, n + n / 2 + 32);
        text_add_string(run, text, a.string);
        start = 0;
    }
    text_add_string(run, text, b.string);
    struct string *s = heap_alloc(run, sizeof *s);
    *s = (struct string){text->data + start, n, text, start};
    return (struct value){.kind = KIND_STRING, .safe = a.safe, .string = s};
}

static bool strips(int32_t c, struct value chars)
{
    if (chars.kind != KIND_STRING) return char_is_space(c);
    for (size_t i = 0, length; i < chars.string->n; i += length)
        if (utf8_get(chars.string->data + i, &length) == c) return true;
    return false;
}

struct value string_strip(struct run *run, struct value v, struct value chars, bool left, bool right)
{
    const char *data = v.string->data;
    size_t start = 0, end = v.string->n, length;
    size_t cost = chars.kind == KIND_STRING ? chars.string->n : 1;
    while (left && start < end) {
        run_spend(run, cost / 16 + 1);
        if (!strips(utf8_get(data + start, &length), chars)) break;
        start += length;
    }
    while (right && start < end) {
        size_t before = end - 1;
        run_spend(run, cost / 16 + 1);
        while ((data[before] & 0xC0) == 0x80)
            before--;
        if (!strips(utf8_get(data + before, &length), chars)) break;
        end = before;
    }
    return value_part(run, v, start, end);
}

struct value string_replace(struct run *run, struct value s, struct value old, struct value with, int64_t count)
{
    const struct string *from = s.string, *part = old.string;
    size_t at = 0;
    run_spend(run, from->n / 16);
    if (string_find(from->data, from->n, part->data, part->n) == SIZE_MAX) return s;
    struct text *text = text_new(run, from->n);
    for (; count != 0 && at <= from->n; count -= count > 0) {
        size_t found = string_find(from->data + at, from->n - at, part->data, part->n), length = part->n;
        if (found == SIZE_MAX) break;
        run_spend(run, 1);
        text_add_string(run, text, value_part(run, s, at, at + found).string);
        text_add_string(run, text, with.string);
        at += found + length;
        if (length) continue;
        if (at == from->n) return value_text(run, text); // the end is after the last character
        utf8_get(from->data + at, &length);
        text_add_string(run, text, value_part(run, s, at, at + length).string);
        at += length;
    }
    text_add_string(run, text, value_part(run, s, at, from->n).string);
    return value_text(run, text);
}

struct value string_escape(struct run *run, struct value v)
{
    if (v.safe) return v;
    const struct string *s = v.string;
    struct text *text = text_new(run, s->n + 16);
    size_t from = 0;
    for (size_t i = 0; i < s->n; i++) {
        const char *with = s->data[i] == '&'    ? "&amp;"
                           : s->data[i] == '<'  ? "&lt;"
                           : s->data[i] == '>'  ? "&gt;"
                           : s->data[i] == '"'  ? "&#34;"
                           : s->data[i] == '\'' ? "&#39;"
                                                : NULL;
        if (!with) continue;
        text_add_string(run, text, value_part(run, v, from, i).string);
        text_add(run, text, with, strlen(with), string_tag(value_part(run, v, i, i + 1).string));
        from = i + 1;
    }
    text_add_string(run, text, value_part(run, v, from, s->n).string);
    struct value escaped = value_text(run, text);
    escaped.safe = true;
    return escaped;
}

struct value string_repeat(struct run *run, struct value v, int64_t count)
{
    if (count == 1) return v;
    if (count <= 0 || !v.string->n) return value_part(run, v, 0, 0);
    if ((size_t)count > run->limits.memory_bytes / v.string->n)
        run_fail(run, "the template needs more than %zu bytes of memory", run->limits.memory_bytes);
    struct text *text = text_new(run, v.string->n * (size_t)count);
    for (int64_t i = 0; i < count; i++) {
        run_spend(run, 1);
        text_add_string(run, text, v.string);
    }
    struct value s = value_text(run, text);
    s.safe = v.safe;
    return s;
}

struct value string_join(struct run *run, struct value separator, struct value items, bool convert)
{
    struct text *text = text_new(run, 64);
    struct iterator it = iterator_start(run, items);
    struct value v;
    for (size_t n = 0; iterator_next(run, &it, &v); n++) {
        if (n) text_add_string(run, text, separator.string);
        if (!convert && v.kind != KIND_STRING)
            run_fail(run, "sequence item %zu: expected str instance, %s found", n, value_type(v));
        if (separator.safe) v = string_escape(run, value_str(run, v));
        text_add_value(run, text, v);
    }
    struct value joined = value_text(run, text);
    joined.safe = separator.safe;
    return joined;
}

static bool is_line_end(int32_t c)
{
    return (c >= 10 && c <= 13) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 || c == 0x2029;
}

struct value string_lines(struct run *run, struct value v, bool keep_ends)
{
    struct list *lines = list_new(run, 0);
    const struct string *s = v.string;
    size_t from = 0;
    for (size_t i = 0, length; i < s->n; i += length) {
        int32_t c = utf8_get(s->data + i, &length);
        if (!is_line_end(c)) continue;
        if (c == '\r' && i + 1 < s->n && s->data[i + 1] == '\n') length = 2;
        list_add(run, lines, value_part(run, v, from, keep_ends ? i + length : i));
        from = i + length;
    }
    if (from < s->n) list_add(run, lines, value_part(run, v, from, s->n));
    run_spend(run, s->n / 4);
    return value_list(lines);
}

// ---- Case.

static bool is_cased(int32_t c)
{
    utf8proc_category_t category = utf8proc_category(c);
    return category == UTF8PROC_CATEGORY_LU || category == UTF8PROC_CATEGORY_LL || category == UTF8PROC_CATEGORY_LT;
}

// Returns the expansion of a letter that becomes several characters.
static const char *upper_expansion(int32_t c)
{
    static const char *const ligatures[] = {"FF", "FI", "FL", "FFI", "FFL", "ST", "ST"};
    return c == 0xDF ? "SS" : c >= 0xFB00 && c <= 0xFB06 ? ligatures[c - 0xFB00] : NULL;
}

static size_t char_convert(int32_t c, bool upper, bool title, bool ends_word, char out[8])
{
    const char *expansion = upper ? upper_expansion(c) : NULL;
    if (expansion) {
        strcpy(out, expansion);
        for (int i = 1; title && out[i]; i++)
            out[i] |= 0x20;
        return strlen(out);
    }
    if (!upper && c == 0x130) { // I with dot above becomes i and a combining dot
        strcpy(out, "i\xCC\x87");
        return strlen(out);
    }
    if (!upper && c == 0x3A3 && ends_word) c = 0x3C2; // sigma at the end of a word
    int32_t to = c == 0x3C2 ? c : title ? utf8proc_totitle(c) : upper ? utf8proc_toupper(c) : utf8proc_tolower(c);
    if (c == 0x3C2 && upper) to = 0x3A3;
    return (size_t)utf8proc_encode_char(to, (utf8proc_uint8_t *)out);
}

static bool starts_word(int32_t before, enum letter_case to)
{
    if (to == CASE_TITLE) return !is_cased(before);
    return before == '-' || before == '(' || before == '{' || before == '[' || before == '<' || char_is_space(before);
}

struct value string_case(struct run *run, struct value v, enum letter_case to)
{
    const struct string *s = v.string;
    struct text *text = text_new(run, s->n);
    int32_t before = ' ';
    run_spend(run, s->n / 4);
    for (size_t i = 0, length; i < s->n; i += length) {
        int32_t c = utf8_get(s->data + i, &length), after = 0;
        bool first = to == CASE_CAPITAL ? i == 0 : starts_word(before, to);
        bool upper = to == CASE_UPPER || (to != CASE_LOWER && to != CASE_SWAP && first) ||
                     (to == CASE_SWAP && utf8proc_category(c) == UTF8PROC_CATEGORY_LL);
        size_t next;
        if (i + length < s->n) after = utf8_get(s->data + i + length, &next);
        char out[8];
        size_t n = char_convert(c, upper, upper && (to == CASE_CAPITAL || to == CASE_TITLE),
                                i && is_cased(before) && !is_cased(after), out);
        struct string one = {s->data + i, length, s->text, s->start + i};
        text_add(run, text, out, n, string_tag(&one));
        before = c;
    }
    struct value converted = value_text(run, text);
    converted.safe = v.safe;
    return converted;
}
