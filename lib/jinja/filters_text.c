// SPDX-License-Identifier: Apache-2.0
// Filters of strings.
#include "lib/jinja/filters.h"

#include <stdio.h>
#include <string.h>

static struct value empty_string(struct run *run)
{
    return value_string(run, "");
}

static struct value filter_trim(struct run *run, struct call *call)
{
    struct value chars = call->at[0];
    if (argument_given(chars)) call_text(run, call, 0);
    return string_strip(run, value_str(run, call->self), chars, true, true);
}

static struct value filter_upper(struct run *run, struct call *call)
{
    return string_case(run, value_str(run, call->self), CASE_UPPER);
}

static struct value filter_lower(struct run *run, struct call *call)
{
    return string_case(run, value_str(run, call->self), CASE_LOWER);
}

static struct value filter_capitalize(struct run *run, struct call *call)
{
    return string_case(run, value_str(run, call->self), CASE_CAPITAL);
}

static struct value filter_title(struct run *run, struct call *call)
{
    return string_case(run, value_str(run, call->self), CASE_FILTER_TITLE);
}

static struct value filter_string(struct run *run, struct call *call)
{
    return value_str(run, call->self);
}

static struct value filter_safe(struct run *run, struct call *call)
{
    struct value v = value_str(run, call->self);
    v.safe = true;
    return v;
}

static struct value filter_escape(struct run *run, struct call *call)
{
    return string_escape(run, value_str(run, call->self));
}

static struct value filter_forceescape(struct run *run, struct call *call)
{
    struct value v = value_str(run, call->self);
    v.safe = false;
    return string_escape(run, v);
}

static struct value filter_replace(struct run *run, struct call *call)
{
    struct value v = value_str(run, call->self);
    v.safe = false;
    return string_replace(run, v, value_str(run, call->at[0]), value_str(run, call->at[1]),
                          call_integer(run, call, 2, -1));
}

static struct value filter_join(struct run *run, struct call *call)
{
    struct value items = call->self,
                 separator = argument_given(call->at[0]) ? value_str(run, call->at[0]) : empty_string(run);
    if (call->at[0].kind == KIND_NONE) separator = value_string(run, "None");
    separator.safe = false;
    if (!argument_given(call->at[1])) return string_join(run, separator, items, true);
    struct list *list = list_new(run, 0);
    struct value v;
    for (struct iterator it = iterator_start(run, items); iterator_next(run, &it, &v);)
        list_add(run, list, item_path(run, v, call->at[1], value_missing));
    return string_join(run, separator, value_list(list), true);
}

static struct value filter_indent(struct run *run, struct call *call)
{
    if (call->self.kind == KIND_UNDEFINED) undefined_fail(run, call->self);
    if (call->self.kind != KIND_STRING) run_fail(run, "indent: expected a str, got %s", value_type(call->self));
    struct value prefix = call->at[0];
    if (prefix.kind != KIND_STRING) prefix = string_repeat(run, value_string(run, " "), call_integer(run, call, 0, 4));
    bool blank = call_flag(run, call, 2);
    struct value ended = string_concat(run, call->self, value_string(run, "\n"));
    struct list *lines = string_lines(run, ended, false).list;
    struct text *text = text_new(run, call->self.string->n * 2);
    for (size_t i = 0; i < lines->n; i++) {
        const struct string *line = lines->items[i].string;
        if (i) text_add(run, text, "\n", 1, JINJA_TEMPLATE);
        if (i ? blank || line->n : call_flag(run, call, 1)) text_add_string(run, text, prefix.string);
        text_add_string(run, text, line);
    }
    return value_text(run, text);
}

static struct value filter_truncate(struct run *run, struct call *call)
{
    struct value v = call->self,
                 end = call->at[2].kind == KIND_MISSING ? value_string(run, "...") : call_text(run, call, 2);
    int64_t length = call_integer(run, call, 0, 255), leeway = call_integer(run, call, 3, 5);
    int64_t end_n = (int64_t)value_length(run, end);
    if (length < end_n || leeway < 0) run_fail(run, "truncate: the length must be at least %lld", (long long)end_n);
    if ((int64_t)value_length(run, v) <= length + leeway) return v;
    if (v.kind != KIND_STRING) run_fail(run, "truncate: expected a str, got %s", value_type(v));
    const struct string *s = v.string;
    size_t cut = utf8_offset(s->data, s->n, (size_t)(length - end_n));
    for (size_t i = cut; !call_flag(run, call, 1) && i-- > 0;)
        if (s->data[i] == ' ') {
            cut = i;
            break;
        }
    return string_concat(run, value_part(run, v, 0, cut), end);
}

static struct value filter_center(struct run *run, struct call *call)
{
    struct value v = value_str(run, call->self);
    int64_t pad = call_integer(run, call, 0, 80) - (int64_t)value_length(run, v);
    if (pad <= 0) return v;
    int64_t width = pad + (int64_t)value_length(run, v), left = pad / 2 + (pad & width & 1);
    struct value blank = value_string(run, " ");
    return string_concat(run, string_concat(run, string_repeat(run, blank, left), v),
                         string_repeat(run, blank, pad - left));
}

static struct value filter_wordcount(struct run *run, struct call *call)
{
    const struct string *s = value_str(run, call->self).string;
    int64_t words = 0;
    bool inside = false;
    run_spend(run, s->n / 4);
    for (size_t i = 0; i < s->n; i++) {
        unsigned char c = (unsigned char)s->data[i];
        bool word = c >= 0x80 || (c >= '0' && c <= '9') || ((c | 0x20) >= 'a' && (c | 0x20) <= 'z') || c == '_';
        words += word && !inside;
        inside = word;
    }
    return value_int(words);
}

static void add_quoted(struct run *run, struct text *text, struct value v, bool query)
{
    const struct string *s = value_str(run, v).string;
    for (size_t i = 0; i < s->n; i++) {
        struct string one = {s->data + i, 1, s->text, s->start + i};
        unsigned char c = (unsigned char)s->data[i];
        bool plain = (c >= '0' && c <= '9') || ((c | 0x20) >= 'a' && (c | 0x20) <= 'z') || (c && strchr("_.-~", c)) ||
                     (c == '/' && !query);
        char out[4];
        snprintf(out, sizeof out, plain ? "%c" : c == ' ' && query ? "+" : "%%%02X", c);
        text_add(run, text, out, strlen(out), string_tag(&one));
    }
}

// Encodes a string, or a query made of pairs.
static struct value filter_urlencode(struct run *run, struct call *call)
{
    struct value v = call->self, pair;
    struct text *text = text_new(run, 64);
    if (v.kind == KIND_STRING || !value_iterable(v)) {
        add_quoted(run, text, v, false);
        return value_text(run, text);
    }
    struct view all = {v.dict, VIEW_ITEMS};
    if (v.kind == KIND_DICT) v = (struct value){.kind = KIND_VIEW, .view = &all};
    for (struct iterator it = iterator_start(run, v); iterator_next(run, &it, &pair);) {
        const struct list *parts = value_items(run, pair);
        if (parts->n != 2) run_fail(run, "a query is made of pairs");
        if (text->used) text_add(run, text, "&", 1, JINJA_TEMPLATE);
        add_quoted(run, text, parts->items[0], true);
        text_add(run, text, "=", 1, JINJA_TEMPLATE);
        add_quoted(run, text, parts->items[1], true);
    }
    return value_text(run, text);
}

static void add_escaped(struct run *run, struct text *text, struct value v)
{
    text_add_string(run, text, string_escape(run, value_str(run, v)).string);
}

static void check_attribute_name(struct run *run, struct value key)
{
    if (key.kind != KIND_STRING) run_fail(run, "expected string or bytes-like object, got '%s'", value_type(key));
    for (size_t i = 0; i < key.string->n; i++)
        if (key.string->data[i] && strchr(" \t\n\r\f\v/>=", key.string->data[i]))
            run_fail(run, "Invalid character in attribute name: %s", value_repr_short(run, key));
}

// Writes the attributes of an XML element: ' name="value"' for each entry.
static struct value filter_xmlattr(struct run *run, struct call *call)
{
    struct value v = call->self;
    if (v.kind == KIND_UNDEFINED) undefined_fail(run, v);
    if (v.kind != KIND_DICT) run_fail(run, "'%s' object has no attribute 'items'", value_type(v));
    bool blank = call->at[0].kind == KIND_MISSING || call_flag(run, call, 0);
    struct text *text = text_new(run, 64);
    for (size_t i = 0; i < v.dict->n; i++) {
        const struct dict_entry *entry = &v.dict->entries[i];
        if (entry->value.kind == KIND_NONE || entry->value.kind == KIND_UNDEFINED) continue;
        check_attribute_name(run, entry->key);
        if (blank || text->used) text_add(run, text, " ", 1, JINJA_TEMPLATE);
        add_escaped(run, text, entry->key);
        text_add(run, text, "=\"", 2, JINJA_TEMPLATE);
        add_escaped(run, text, entry->value);
        text_add(run, text, "\"", 1, JINJA_TEMPLATE);
    }
    return value_text(run, text);
}

static struct value filter_format(struct run *run, struct call *call)
{
    struct value format = value_str(run, call->self);
    if (call->arguments->named && call->arguments->n)
        run_fail(run, "can't handle positional and keyword arguments at the same time");
    if (call->arguments->named) return string_percent(run, format, value_dict(call->arguments->named));
    struct list *list = list_new(run, call->arguments->n);
    for (size_t i = 0; i < call->arguments->n; i++)
        list_add(run, list, call->arguments->values[i]);
    return string_percent(run, format, value_tuple(list));
}

static struct value filter_tojson(struct run *run, struct call *call)
{
    struct text *text = text_new(run, 64);
    if (call->self.kind == KIND_UNDEFINED) run_fail(run, "Object of type Undefined is not JSON serializable");
    text_add_json(run, text, call->self, call);
    return value_text(run, text);
}

const struct function text_filters[] = {
    {"capitalize", filter_capitalize, 0, ""},
    {"center", filter_center, 0, "width"},
    {"e", filter_escape, 0, ""},
    {"escape", filter_escape, 0, ""},
    {"forceescape", filter_forceescape, 0, ""},
    {"format", filter_format, 0, "*"},
    {"indent", filter_indent, 0, "width first blank"},
    {"join", filter_join, 0, "d attribute"},
    {"lower", filter_lower, 0, ""},
    {"replace", filter_replace, 2, "old new count"},
    {"safe", filter_safe, 0, ""},
    {"string", filter_string, 0, ""},
    {"title", filter_title, 0, ""},
    {"tojson", filter_tojson, 0, "ensure_ascii indent separators sort_keys"},
    {"trim", filter_trim, 0, "chars"},
    {"truncate", filter_truncate, 0, "length killwords end leeway"},
    {"upper", filter_upper, 0, ""},
    {"urlencode", filter_urlencode, 0, ""},
    {"wordcount", filter_wordcount, 0, ""},
    {"xmlattr", filter_xmlattr, 0, "autospace"},
    {0},
};
