// SPDX-License-Identifier: Apache-2.0
// Converts values to text like Python's str() and repr().
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "lib/jinja/value.h"

// Writes the shortest digits that give the same number again, as Python does. Starts with 15 digits: if fewer digits
// suffice, the rest are zeros, which are dropped.
int float_format(char *out, size_t size, double d)
{
    if (isnan(d)) return snprintf(out, size, "nan");
    if (isinf(d)) return snprintf(out, size, d < 0 ? "-inf" : "inf");
    char digits[40];
    int precision = isnormal(d) ? 14 : 0;
    do
        snprintf(digits, sizeof digits, "%.*e", precision++, d);
    while (precision < 17 && strtod(digits, NULL) != d);
    char *end = strchr(digits, 'e'), *point = strchr(digits, '.');
    int exponent = atoi(end + 1);
    while (point && end[-1] == '0')
        end--;
    int decimals = point ? (int)(end - point) - 1 : 0;
    if (point && !decimals) end--;
    if (exponent < -4 || exponent >= 16)
        return snprintf(out, size, "%.*se%c%02d", (int)(end - digits), digits, exponent < 0 ? '-' : '+', abs(exponent));
    decimals -= exponent;
    return snprintf(out, size, "%.*f", decimals > 1 ? decimals : 1, d);
}

static bool is_printable(int32_t c)
{
    if (c < 0x7F) return c >= 0x20;
    switch (utf8proc_category(c)) {
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS: return false;
    default: return true;
    }
}

static int char_escape(char out[16], int32_t c, char quote)
{
    if (c == '\n') return snprintf(out, 16, "\\n");
    if (c == '\r') return snprintf(out, 16, "\\r");
    if (c == '\t') return snprintf(out, 16, "\\t");
    if (c == '\\' || c == quote) return snprintf(out, 16, "\\%c", (char)c);
    if (is_printable(c)) return 0;
    return snprintf(out, 16, c < 0x100 ? "\\x%02x" : c < 0x10000 ? "\\u%04x" : "\\U%08x", (unsigned)c);
}

static void add_string_repr(struct run *run, struct text *text, struct value v)
{
    const struct string *s = v.string;
    char quote = s->n && memchr(s->data, '\'', s->n) && !memchr(s->data, '"', s->n) ? '"' : '\'', out[16];
    size_t from = 0;
    if (v.safe) text_add(run, text, "Markup(", 7, JINJA_TEMPLATE);
    text_add(run, text, &quote, 1, JINJA_TEMPLATE);
    for (size_t i = 0, length; i < s->n; i += length) {
        int n = char_escape(out, utf8_get(s->data + i, &length), quote);
        if (!n) continue;
        text_add_string(run, text, value_part(run, v, from, i).string);
        struct string one = {s->data + i, length, s->text, s->start + i};
        text_add(run, text, out, (size_t)n, string_tag(&one));
        from = i + length;
    }
    text_add_string(run, text, value_part(run, v, from, s->n).string);
    text_add(run, text, &quote, 1, JINJA_TEMPLATE);
    if (v.safe) text_add(run, text, ")", 1, JINJA_TEMPLATE);
}

static void add(struct run *run, struct text *text, const char *literal)
{
    text_add(run, text, literal, strlen(literal), JINJA_TEMPLATE);
}

static void add_items(struct run *run, struct text *text, const struct list *list, const char *open, const char *close)
{
    add(run, text, open);
    for (size_t i = 0; i < list->n; i++) {
        if (i) add(run, text, ", ");
        text_add_repr(run, text, list->items[i]);
    }
    add(run, text, close);
}

static void add_dict(struct run *run, struct text *text, const struct dict *dict)
{
    add(run, text, "{");
    for (size_t i = 0; i < dict->n; i++) {
        if (i) add(run, text, ", ");
        text_add_repr(run, text, dict->entries[i].key);
        add(run, text, ": ");
        text_add_repr(run, text, dict->entries[i].value);
    }
    add(run, text, "}");
}

static void add_view(struct run *run, struct text *text, struct value v)
{
    add(run, text, value_type(v));
    add(run, text, "(");
    add_items(run, text, value_items(run, v), "[", "]");
    add(run, text, ")");
}

static void add_range(struct run *run, struct text *text, const struct range *range)
{
    char out[96];
    long long start = range->start, end = range->stop, step = range->step;
    snprintf(out, sizeof out, step == 1 ? "range(%lld, %lld)" : "range(%lld, %lld, %lld)", start, end, step);
    add(run, text, out);
}

static void add_number(struct run *run, struct text *text, struct value v)
{
    char out[64];
    if (v.kind == KIND_FLOAT) run_spend(run, FLOAT_FORMAT_STEPS);
    int n = v.kind == KIND_BOOL    ? snprintf(out, sizeof out, v.boolean ? "True" : "False")
            : v.kind == KIND_FLOAT ? float_format(out, sizeof out, v.number)
                                   : snprintf(out, sizeof out, "%lld", (long long)v.integer);
    text_add(run, text, out, (size_t)n, v.tag);
}

static void add_object(struct run *run, struct text *text, struct value v)
{
    char out[64];
    if (v.kind == KIND_LOOP)
        snprintf(out, sizeof out, "<LoopContext %zu/%zu>", v.loop->index + 1, v.loop->n);
    else
        snprintf(out, sizeof out, "<%s object>", value_type(v));
    add(run, text, out);
}

static void add_repr(struct run *run, struct text *text, struct value v)
{
    switch (v.kind) {
    case KIND_UNDEFINED: add(run, text, "Undefined"); break;
    case KIND_NONE: add(run, text, "None"); break;
    case KIND_BOOL:
    case KIND_INT:
    case KIND_FLOAT: add_number(run, text, v); break;
    case KIND_STRING: add_string_repr(run, text, v); break;
    case KIND_LIST: add_items(run, text, v.list, "[", "]"); break;
    case KIND_TUPLE: add_items(run, text, v.list, "(", v.list->n == 1 ? ",)" : ")"); break;
    case KIND_DICT: add_dict(run, text, v.dict); break;
    case KIND_NAMESPACE:
        add(run, text, "<Namespace ");
        add_dict(run, text, v.dict);
        add(run, text, ">");
        break;
    case KIND_RANGE: add_range(run, text, v.range); break;
    case KIND_VIEW: add_view(run, text, v); break;
    default: add_object(run, text, v);
    }
}

void text_add_repr(struct run *run, struct text *text, struct value v)
{
    run_enter(run);
    add_repr(run, text, v);
    run->depth--;
}

void text_add_value(struct run *run, struct text *text, struct value v)
{
    if (v.kind == KIND_STRING)
        text_add_string(run, text, v.string);
    else if (v.kind != KIND_UNDEFINED)
        text_add_repr(run, text, v);
}

struct value value_str(struct run *run, struct value v)
{
    if (v.kind == KIND_STRING) return v;
    struct text *text = text_new(run, 0);
    text_add_value(run, text, v);
    return value_text(run, text);
}

const char *value_repr_short(struct run *run, struct value v)
{
    enum { SHORT_BYTES = 120 };
    struct text *text = text_new(run, 0);
    if (v.kind == KIND_STRING && v.string->n > SHORT_BYTES)
        v = value_part(run, v, 0, utf8_offset(v.string->data, v.string->n, SHORT_BYTES / 4));
    text_add_repr(run, text, v);
    text_add(run, text, "", 1, JINJA_TEMPLATE);
    return text->data;
}
