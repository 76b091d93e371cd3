// SPDX-License-Identifier: Apache-2.0
// Reads attributes, elements and slices of a value.
#include <stdio.h>
#include <string.h>

#include "lib/jinja/syntax.h"

static struct value missing_from(struct run *run, struct value v, struct value name)
{
    if (v.kind == KIND_UNDEFINED) undefined_fail(run, v);
    const char *owner = v.kind == KIND_NONE ? "None" : value_type(v);
    return undefined_new(run, name.kind == KIND_STRING ? UNDEFINED_ATTRIBUTE : UNDEFINED_ELEMENT, owner, name);
}

// Returns true for methods that change a list or dict. The sandbox lets a template look such methods up, but not call
// them.
static bool is_forbidden(enum kind kind, const struct string *name)
{
    static const char *const of_list[] = {"append", "clear",  "pop",    "reverse", "insert",
                                          "sort",   "extend", "remove", NULL};
    static const char *const of_dict[] = {"clear", "pop", "popitem", "setdefault", "update", NULL};
    const char *const *names = kind == KIND_LIST ? of_list : kind == KIND_DICT ? of_dict : NULL;
    for (; names && *names; names++)
        if (strlen(*names) == name->n && !memcmp(*names, name->data, name->n)) return true;
    return false;
}

static struct value forbidden(struct run *run, struct value v, const struct string *name)
{
    char hint[128];
    snprintf(hint, sizeof hint, "access to attribute '%.*s' of '%s' object is unsafe.", (int)name->n, name->data,
             value_type(v));
    struct text *text = text_new(run, strlen(hint));
    text_add(run, text, hint, strlen(hint), JINJA_TEMPLATE);
    return undefined_new(run, UNDEFINED_HINT, NULL, value_text(run, text));
}

static bool loop_member(struct run *run, const struct loop *loop, const struct string *name, struct value *value_p)
{
    size_t i = loop->index;
    const struct {
        const char *name;
        struct value value;
    } members[] = {{"index", value_int((int64_t)i + 1)},
                   {"index0", value_int((int64_t)i)},
                   {"first", value_bool(i == 0)},
                   {"last", value_bool(i + 1 == loop->n)},
                   {"length", value_int((int64_t)loop->n)},
                   {"revindex", value_int((int64_t)(loop->n - i))},
                   {"revindex0", value_int((int64_t)(loop->n - i) - 1)},
                   {"depth", value_int(loop->nesting + 1)},
                   {"depth0", value_int(loop->nesting)}};
    for (size_t m = 0; m < sizeof members / sizeof *members; m++)
        if (strlen(members[m].name) == name->n && !memcmp(members[m].name, name->data, name->n)) {
            *value_p = members[m].value;
            return true;
        }
    if (name->n == 8 && !memcmp(name->data, "previtem", 8))
        *value_p = i ? loop->items[i - 1] : value_hint(run, "there is no previous item");
    else if (name->n == 8 && !memcmp(name->data, "nextitem", 8))
        *value_p = i + 1 < loop->n ? loop->items[i + 1] : value_hint(run, "there is no next item");
    else
        return false;
    return true;
}

// Finds attributes of Python's objects, which take precedence over the elements of a dict.
static bool object_member(struct run *run, struct value v, const struct string *name, const struct method_row *row,
                          struct value *value_p)
{
    if (v.kind == KIND_LOOP && loop_member(run, v.loop, name, value_p)) return true;
    if (v.kind == KIND_CYCLER && name->n == 7 && !memcmp(name->data, "current", 7)) {
        *value_p = v.cycler->items->items[v.cycler->at];
        return true;
    }
    if (v.kind == KIND_MACRO && name->n == 4 && !memcmp(name->data, "name", 4)) {
        *value_p = v.macro->node->value;
        return true;
    }
    for (const struct method_row *r = row; r && r->function.name && !strcmp(r->function.name, row->function.name);
         r++) {
        if (r->kind != v.kind) continue;
        struct method *method = heap_alloc(run, sizeof *method);
        *method = (struct method){v, r};
        *value_p = (struct value){.kind = KIND_METHOD, .method = method};
        return true;
    }
    if (!is_forbidden(v.kind, name)) return false;
    *value_p = forbidden(run, v, name);
    return true;
}

// Finds the attributes `grouper` and `list` of a pair that groupby returned.
static bool group_member(struct value v, const struct string *name, struct value *value_p)
{
    if (v.kind != KIND_TUPLE || v.list->n != 2) return false;
    bool grouper = name->n == 7 && !memcmp(name->data, "grouper", 7),
         list = name->n == 4 && !memcmp(name->data, "list", 4);
    if (!v.safe || (!grouper && !list)) return false;
    *value_p = v.list->items[list];
    return true;
}

struct value value_attribute(struct run *run, struct value v, const struct string *name,
                             const struct method_row *methods)
{
    struct value key = {.kind = KIND_STRING, .string = name}, found;
    if (v.kind == KIND_UNDEFINED) undefined_fail(run, v);
    if (v.kind != KIND_NAMESPACE && object_member(run, v, name, methods, &found)) return found;
    if ((v.kind == KIND_DICT || v.kind == KIND_NAMESPACE) && dict_get(run, v.dict, key, &found)) return found;
    if (group_member(v, name, &found)) return found;
    struct string *kept = heap_alloc(run, sizeof *kept);
    *kept = *name;
    return missing_from(run, v, (struct value){.kind = KIND_STRING, .string = kept});
}

// Returns false if there is no such item.
static bool sequence_item(struct run *run, struct value v, int64_t index, struct value *value_p)
{
    size_t n = value_length(run, v);
    if (index < 0) index += (int64_t)n;
    if (index < 0 || (uint64_t)index >= n) return false;
    if (v.kind == KIND_RANGE) {
        *value_p = value_int(v.range->start + index * v.range->step);
    } else if (v.kind == KIND_STRING) {
        size_t start = utf8_offset(v.string->data, v.string->n, (size_t)index), length;
        utf8_get(v.string->data + start, &length);
        *value_p = value_part(run, v, start, start + length);
    } else {
        *value_p = v.list->items[index];
    }
    return true;
}

struct value value_item(struct run *run, struct value v, struct value key)
{
    struct value found;
    int64_t index;
    bool sequence = v.kind == KIND_LIST || v.kind == KIND_TUPLE || v.kind == KIND_STRING || v.kind == KIND_RANGE;
    if (v.kind == KIND_UNDEFINED) undefined_fail(run, v);
    if (v.kind == KIND_DICT) {
        bool unhashable = key.kind == KIND_LIST || key.kind == KIND_DICT;
        if (!unhashable && dict_get(run, v.dict, key, &found)) return found;
    }
    if (sequence && value_integer(key, &index) && sequence_item(run, v, index, &found)) return found;
    if (key.kind != KIND_STRING) return missing_from(run, v, key);
    if (v.kind == KIND_NAMESPACE && dict_get(run, v.dict, key, &found)) return found;
    if (object_member(run, v, key.string, method_find(key.string->data, key.string->n), &found)) return found;
    if (group_member(v, key.string, &found)) return found;
    return missing_from(run, v, key);
}

// Computes Python's slice.indices().
static void slice_bounds(struct run *run, int64_t n, struct value start, struct value stop, int64_t step,
                         int64_t bounds[2])
{
    const struct value given[2] = {start, stop};
    for (int i = 0; i < 2; i++) {
        int64_t lowest = step < 0 ? -1 : 0, highest = step < 0 ? n - 1 : n, at;
        if (given[i].kind == KIND_NONE) {
            bounds[i] = (i == 0) == (step > 0) ? lowest : highest;
            continue;
        }
        if (given[i].kind == KIND_UNDEFINED) undefined_fail(run, given[i]);
        if (!value_integer(given[i], &at))
            run_fail(run, "slice indices must be integers or None or have an __index__ method");
        if (at < 0) at = at < -n ? -1 : at + n;
        bounds[i] = at < lowest ? lowest : at > highest ? highest : at;
        if (at < 0) bounds[i] = lowest;
    }
}

struct value value_slice(struct run *run, struct value v, struct value start, struct value stop,
                         struct value step_value)
{
    int64_t step = 1, bounds[2];
    if (v.kind == KIND_UNDEFINED) undefined_fail(run, v);
    if (v.kind != KIND_LIST && v.kind != KIND_TUPLE && v.kind != KIND_STRING && v.kind != KIND_RANGE)
        run_fail(run, "'%s' object is not subscriptable", value_type(v));
    if (step_value.kind != KIND_NONE && !value_integer(step_value, &step))
        run_fail(run, "slice indices must be integers or None or have an __index__ method");
    if (step == 0) run_fail(run, "slice step cannot be zero");
    slice_bounds(run, (int64_t)value_length(run, v), start, stop, step, bounds);
    if (v.kind == KIND_STRING && step == 1) {
        size_t from = utf8_offset(v.string->data, v.string->n, (size_t)bounds[0]);
        size_t length = bounds[1] > bounds[0] ? (size_t)(bounds[1] - bounds[0]) : 0;
        return value_part(run, v, from, from + utf8_offset(v.string->data + from, v.string->n - from, length));
    }
    struct list *from = value_items(run, v), *list = list_new(run, 0);
    for (int64_t i = bounds[0]; step > 0 ? i < bounds[1] : i > bounds[1];) {
        run_spend(run, 1);
        list_add(run, list, from->items[i]);
        if (__builtin_add_overflow(i, step, &i)) break;
    }
    if (v.kind != KIND_STRING) return v.kind == KIND_TUPLE ? value_tuple(list) : value_list(list);
    return string_join(run, value_string(run, ""), value_list(list), false);
}
