// SPDX-License-Identifier: Apache-2.0
// Filters.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "jinja/value.h"

static bool given(struct value v)
{
    return v.kind != KIND_MISSING && v.kind != KIND_NONE;
}

static struct value empty_string(struct run *run)
{
    return value_string(run, "");
}

// ---- Attributes of elements: "a.b.0" of each.

static struct value get_part(struct run *run, struct value item, const char *part, size_t n)
{
    struct value key = value_bytes(run, part, n);
    if (n && n < 10 && strspn(part, "0123456789") >= n) key = value_int(strtoll(part, NULL, 10));
    return value_item(run, item, key);
}

static struct value get_path(struct run *run, struct value item, struct value path, struct value otherwise)
{
    if (!given(path)) return item;
    if (path.kind != KIND_STRING) {
        item = value_item(run, item, path);
        return item.kind == KIND_UNDEFINED && given(otherwise) ? otherwise : item;
    }
    // A copy that ends with NUL, for the numbers.
    struct text *text = text_new(run, path.string->n + 1);
    text_add(run, text, path.string->data, path.string->n, JINJA_TEMPLATE);
    text_add(run, text, "", 1, JINJA_TEMPLATE);
    for (const char *at = text->data;; at++) {
        size_t n = strcspn(at, ".");
        item = get_part(run, item, at, n);
        if (item.kind == KIND_UNDEFINED && given(otherwise)) item = otherwise;
        at += n;
        if (!*at) return item;
    }
}

static struct value ignore_case(struct run *run, struct value v, bool sensitive)
{
    return v.kind == KIND_STRING && !sensitive ? string_case(run, v, CASE_LOWER) : v;
}

// ---- Text.

static struct value filter_trim(struct run *run, struct call *call)
{
    struct value chars = call->at[0];
    if (given(chars)) call_text(run, call, 0);
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
    struct value items = call->self, separator = given(call->at[0]) ? value_str(run, call->at[0]) : empty_string(run);
    if (call->at[0].kind == KIND_NONE) separator = value_string(run, "None");
    separator.safe = false;
    if (!given(call->at[1])) return string_join(run, separator, items, true);
    struct list *list = list_new(run, 0);
    struct value v;
    for (struct iterator it = iterator_start(run, items); iterator_next(run, &it, &v);)
        list_add(run, list, get_path(run, v, call->at[1], value_missing));
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

// A string, or a query of pairs.
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

// ---- Numbers.

static struct value filter_abs(struct run *run, struct call *call)
{
    int64_t i;
    struct value v = call->self;
    if (v.kind == KIND_FLOAT) return value_tagged(value_float(fabs(v.number)), v, v);
    if (v.kind == KIND_UNDEFINED) undefined_fail(run, v);
    if (!value_integer(v, &i)) run_fail(run, "bad operand type for abs(): '%s'", value_type(v));
    if (i == INT64_MIN) run_fail(run, "integers over 64 bits are not supported");
    return value_tagged(value_int(i < 0 ? -i : i), v, v);
}

bool number_parse(const struct string *s, double *number_p)
{
    char digits[400];
    size_t n = 0, from = 0, to = s->n;
    while (from < to && char_is_space(s->data[from]))
        from++;
    while (to > from && char_is_space(s->data[to - 1]))
        to--;
    if (from == to || to - from >= sizeof digits) return false;
    for (size_t i = from; i < to; i++) {
        char c = s->data[i];
        if (c == '_') continue;
        if (!c || !strchr("0123456789+-.eEinftyaINFTYA", c)) return false;
        digits[n++] = c;
    }
    digits[n] = 0;
    char *end;
    *number_p = strtod(digits, &end);
    return end != digits && !*end && !strpbrk(digits, "xX");
}

bool integer_parse(const struct string *s, int base, int64_t *integer_p)
{
    char digits[80];
    size_t n = 0, from = 0, to = s->n;
    while (from < to && char_is_space(s->data[from]))
        from++;
    while (to > from && char_is_space(s->data[to - 1]))
        to--;
    if (from == to || to - from >= sizeof digits) return false;
    for (size_t i = from; i < to; i++)
        if (s->data[i] != '_') digits[n++] = s->data[i];
    digits[n] = 0;
    const char *at = digits + (digits[0] == '+' || digits[0] == '-');
    if (*at == '+' || *at == '-' || char_is_space(*at)) return false;
    if (at[0] == '0' && ((base == 2 && (at[1] | 0x20) == 'b') || (base == 8 && (at[1] | 0x20) == 'o')))
        memmove(digits + (at - digits), at + 2, strlen(at + 2) + 1);
    char *end;
    long long i = strtoll(digits, &end, base);
    if (end == digits || *end || i == INT64_MAX || i == INT64_MIN) return false;
    *integer_p = i;
    return true;
}

static bool float_to_integer(double d, int64_t *integer_p)
{
    if (!(d > -9.2e18 && d < 9.2e18)) return false;
    *integer_p = (int64_t)d;
    return true;
}

static struct value filter_int(struct run *run, struct call *call)
{
    struct value v = call->self;
    int64_t i = 0, base = call_integer(run, call, 1, 10);
    double d;
    if (v.kind == KIND_UNDEFINED) undefined_fail(run, v);
    bool ok = v.kind == KIND_STRING && base >= 2 && base <= 36 ? integer_parse(v.string, (int)base, &i)
                                                               : value_integer(v, &i);
    if (!ok && v.kind == KIND_FLOAT) ok = float_to_integer(v.number, &i);
    if (!ok && v.kind == KIND_STRING) ok = number_parse(v.string, &d) && float_to_integer(d, &i);
    if (ok) return value_tagged(value_int(i), v, v);
    return call->at[0].kind == KIND_MISSING ? value_int(0) : call->at[0];
}

static struct value filter_float(struct run *run, struct call *call)
{
    struct value v = call->self;
    double d;
    if (v.kind == KIND_UNDEFINED) undefined_fail(run, v);
    if (value_number(v, &d) || (v.kind == KIND_STRING && number_parse(v.string, &d)))
        return value_tagged(value_float(d), v, v);
    return call->at[0].kind == KIND_MISSING ? value_float(0) : call->at[0];
}

// Python's round(): to the nearest, halves to even, exactly.
static double round_decimals(double d, int64_t precision)
{
    char out[512];
    if (!isfinite(d) || precision > 100) return d;
    if (precision < -308) return copysign(0, d);
    if (precision < 0) {
        double scale = pow(10, (double)-precision);
        return rint(d / scale) * scale;
    }
    snprintf(out, sizeof out, "%.*f", (int)precision, d);
    return strtod(out, NULL);
}

// To a multiple of 10^digits, halves to even.
static int64_t round_integer(struct run *run, int64_t i, int64_t digits)
{
    enum { DIGITS_MAX = 18 }; // of a power of ten in 64 bits
    const int64_t half_of_19_digits = INT64_C(5000000000000000000);
    int64_t scale = 1, rounded;
    bool over = digits == DIGITS_MAX + 1 && (i > half_of_19_digits || i < -half_of_19_digits);
    if (digits > DIGITS_MAX && !over) return 0;
    for (int64_t n = 0; n < digits && !over; n++)
        scale *= 10;
    int64_t quotient = i / scale, twice = 2 * (i % scale);
    if (twice > scale || (twice == scale && quotient % 2)) quotient++;
    if (twice < -scale || (twice == -scale && quotient % 2)) quotient--;
    if (over || __builtin_mul_overflow(quotient, scale, &rounded))
        run_fail(run, "integers over 64 bits are not supported");
    return rounded;
}

static struct value filter_round(struct run *run, struct call *call)
{
    struct value v = call->self,
                 method = call->at[1].kind == KIND_MISSING ? value_string(run, "common") : call_text(run, call, 1);
    int64_t precision = call_integer(run, call, 0, 0), i;
    double d, scale = pow(10, (double)precision);
    bool common = value_is(method, "common"), up = value_is(method, "ceil");
    if (!common && !up && !value_is(method, "floor")) run_fail(run, "method must be common, ceil or floor");
    if (v.kind == KIND_UNDEFINED) undefined_fail(run, v);
    if (!value_number(v, &d)) run_fail(run, "type %s doesn't define __round__ method", value_type(v));
    if (!common) return value_tagged(value_float((up ? ceil(d * scale) : floor(d * scale)) / scale), v, v);
    if (!value_integer(v, &i)) return value_tagged(value_float(round_decimals(d, precision)), v, v);
    return value_tagged(value_int(precision < 0 ? round_integer(run, i, precision < -20 ? 20 : -precision) : i), v, v);
}

// ---- Sequences.

static struct value filter_length(struct run *run, struct call *call)
{
    return value_int((int64_t)value_length(run, call->self));
}

static struct value filter_list(struct run *run, struct call *call)
{
    struct list *copy = list_new(run, 0);
    *copy = *value_items(run, call->self); // another list with the same elements: neither can be changed
    return value_list(copy);
}

static struct value filter_first(struct run *run, struct call *call)
{
    struct value v;
    struct iterator it = iterator_start(run, call->self);
    return iterator_next(run, &it, &v) ? v : value_hint(run, "No first item, sequence was empty.");
}

static struct value filter_last(struct run *run, struct call *call)
{
    if (call->self.kind == KIND_GENERATOR) run_fail(run, "'generator' object is not reversible");
    if (call->self.kind == KIND_STRING && call->self.string->n) return value_item(run, call->self, value_int(-1));
    const struct list *items = value_items(run, call->self);
    return items->n ? items->items[items->n - 1] : value_hint(run, "No last item, sequence was empty.");
}

static struct value filter_reverse(struct run *run, struct call *call)
{
    struct value v = call->self;
    if (v.kind == KIND_STRING) return value_slice(run, v, value_none, value_none, value_int(-1));
    const struct list *items = value_items(run, v);
    struct list *reversed = list_new(run, items->n);
    for (size_t i = items->n; i-- > 0;)
        list_add(run, reversed, items->items[i]);
    return v.kind == KIND_GENERATOR ? value_list(reversed)
                                    : value_generator(run, value_list(reversed), iterator_forward);
}

// Stable merge sort of indices by their keys.
static void merge_sort(struct run *run, const struct value *keys, size_t *order, size_t *scratch, size_t n,
                       bool reverse)
{
    if (n < 2) return;
    size_t half = n / 2, a = 0, b = half, to = 0;
    merge_sort(run, keys, order, scratch, half, reverse);
    merge_sort(run, keys, order + half, scratch, n - half, reverse);
    while (a < half && b < n) {
        int right = reverse ? value_order(run, keys[order[a]], keys[order[b]], "<")
                            : value_order(run, keys[order[b]], keys[order[a]], "<");
        scratch[to++] = right == -1 ? order[b++] : order[a++];
    }
    while (a < half)
        scratch[to++] = order[a++];
    while (b < n)
        scratch[to++] = order[b++];
    memcpy(order, scratch, n * sizeof *order);
}

struct value list_sorted(struct run *run, struct value *keys, struct value *items, size_t n, bool reverse)
{
    size_t *order = heap_array(run, n + 1, sizeof *order), *scratch = heap_array(run, n + 1, sizeof *scratch);
    for (size_t i = 0; i < n; i++)
        order[i] = i;
    merge_sort(run, keys, order, scratch, n, reverse);
    struct list *sorted = list_new(run, n);
    for (size_t i = 0; i < n; i++)
        list_add(run, sorted, items[order[i]]);
    return value_list(sorted);
}

// The values of several attributes, separated by commas, as one key.
static struct value sort_key(struct run *run, struct value item, struct value attribute, bool sensitive)
{
    if (attribute.kind != KIND_STRING || !memchr(attribute.string->data, ',', attribute.string->n))
        return ignore_case(run, get_path(run, item, attribute, value_missing), sensitive);
    struct list *keys = list_new(run, 2);
    const struct string *s = attribute.string;
    for (size_t from = 0, to; from <= s->n; from = to + 1) {
        const char *comma = memchr(s->data + from, ',', s->n - from);
        to = comma ? (size_t)(comma - s->data) : s->n;
        struct value part = value_part(run, attribute, from, to);
        list_add(run, keys, ignore_case(run, get_path(run, item, part, value_missing), sensitive));
    }
    return value_tuple(keys);
}

static struct value *keys_of(struct run *run, const struct list *items, struct value attribute, bool sensitive)
{
    struct value *keys = heap_array(run, items->n + 1, sizeof *keys);
    for (size_t i = 0; i < items->n; i++)
        keys[i] = sort_key(run, items->items[i], attribute, sensitive);
    return keys;
}

static struct value filter_sort(struct run *run, struct call *call)
{
    struct list *items = value_items(run, call->self);
    struct value *keys = keys_of(run, items, call->at[2], call_flag(run, call, 1));
    for (size_t i = 0; i < items->n; i++) { // Jinja compares lists of keys: equal ones need no order
        struct list *key = list_new(run, 1);
        list_add(run, key, keys[i]);
        keys[i] = value_list(key);
    }
    return list_sorted(run, keys, items->items, items->n, call_flag(run, call, 0));
}

static struct value filter_dictsort(struct run *run, struct call *call)
{
    struct value v = call->self, by = call->at[1];
    bool by_value = value_is(by, "value");
    if (v.kind == KIND_UNDEFINED) undefined_fail(run, v);
    if (v.kind != KIND_DICT) run_fail(run, "'%s' object has no attribute 'items'", value_type(v));
    if (by.kind != KIND_MISSING && !by_value && !value_is(by, "key"))
        run_fail(run, "You can only sort by either \"key\" or \"value\"");
    const struct dict *dict = v.dict;
    struct value *keys = heap_array(run, dict->n + 1, sizeof *keys),
                 *items = heap_array(run, dict->n + 1, sizeof *items);
    for (size_t i = 0; i < dict->n; i++) {
        const struct dict_entry *entry = &dict->entries[i];
        keys[i] = ignore_case(run, by_value ? entry->value : entry->key, call_flag(run, call, 0));
        items[i] = list_pair(run, entry->key, entry->value);
    }
    return list_sorted(run, keys, items, dict->n, call_flag(run, call, 2));
}

static struct value extreme(struct run *run, struct call *call, bool greatest)
{
    const struct list *items = value_items(run, call->self);
    if (!items->n) return value_hint(run, "No aggregated item, sequence was empty.");
    struct value *keys = keys_of(run, items, call->at[1], call_flag(run, call, 0));
    size_t best = 0;
    for (size_t i = 1; i < items->n; i++) {
        int order = greatest ? value_order(run, keys[best], keys[i], "<") : value_order(run, keys[i], keys[best], "<");
        if (order == -1) best = i;
    }
    return items->items[best];
}

static struct value filter_min(struct run *run, struct call *call)
{
    return extreme(run, call, false);
}

static struct value filter_max(struct run *run, struct call *call)
{
    return extreme(run, call, true);
}

static struct value filter_sum(struct run *run, struct call *call)
{
    struct value total = call->at[1].kind == KIND_MISSING ? value_int(0) : call->at[1], v;
    for (struct iterator it = iterator_start(run, call->self); iterator_next(run, &it, &v);)
        total = value_binary(run, '+', total, get_path(run, v, call->at[0], value_missing));
    return total;
}

static struct value filter_groupby(struct run *run, struct call *call)
{
    struct list *items = value_items(run, call->self), *groups = list_new(run, 0);
    struct value attribute = call->at[0], otherwise = call->at[1];
    bool sensitive = call_flag(run, call, 2);
    struct value *keys = heap_array(run, items->n + 1, sizeof *keys);
    for (size_t i = 0; i < items->n; i++)
        keys[i] = ignore_case(run, get_path(run, items->items[i], attribute, otherwise), sensitive);
    struct list *sorted = list_sorted(run, keys, items->items, items->n, false).list, *group = NULL;
    struct value last = value_missing;
    for (size_t i = 0; i < sorted->n; i++) {
        struct value key = get_path(run, sorted->items[i], attribute, otherwise),
                     folded = ignore_case(run, key, sensitive);
        if (!group || !value_equal(run, folded, last)) {
            group = list_new(run, 4);
            struct value pair = list_pair(run, key, value_list(group));
            pair.safe = true; // has the attributes grouper and list
            list_add(run, groups, pair);
        }
        list_add(run, group, sorted->items[i]);
        last = folded;
    }
    return value_list(groups);
}

static struct value filter_default(struct run *run, struct call *call)
{
    bool missing = call->self.kind == KIND_UNDEFINED || (call_flag(run, call, 1) && !value_truth(run, call->self));
    if (!missing) return call->self;
    return call->at[0].kind == KIND_MISSING ? empty_string(run) : call->at[0];
}

static struct value filter_attr(struct run *run, struct call *call)
{
    struct value name = value_str(run, call->at[0]), v = call->self;
    if (v.kind == KIND_DICT) v = value_dict(dict_new(run, 0)); // only Python's own attributes
    return value_attribute(run, v, name.string, method_find(name.string->data, name.string->n));
}

// ---- Generators: their elements are computed when they are asked for.

bool iterator_forward(struct run *run, struct generator *g, struct value *value_p)
{
    return iterator_next(run, &g->source, value_p);
}

static struct value filter_items(struct run *run, struct call *call)
{
    struct value v = call->self;
    if (v.kind == KIND_UNDEFINED) return value_generator(run, v, iterator_forward);
    if (v.kind != KIND_DICT) run_fail(run, "Can only get item pairs from a mapping.");
    struct view *view = heap_alloc(run, sizeof *view);
    *view = (struct view){v.dict, VIEW_ITEMS};
    return value_generator(run, (struct value){.kind = KIND_VIEW, .view = view}, iterator_forward);
}

static bool unique_next(struct run *run, struct generator *g, struct value *value_p)
{
    struct value v, seen;
    while (iterator_next(run, &g->source, &v)) {
        struct value key =
            ignore_case(run, get_path(run, v, g->argument[1], value_missing), value_truth(run, g->argument[0]));
        if (dict_get(run, g->seen, key, &seen)) continue;
        dict_set(run, g->seen, key, value_none);
        *value_p = v;
        return true;
    }
    return false;
}

static struct value filter_unique(struct run *run, struct call *call)
{
    struct value v = value_generator(run, call->self, unique_next);
    v.generator->argument[0] = call->at[0];
    v.generator->argument[1] = call->at[1];
    v.generator->seen = dict_new(run, 0);
    return v;
}

static bool batch_next(struct run *run, struct generator *g, struct value *value_p)
{
    struct list *row = list_new(run, 0);
    struct value v;
    while (row->n < g->n && iterator_next(run, &g->source, &v))
        list_add(run, row, v);
    if (!row->n) return false;
    while (given(g->argument[0]) && row->n < g->n)
        list_add(run, row, g->argument[0]);
    *value_p = value_list(row);
    return true;
}

static struct value filter_batch(struct run *run, struct call *call)
{
    int64_t n = call_integer(run, call, 0, 1);
    struct value v = value_generator(run, call->self, batch_next);
    v.generator->n = n < 1 ? 1 : (size_t)n;
    v.generator->argument[0] = call->at[1];
    return v;
}

static struct value filter_slice(struct run *run, struct call *call)
{
    const struct list *items = value_items(run, call->self);
    struct list *slices = list_new(run, 0);
    int64_t n = call_integer(run, call, 0, 1);
    if (n == 0) run_fail(run, "integer division or modulo by zero");
    size_t count = n < 0 ? 0 : (size_t)n, at = 0;
    for (size_t i = 0; i < count; i++) {
        struct list *slice = list_new(run, 0);
        size_t take = items->n / count + (i < items->n % count);
        run_spend(run, take + 1);
        while (take--)
            list_add(run, slice, items->items[at++]);
        if (given(call->at[1]) && i >= items->n % count) list_add(run, slice, call->at[1]);
        list_add(run, slices, value_list(slice));
    }
    return value_generator(run, value_list(slices), iterator_forward);
}

// The arguments from `first` on, for the filter or test that a filter calls.
static struct arguments *arguments_from(struct run *run, const struct arguments *arguments, size_t first)
{
    struct arguments *rest = heap_alloc(run, sizeof *rest);
    *rest = (struct arguments){arguments->values + first, arguments->n - first, arguments->n - first, arguments->named};
    return rest;
}

static bool map_next(struct run *run, struct generator *g, struct value *value_p)
{
    struct value v;
    if (!iterator_next(run, &g->source, &v)) return false;
    *value_p = g->function ? function_call(run, g->function, v, g->arguments)
                           : get_path(run, v, g->argument[0], g->argument[1]);
    return true;
}

static const struct function *find_named(struct run *run, struct value name, bool filter)
{
    const struct function *function = NULL;
    if (name.kind == KIND_STRING)
        function =
            filter ? filter_find(name.string->data, name.string->n) : test_find(name.string->data, name.string->n);
    if (!function) run_fail(run, "No %s named %s.", filter ? "filter" : "test", value_repr_short(run, name));
    return function;
}

static struct value filter_map(struct run *run, struct call *call)
{
    const struct arguments *arguments = call->arguments;
    if (!value_truth(run, call->self)) return value_generator(run, value_list(list_new(run, 0)), map_next);
    struct value v = value_generator(run, call->self, map_next);
    struct generator *g = v.generator;
    if (!arguments->n && arguments->named && dict_get_text(run, arguments->named, "attribute", &g->argument[0])) {
        if (!dict_get_text(run, arguments->named, "default", &g->argument[1])) g->argument[1] = value_missing;
        return v;
    }
    if (!arguments->n) run_fail(run, "map requires a filter argument");
    g->function = find_named(run, arguments->values[0], true);
    g->arguments = arguments_from(run, arguments, 1);
    return v;
}

static bool select_next(struct run *run, struct generator *g, struct value *value_p)
{
    struct value v;
    while (iterator_next(run, &g->source, &v)) {
        struct value tested = get_path(run, v, g->argument[0], value_missing);
        bool pass = value_truth(run, g->function ? function_call(run, g->function, tested, g->arguments) : tested);
        if (pass == g->reject) continue;
        *value_p = v;
        return true;
    }
    return false;
}

static struct value selection(struct run *run, struct call *call, bool attribute, bool reject)
{
    const struct arguments *arguments = call->arguments;
    if (!value_truth(run, call->self)) return value_generator(run, value_list(list_new(run, 0)), select_next);
    struct value v = value_generator(run, call->self, select_next);
    struct generator *g = v.generator;
    g->reject = reject;
    if (attribute && !arguments->n) run_fail(run, "Missing parameter for attribute name");
    if (attribute) g->argument[0] = arguments->values[0];
    if (arguments->n <= attribute) return v;
    g->function = find_named(run, arguments->values[attribute], false);
    g->arguments = arguments_from(run, arguments, (size_t)attribute + 1);
    return v;
}

static struct value filter_select(struct run *run, struct call *call)
{
    return selection(run, call, false, false);
}

static struct value filter_reject(struct run *run, struct call *call)
{
    return selection(run, call, false, true);
}

static struct value filter_selectattr(struct run *run, struct call *call)
{
    return selection(run, call, true, false);
}

static struct value filter_rejectattr(struct run *run, struct call *call)
{
    return selection(run, call, true, true);
}

const struct function filter_table[] = {
    {"abs", filter_abs, 0, ""},
    {"attr", filter_attr, 1, "name"},
    {"batch", filter_batch, 1, "linecount fill_with"},
    {"capitalize", filter_capitalize, 0, ""},
    {"center", filter_center, 0, "width"},
    {"count", filter_length, 0, ""},
    {"d", filter_default, 0, "default_value boolean"},
    {"default", filter_default, 0, "default_value boolean"},
    {"dictsort", filter_dictsort, 0, "case_sensitive by reverse"},
    {"e", filter_escape, 0, ""},
    {"escape", filter_escape, 0, ""},
    {"first", filter_first, 0, ""},
    {"float", filter_float, 0, "default"},
    {"forceescape", filter_forceescape, 0, ""},
    {"format", filter_format, 0, "*"},
    {"groupby", filter_groupby, 1, "attribute default case_sensitive"},
    {"indent", filter_indent, 0, "width first blank"},
    {"int", filter_int, 0, "default base"},
    {"items", filter_items, 0, ""},
    {"join", filter_join, 0, "d attribute"},
    {"last", filter_last, 0, ""},
    {"length", filter_length, 0, ""},
    {"list", filter_list, 0, ""},
    {"lower", filter_lower, 0, ""},
    {"map", filter_map, 0, "*"},
    {"max", filter_max, 0, "case_sensitive attribute"},
    {"min", filter_min, 0, "case_sensitive attribute"},
    {"reject", filter_reject, 0, "*"},
    {"rejectattr", filter_rejectattr, 0, "*"},
    {"replace", filter_replace, 2, "old new count"},
    {"reverse", filter_reverse, 0, ""},
    {"round", filter_round, 0, "precision method"},
    {"safe", filter_safe, 0, ""},
    {"select", filter_select, 0, "*"},
    {"selectattr", filter_selectattr, 0, "*"},
    {"slice", filter_slice, 1, "slices fill_with"},
    {"sort", filter_sort, 0, "reverse case_sensitive attribute"},
    {"string", filter_string, 0, ""},
    {"sum", filter_sum, 0, "attribute start"},
    {"title", filter_title, 0, ""},
    {"tojson", filter_tojson, 0, "ensure_ascii indent separators sort_keys"},
    {"trim", filter_trim, 0, "chars"},
    {"truncate", filter_truncate, 0, "length killwords end leeway"},
    {"unique", filter_unique, 0, "case_sensitive attribute"},
    {"upper", filter_upper, 0, ""},
    {"urlencode", filter_urlencode, 0, ""},
    {"wordcount", filter_wordcount, 0, ""},
    {0},
};
