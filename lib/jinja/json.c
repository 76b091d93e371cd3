// SPDX-License-Identifier: Apache-2.0
// Writes JSON like Python's json.dumps().
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "lib/jinja/value.h"

struct json_writer {
    struct run *run;
    struct text *text;
    bool ascii, sort;
    struct value item_separator, key_separator, indent; // strings; indent MISSING means one line
    int level;
};

static void add(struct json_writer *w, const char *literal)
{
    text_add(w->run, w->text, literal, strlen(literal), JINJA_TEMPLATE);
}

static int json_escape(char out[16], int32_t c, bool ascii)
{
    static const char plain[] = "\"\\\n\r\t\b\f", letter[] = "\"\\nrtbf";
    const char *known = c && c < 0x80 ? strchr(plain, c) : NULL;
    if (known) return snprintf(out, 16, "\\%c", letter[known - plain]);
    if (c >= 0x20 && (!ascii || c < 0x7F)) return 0;
    if (c < 0x10000) return snprintf(out, 16, "\\u%04x", (unsigned)c);
    unsigned rest = (unsigned)c - 0x10000;
    return snprintf(out, 16, "\\u%04x\\u%04x", 0xD800 | rest >> 10, 0xDC00 | (rest & 0x3FF));
}

static void write_string(struct json_writer *w, struct value v)
{
    const struct string *s = v.string;
    size_t from = 0;
    char out[16];
    add(w, "\"");
    for (size_t i = 0, length; i < s->n; i += length) {
        int n = json_escape(out, utf8_get(s->data + i, &length), w->ascii);
        if (!n) continue;
        text_add_string(w->run, w->text, value_part(w->run, v, from, i).string);
        struct string one = {s->data + i, length, s->text, s->start + i};
        text_add(w->run, w->text, out, (size_t)n, string_tag(&one));
        from = i + length;
    }
    text_add_string(w->run, w->text, value_part(w->run, v, from, s->n).string);
    add(w, "\"");
}

static void write_scalar(struct json_writer *w, struct value v)
{
    char out[64];
    int n = 0;
    if (v.kind == KIND_FLOAT) run_spend(w->run, FLOAT_FORMAT_STEPS);
    switch (v.kind) {
    case KIND_NONE: n = snprintf(out, sizeof out, "null"); break;
    case KIND_BOOL: n = snprintf(out, sizeof out, v.boolean ? "true" : "false"); break;
    case KIND_INT: n = snprintf(out, sizeof out, "%lld", (long long)v.integer); break;
    case KIND_FLOAT:
        n = isfinite(v.number) ? float_format(out, sizeof out, v.number)
                               : snprintf(out, sizeof out,
                                          isnan(v.number) ? "NaN"
                                          : v.number < 0  ? "-Infinity"
                                                          : "Infinity");
        break;
    default: run_fail(w->run, "Object of type %s is not JSON serializable", value_type(v));
    }
    text_add(w->run, w->text, out, (size_t)n, v.kind == KIND_NONE ? JINJA_TEMPLATE : v.tag);
}

static void new_line(struct json_writer *w)
{
    if (w->indent.kind == KIND_MISSING) return;
    add(w, "\n");
    for (int i = 0; i < w->level; i++)
        text_add_string(w->run, w->text, w->indent.string);
}

static void write_value(struct json_writer *w, struct value v);

static void write_list(struct json_writer *w, const struct list *list)
{
    add(w, "[");
    w->level++;
    for (size_t i = 0; i < list->n; i++) {
        if (i) text_add_string(w->run, w->text, w->item_separator.string);
        new_line(w);
        write_value(w, list->items[i]);
    }
    w->level--;
    if (list->n) new_line(w);
    add(w, "]");
}

static void write_key(struct json_writer *w, struct value key)
{
    if (key.kind == KIND_STRING) {
        write_string(w, key);
        return;
    }
    if (key.kind != KIND_NONE && key.kind != KIND_BOOL && key.kind != KIND_INT && key.kind != KIND_FLOAT)
        run_fail(w->run, "keys must be str, int, float, bool or None, not %s", value_type(key));
    add(w, "\"");
    write_scalar(w, key);
    add(w, "\"");
}

static struct list *sorted_keys(struct json_writer *w, const struct dict *dict)
{
    struct value *keys = heap_array(w->run, dict->n + 1, sizeof *keys),
                 *items = heap_array(w->run, dict->n + 1, sizeof *items);
    for (size_t i = 0; i < dict->n; i++) {
        keys[i] = dict->entries[i].key;
        items[i] = list_pair(w->run, dict->entries[i].key, dict->entries[i].value);
    }
    return list_sorted(w->run, keys, items, dict->n, false).list;
}

static void write_dict(struct json_writer *w, const struct dict *dict)
{
    struct list *sorted = w->sort ? sorted_keys(w, dict) : NULL;
    add(w, "{");
    w->level++;
    for (size_t i = 0; i < dict->n; i++) {
        if (i) text_add_string(w->run, w->text, w->item_separator.string);
        new_line(w);
        write_key(w, sorted ? sorted->items[i].list->items[0] : dict->entries[i].key);
        text_add_string(w->run, w->text, w->key_separator.string);
        write_value(w, sorted ? sorted->items[i].list->items[1] : dict->entries[i].value);
    }
    w->level--;
    if (dict->n) new_line(w);
    add(w, "}");
}

static void write_value(struct json_writer *w, struct value v)
{
    run_enter(w->run);
    if (v.kind == KIND_STRING)
        write_string(w, v);
    else if (v.kind == KIND_LIST || v.kind == KIND_TUPLE)
        write_list(w, v.list);
    else if (v.kind == KIND_DICT)
        write_dict(w, v.dict);
    else
        write_scalar(w, v);
    w->run->depth--;
}

static void read_separators(struct json_writer *w, struct value pair)
{
    bool lines = w->indent.kind != KIND_MISSING;
    w->item_separator = value_string(w->run, lines ? "," : ", ");
    w->key_separator = value_string(w->run, ": ");
    if (pair.kind == KIND_MISSING || pair.kind == KIND_NONE) return;
    const struct list *items = value_items(w->run, pair);
    if (items->n != 2 || items->items[0].kind != KIND_STRING || items->items[1].kind != KIND_STRING)
        run_fail(w->run, "separators must be two strings");
    w->item_separator = items->items[0];
    w->key_separator = items->items[1];
}

void text_add_json(struct run *run, struct text *text, struct value v, const struct call *call)
{
    struct json_writer w = {
        .run = run, .text = text, .ascii = call_flag(run, call, 0), .sort = call_flag(run, call, 3)};
    struct value indent = call->at[1];
    if (indent.kind == KIND_STRING)
        w.indent = indent;
    else if (indent.kind != KIND_MISSING && indent.kind != KIND_NONE)
        w.indent = string_repeat(run, value_string(run, " "), call_integer(run, call, 1, 0));
    read_separators(&w, call->at[2]);
    write_value(&w, v);
}
