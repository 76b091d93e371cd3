// SPDX-License-Identifier: Apache-2.0
// Methods of Python's objects, except methods that change an object.
#include <math.h>
#include <string.h>
#include <utf8proc.h>

#include "lib/jinja/value.h"

static bool given(struct value v)
{
    return v.kind != KIND_MISSING && v.kind != KIND_NONE;
}

// ---- Strings.

static struct value strip(struct run *run, struct call *call, bool left, bool right)
{
    if (given(call->at[0])) call_text(run, call, 0);
    return string_strip(run, call->self, call->at[0], left, right);
}

static struct value str_strip(struct run *run, struct call *call)
{
    return strip(run, call, true, true);
}

static struct value str_lstrip(struct run *run, struct call *call)
{
    return strip(run, call, true, false);
}

static struct value str_rstrip(struct run *run, struct call *call)
{
    return strip(run, call, false, true);
}

static void reverse(struct list *list)
{
    for (size_t i = 0; i < list->n / 2; i++) {
        struct value v = list->items[i];
        list->items[i] = list->items[list->n - 1 - i];
        list->items[list->n - 1 - i] = v;
    }
}

// Returns the offset of the last occurrence of `part` in data [n], or SIZE_MAX.
static size_t find_last(struct run *run, const char *data, size_t n, const struct string *part)
{
    if (part->n > n) return SIZE_MAX;
    if (!part->n) return n;
    const char *at, *end = data + n - part->n + 1;
    for (; (at = memrchr(data, part->data[0], (size_t)(end - data))); end = at) {
        run_spend(run, ((size_t)(end - at) + part->n) / 16 + 1);
        if (!memcmp(at, part->data, part->n)) return (size_t)(at - data);
    }
    run_spend(run, (size_t)(end - data) / 16);
    return SIZE_MAX;
}

static struct value split_blanks(struct run *run, struct value v, int64_t most)
{
    struct list *list = list_new(run, 0);
    struct value rest = string_strip(run, v, value_missing, true, false);
    while (rest.string->n) {
        size_t end = 0, length;
        while (end < rest.string->n && !char_is_space(utf8_get(rest.string->data + end, &length)))
            end += length;
        if (most-- == 0) end = rest.string->n;
        list_add(run, list, value_part(run, rest, 0, end));
        run_spend(run, end / 16 + 1);
        rest = string_strip(run, value_part(run, rest, end, rest.string->n), value_missing, true, false);
    }
    return value_list(list);
}

static struct value split_blanks_last(struct run *run, struct value v, int64_t most)
{
    struct list *list = list_new(run, 0);
    struct value rest = string_strip(run, v, value_missing, false, true);
    while (rest.string->n) {
        size_t start = rest.string->n, length;
        while (start > 0) {
            size_t before = start - 1;
            while ((rest.string->data[before] & 0xC0) == 0x80)
                before--;
            if (char_is_space(utf8_get(rest.string->data + before, &length))) break;
            start = before;
        }
        if (most-- == 0) start = 0;
        list_add(run, list, value_part(run, rest, start, rest.string->n));
        run_spend(run, (rest.string->n - start) / 16 + 1);
        rest = string_strip(run, value_part(run, rest, 0, start), value_missing, false, true);
    }
    reverse(list);
    return value_list(list);
}

static const struct string *separator_of(struct run *run, const struct call *call)
{
    const struct string *separator = call_text(run, call, 0).string;
    if (!separator->n) run_fail(run, "empty separator");
    return separator;
}

static struct value str_split(struct run *run, struct call *call)
{
    int64_t most = call_integer(run, call, 1, -1);
    struct value v = call->self;
    if (!given(call->at[0])) return split_blanks(run, v, most);
    const struct string *s = v.string, *separator = separator_of(run, call);
    struct list *list = list_new(run, 0);
    size_t from = 0;
    run_spend(run, s->n / 16);
    for (size_t at; most-- != 0; from += at + separator->n) {
        at = string_find(s->data + from, s->n - from, separator->data, separator->n);
        if (at == SIZE_MAX) break;
        run_spend(run, 1);
        list_add(run, list, value_part(run, v, from, from + at));
    }
    list_add(run, list, value_part(run, v, from, s->n));
    return value_list(list);
}

static struct value str_rsplit(struct run *run, struct call *call)
{
    int64_t most = call_integer(run, call, 1, -1);
    struct value v = call->self;
    if (!given(call->at[0])) return split_blanks_last(run, v, most);
    const struct string *s = v.string, *separator = separator_of(run, call);
    struct list *list = list_new(run, 0);
    size_t to = s->n;
    for (size_t at; most-- != 0; to = at) {
        at = find_last(run, s->data, to, separator);
        if (at == SIZE_MAX) break;
        run_spend(run, 1);
        list_add(run, list, value_part(run, v, at + separator->n, to));
    }
    list_add(run, list, value_part(run, v, 0, to));
    reverse(list);
    return value_list(list);
}

static struct value str_splitlines(struct run *run, struct call *call)
{
    return string_lines(run, call->self, call_flag(run, call, 0));
}

// Returns the part of the string between the method's arguments start and end, in characters.
static struct value bounded(struct run *run, const struct call *call, int parameter)
{
    if (!given(call->at[parameter]) && !given(call->at[parameter + 1])) return call->self;
    struct value start = given(call->at[parameter]) ? call->at[parameter] : value_none;
    struct value end = given(call->at[parameter + 1]) ? call->at[parameter + 1] : value_none;
    return value_slice(run, call->self, start, end, value_none);
}

static bool affix_matches(struct run *run, const struct string *s, const struct string *affix, bool start)
{
    run_spend(run, 1);
    if (affix->n > s->n) return false;
    run_spend(run, affix->n / 16);
    return !memcmp(start ? s->data : s->data + s->n - affix->n, affix->data, affix->n);
}

static struct value has_affix(struct run *run, struct call *call, bool start)
{
    const struct string *s = bounded(run, call, 1).string;
    struct value affix = call->at[0];
    if (affix.kind == KIND_UNDEFINED) undefined_fail(run, affix);
    if (affix.kind == KIND_STRING) return value_bool(affix_matches(run, s, affix.string, start));
    if (affix.kind != KIND_TUPLE)
        run_fail(run, "%s first arg must be str or a tuple of str, not %s", start ? "startswith" : "endswith",
                 value_type(affix));
    for (size_t i = 0; i < affix.list->n; i++)
        if (affix.list->items[i].kind == KIND_STRING && affix_matches(run, s, affix.list->items[i].string, start))
            return value_bool(true);
    return value_bool(false);
}

static struct value str_startswith(struct run *run, struct call *call)
{
    return has_affix(run, call, true);
}

static struct value str_endswith(struct run *run, struct call *call)
{
    return has_affix(run, call, false);
}

static struct value str_replace(struct run *run, struct call *call)
{
    struct value with = call_text(run, call, 1);
    if (call->self.safe) with = string_escape(run, with);
    struct value v = string_replace(run, call->self, call_text(run, call, 0), with, call_integer(run, call, 2, -1));
    v.safe = call->self.safe;
    return v;
}

static struct value str_upper(struct run *run, struct call *call)
{
    return string_case(run, call->self, CASE_UPPER);
}

static struct value str_lower(struct run *run, struct call *call)
{
    return string_case(run, call->self, CASE_LOWER);
}

static struct value str_title(struct run *run, struct call *call)
{
    return string_case(run, call->self, CASE_TITLE);
}

static struct value str_capitalize(struct run *run, struct call *call)
{
    return string_case(run, call->self, CASE_CAPITAL);
}

static struct value str_swapcase(struct run *run, struct call *call)
{
    return string_case(run, call->self, CASE_SWAP);
}

static struct value str_join(struct run *run, struct call *call)
{
    return string_join(run, call->self, call->at[0], false);
}

// Returns the index, in characters, at which the argument occurs in the bounded string, or -1.
static int64_t find(struct run *run, struct call *call, bool last)
{
    struct value part = call_text(run, call, 0), within = bounded(run, call, 1);
    const struct string *s = within.string;
    run_spend(run, s->n / 8);
    size_t at = last ? find_last(run, s->data, s->n, part.string)
                     : string_find(s->data, s->n, part.string->data, part.string->n);
    if (at == SIZE_MAX) return -1;
    const struct string *all = call->self.string;
    return (int64_t)utf8_count(all->data, (size_t)(s->data - all->data) + at);
}

static struct value str_find(struct run *run, struct call *call)
{
    return value_int(find(run, call, false));
}

static struct value str_rfind(struct run *run, struct call *call)
{
    return value_int(find(run, call, true));
}

static struct value index_of(struct run *run, struct call *call, bool last)
{
    int64_t at = find(run, call, last);
    if (at < 0) run_fail(run, "substring not found");
    return value_int(at);
}

static struct value str_index(struct run *run, struct call *call)
{
    return index_of(run, call, false);
}

static struct value str_rindex(struct run *run, struct call *call)
{
    return index_of(run, call, true);
}

static struct value str_count(struct run *run, struct call *call)
{
    const struct string *part = call_text(run, call, 0).string, *s = bounded(run, call, 1).string;
    int64_t count = 0;
    run_spend(run, s->n / 16);
    if (!part->n) return value_int((int64_t)utf8_count(s->data, s->n) + 1);
    for (size_t from = 0, at; (at = string_find(s->data + from, s->n - from, part->data, part->n)) != SIZE_MAX; count++)
        from += at + part->n;
    return value_int(count);
}

static struct value str_format(struct run *run, struct call *call)
{
    return string_format(run, call->self, call->arguments);
}

static struct value str_format_map(struct run *run, struct call *call)
{
    if (call->at[0].kind != KIND_DICT) run_fail(run, "format_map() takes a mapping, not %s", value_type(call->at[0]));
    struct arguments arguments = {.named = call->at[0].dict};
    return string_format(run, call->self, &arguments);
}

static struct value partition(struct run *run, struct call *call, bool last)
{
    const struct string *s = call->self.string, *separator = separator_of(run, call);
    struct list *parts = list_new(run, 3);
    run_spend(run, s->n / 8);
    size_t at =
        last ? find_last(run, s->data, s->n, separator) : string_find(s->data, s->n, separator->data, separator->n);
    size_t end = at == SIZE_MAX ? (last ? 0 : s->n) : at + separator->n;
    if (at == SIZE_MAX) at = end;
    list_add(run, parts, value_part(run, call->self, 0, at));
    list_add(run, parts, value_part(run, call->self, at, end));
    list_add(run, parts, value_part(run, call->self, end, s->n));
    return value_tuple(parts);
}

static struct value str_partition(struct run *run, struct call *call)
{
    return partition(run, call, false);
}

static struct value str_rpartition(struct run *run, struct call *call)
{
    return partition(run, call, true);
}

static struct value str_removeprefix(struct run *run, struct call *call)
{
    const struct string *affix = call_text(run, call, 0).string, *s = call->self.string;
    return value_part(run, call->self, affix_matches(run, s, affix, true) ? affix->n : 0, s->n);
}

static struct value str_removesuffix(struct run *run, struct call *call)
{
    const struct string *affix = call_text(run, call, 0).string, *s = call->self.string;
    return value_part(run, call->self, 0, s->n - (affix_matches(run, s, affix, false) ? affix->n : 0));
}

// Pads to the width of the first argument with the character of the second argument.
static struct value pad(struct run *run, struct call *call, int left_half, int right_half)
{
    struct value v = call->self,
                 fill = call->at[1].kind == KIND_MISSING ? value_string(run, " ") : call_text(run, call, 1);
    int64_t width = call_integer(run, call, 0, 0), more = width - (int64_t)value_length(run, v);
    if (value_length(run, fill) != 1) run_fail(run, "The fill character must be exactly one character long");
    if (more <= 0) return v;
    int64_t left = left_half && right_half ? more / 2 + (more & width & 1) : left_half ? more : 0;
    return string_concat(run, string_concat(run, string_repeat(run, fill, left), v),
                         string_repeat(run, fill, more - left));
}

static struct value str_ljust(struct run *run, struct call *call)
{
    return pad(run, call, 0, 1);
}

static struct value str_rjust(struct run *run, struct call *call)
{
    return pad(run, call, 1, 0);
}

static struct value str_center(struct run *run, struct call *call)
{
    return pad(run, call, 1, 1);
}

static struct value str_zfill(struct run *run, struct call *call)
{
    struct value v = call->self;
    int64_t more = call_integer(run, call, 0, 0) - (int64_t)value_length(run, v);
    if (more <= 0) return v;
    size_t sign = v.string->n && (v.string->data[0] == '-' || v.string->data[0] == '+');
    struct value zeros = string_repeat(run, value_string(run, "0"), more);
    return string_concat(run, string_concat(run, value_part(run, v, 0, sign), zeros),
                         value_part(run, v, sign, v.string->n));
}

static struct value str_expandtabs(struct run *run, struct call *call)
{
    int64_t width = call_integer(run, call, 0, 8), column = 0;
    const struct string *s = call->self.string;
    struct text *text = text_new(run, s->n);
    if (width > 1000) run_fail(run, "expandtabs: at most 1000 columns");
    for (size_t i = 0, length; i < s->n; i += length) {
        int32_t c = utf8_get(s->data + i, &length);
        if (c == '\t') {
            int64_t blanks = width > 0 ? width - column % width : 0;
            for (column += blanks; blanks-- > 0;)
                text_add(run, text, " ", 1, JINJA_TEMPLATE);
            continue;
        }
        text_add_string(run, text, value_part(run, call->self, i, i + length).string);
        column = c == '\n' || c == '\r' ? 0 : column + 1;
    }
    return value_text(run, text);
}

// ---- Classes of characters.

static bool is_letter(int32_t c)
{
    utf8proc_category_t category = utf8proc_category(c);
    return category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO;
}

static bool is_decimal(int32_t c)
{
    return utf8proc_category(c) == UTF8PROC_CATEGORY_ND;
}

static bool is_digit(int32_t c)
{
    return is_decimal(c) || c == 0xB2 || c == 0xB3 || c == 0xB9 || c == 0x2070 || (c >= 0x2074 && c <= 0x2079) ||
           (c >= 0x2080 && c <= 0x2089);
}

static bool is_numeric(int32_t c)
{
    utf8proc_category_t category = utf8proc_category(c);
    return category == UTF8PROC_CATEGORY_ND || category == UTF8PROC_CATEGORY_NL || category == UTF8PROC_CATEGORY_NO;
}

static bool is_alphanumeric(int32_t c)
{
    return is_letter(c) || is_numeric(c);
}

static bool is_ascii(int32_t c)
{
    return c < 0x80;
}

static struct value all(struct run *run, const struct call *call, bool (*is)(int32_t), bool empty)
{
    const struct string *s = call->self.string;
    run_spend(run, s->n / 8);
    for (size_t i = 0, length; i < s->n; i += length)
        if (!is(utf8_get(s->data + i, &length))) return value_bool(false);
    return value_bool(s->n > 0 || empty);
}

static struct value str_isalpha(struct run *run, struct call *call)
{
    return all(run, call, is_letter, false);
}

static struct value str_isdecimal(struct run *run, struct call *call)
{
    return all(run, call, is_decimal, false);
}

static struct value str_isdigit(struct run *run, struct call *call)
{
    return all(run, call, is_digit, false);
}

static struct value str_isnumeric(struct run *run, struct call *call)
{
    return all(run, call, is_numeric, false);
}

static struct value str_isalnum(struct run *run, struct call *call)
{
    return all(run, call, is_alphanumeric, false);
}

static struct value str_isspace(struct run *run, struct call *call)
{
    return all(run, call, char_is_space, false);
}

static struct value str_isascii(struct run *run, struct call *call)
{
    return all(run, call, is_ascii, true);
}

static struct value test_call(struct run *run, struct call *call, const char *test)
{
    struct arguments none = {0};
    return function_call(run, test_find(test, strlen(test)), call->self, &none);
}

static struct value str_isupper(struct run *run, struct call *call)
{
    return test_call(run, call, "upper");
}

static struct value str_islower(struct run *run, struct call *call)
{
    return test_call(run, call, "lower");
}

static struct value str_istitle(struct run *run, struct call *call)
{
    struct value titled = string_case(run, call->self, CASE_TITLE), lower = string_case(run, call->self, CASE_LOWER);
    return value_bool(value_equal(run, titled, call->self) && !value_equal(run, lower, call->self));
}

// ---- Lists.

static struct value list_index(struct run *run, struct call *call)
{
    const struct list *list = call->self.list;
    int64_t n = (int64_t)list->n, from = call_integer(run, call, 1, 0), to = call_integer(run, call, 2, n);
    if (from < 0) from = from + n < 0 ? 0 : from + n;
    if (to < 0) to += n;
    for (int64_t i = from; i < to && i < n; i++) {
        run_spend(run, 1);
        if (value_equal(run, list->items[i], call->at[0])) return value_int(i);
    }
    run_fail(run, "%s is not in list", value_repr_short(run, call->at[0]));
}

static struct value list_count(struct run *run, struct call *call)
{
    int64_t count = 0;
    for (size_t i = 0; i < call->self.list->n; i++) {
        run_spend(run, 1);
        count += value_equal(run, call->self.list->items[i], call->at[0]);
    }
    return value_int(count);
}

static struct value copy(struct run *run, struct call *call)
{
    return call->self; // no copy: nothing can change the value
}

// ---- Dicts.

static struct value dict_get_method(struct run *run, struct call *call)
{
    struct value v;
    if (dict_get(run, call->self.dict, call->at[0], &v)) return v;
    return call->at[1].kind == KIND_MISSING ? value_none : call->at[1];
}

static struct value dict_view(struct run *run, struct call *call, int what)
{
    struct view *view = heap_alloc(run, sizeof *view);
    view->dict = call->self.dict;
    view->what = what;
    return (struct value){.kind = KIND_VIEW, .view = view};
}

static struct value dict_keys(struct run *run, struct call *call)
{
    return dict_view(run, call, VIEW_KEYS);
}

static struct value dict_values(struct run *run, struct call *call)
{
    return dict_view(run, call, VIEW_VALUES);
}

static struct value dict_items(struct run *run, struct call *call)
{
    return dict_view(run, call, VIEW_ITEMS);
}

// ---- Other objects.

static struct value loop_cycle(struct run *run, struct call *call)
{
    if (!call->arguments->n) run_fail(run, "no items for cycling given");
    return call->arguments->values[call->self.loop->index % call->arguments->n];
}

static struct value loop_changed(struct run *run, struct call *call)
{
    struct list *list = list_new(run, call->arguments->n);
    for (size_t i = 0; i < call->arguments->n; i++)
        list_add(run, list, call->arguments->values[i]);
    struct value now = value_tuple(list);
    bool changed =
        call->self.loop->last_change.kind == KIND_MISSING || !value_equal(run, call->self.loop->last_change, now);
    call->self.loop->last_change = now;
    return value_bool(changed);
}

static struct value cycler_next(struct run *run, struct call *call)
{
    struct cycler *cycler = call->self.cycler;
    struct value v = cycler->items->items[cycler->at];
    cycler->at = (cycler->at + 1) % cycler->items->n;
    return v;
}

static struct value cycler_reset(struct run *run, struct call *call)
{
    call->self.cycler->at = 0;
    return value_none;
}

static struct value float_is_integer(struct run *run, struct call *call)
{
    return value_bool(isfinite(call->self.number) && call->self.number == trunc(call->self.number));
}

// Rows of the same name must be neighbours.
const struct method_row method_table[] = {
    {KIND_STRING, {"strip", str_strip, 0, "chars"}},
    {KIND_STRING, {"lstrip", str_lstrip, 0, "chars"}},
    {KIND_STRING, {"rstrip", str_rstrip, 0, "chars"}},
    {KIND_STRING, {"split", str_split, 0, "sep maxsplit"}},
    {KIND_STRING, {"rsplit", str_rsplit, 0, "sep maxsplit"}},
    {KIND_STRING, {"splitlines", str_splitlines, 0, "keepends"}},
    {KIND_STRING, {"startswith", str_startswith, 1, "prefix start end"}},
    {KIND_STRING, {"endswith", str_endswith, 1, "suffix start end"}},
    {KIND_STRING, {"replace", str_replace, 2, "old new count"}},
    {KIND_STRING, {"upper", str_upper, 0, ""}},
    {KIND_STRING, {"lower", str_lower, 0, ""}},
    {KIND_STRING, {"casefold", str_lower, 0, ""}},
    {KIND_STRING, {"title", str_title, 0, ""}},
    {KIND_STRING, {"capitalize", str_capitalize, 0, ""}},
    {KIND_STRING, {"swapcase", str_swapcase, 0, ""}},
    {KIND_STRING, {"join", str_join, 1, "iterable"}},
    {KIND_STRING, {"find", str_find, 1, "sub start end"}},
    {KIND_STRING, {"rfind", str_rfind, 1, "sub start end"}},
    {KIND_STRING, {"rindex", str_rindex, 1, "sub start end"}},
    {KIND_STRING, {"index", str_index, 1, "sub start end"}},
    {KIND_LIST, {"index", list_index, 1, "value start stop"}},
    {KIND_TUPLE, {"index", list_index, 1, "value start stop"}},
    {KIND_STRING, {"count", str_count, 1, "sub start end"}},
    {KIND_LIST, {"count", list_count, 1, "value"}},
    {KIND_TUPLE, {"count", list_count, 1, "value"}},
    {KIND_STRING, {"format", str_format, 0, "*"}},
    {KIND_STRING, {"format_map", str_format_map, 1, "mapping"}},
    {KIND_STRING, {"partition", str_partition, 1, "sep"}},
    {KIND_STRING, {"rpartition", str_rpartition, 1, "sep"}},
    {KIND_STRING, {"removeprefix", str_removeprefix, 1, "prefix"}},
    {KIND_STRING, {"removesuffix", str_removesuffix, 1, "suffix"}},
    {KIND_STRING, {"ljust", str_ljust, 1, "width fillchar"}},
    {KIND_STRING, {"rjust", str_rjust, 1, "width fillchar"}},
    {KIND_STRING, {"center", str_center, 1, "width fillchar"}},
    {KIND_STRING, {"zfill", str_zfill, 1, "width"}},
    {KIND_STRING, {"expandtabs", str_expandtabs, 0, "tabsize"}},
    {KIND_STRING, {"isalpha", str_isalpha, 0, ""}},
    {KIND_STRING, {"isdecimal", str_isdecimal, 0, ""}},
    {KIND_STRING, {"isdigit", str_isdigit, 0, ""}},
    {KIND_STRING, {"isnumeric", str_isnumeric, 0, ""}},
    {KIND_STRING, {"isalnum", str_isalnum, 0, ""}},
    {KIND_STRING, {"isspace", str_isspace, 0, ""}},
    {KIND_STRING, {"isascii", str_isascii, 0, ""}},
    {KIND_STRING, {"isupper", str_isupper, 0, ""}},
    {KIND_STRING, {"islower", str_islower, 0, ""}},
    {KIND_STRING, {"istitle", str_istitle, 0, ""}},
    {KIND_LIST, {"copy", copy, 0, ""}},
    {KIND_DICT, {"copy", copy, 0, ""}},
    {KIND_DICT, {"get", dict_get_method, 1, "key default"}},
    {KIND_DICT, {"keys", dict_keys, 0, ""}},
    {KIND_DICT, {"values", dict_values, 0, ""}},
    {KIND_DICT, {"items", dict_items, 0, ""}},
    {KIND_LOOP, {"cycle", loop_cycle, 0, "*"}},
    {KIND_LOOP, {"changed", loop_changed, 0, "*"}},
    {KIND_CYCLER, {"next", cycler_next, 0, ""}},
    {KIND_CYCLER, {"reset", cycler_reset, 0, ""}},
    {KIND_FLOAT, {"is_integer", float_is_integer, 0, ""}},
    {0},
};
