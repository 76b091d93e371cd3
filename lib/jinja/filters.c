// SPDX-License-Identifier: Apache-2.0
#include "lib/jinja/filters.h"

#include <stdlib.h>
#include <string.h>

bool argument_given(struct value v)
{
    return v.kind != KIND_MISSING && v.kind != KIND_NONE;
}

// ---- Attributes of elements, such as "a.b.0".

static struct value get_part(struct run *run, struct value item, const char *part, size_t n)
{
    struct value key = value_bytes(run, part, n);
    if (n && n < 10 && strspn(part, "0123456789") >= n) key = value_int(strtoll(part, NULL, 10));
    return value_item(run, item, key);
}

struct value item_path(struct run *run, struct value item, struct value path, struct value otherwise)
{
    if (!argument_given(path)) return item;
    if (path.kind != KIND_STRING) {
        item = value_item(run, item, path);
        return item.kind == KIND_UNDEFINED && argument_given(otherwise) ? otherwise : item;
    }
    // Make a copy that ends with NUL, for the numbers.
    struct text *text = text_new(run, path.string->n + 1);
    text_add(run, text, path.string->data, path.string->n, JINJA_TEMPLATE);
    text_add(run, text, "", 1, JINJA_TEMPLATE);
    for (const char *at = text->data;; at++) {
        size_t n = strcspn(at, ".");
        item = get_part(run, item, at, n);
        if (item.kind == KIND_UNDEFINED && argument_given(otherwise)) item = otherwise;
        at += n;
        if (!*at) return item;
    }
}

struct value fold_case(struct run *run, struct value v, bool sensitive)
{
    return v.kind == KIND_STRING && !sensitive ? string_case(run, v, CASE_LOWER) : v;
}

// ---- Filters of any value.

static struct value filter_default(struct run *run, struct call *call)
{
    bool missing = call->self.kind == KIND_UNDEFINED || (call_flag(run, call, 1) && !value_truth(run, call->self));
    if (!missing) return call->self;
    return call->at[0].kind == KIND_MISSING ? value_string(run, "") : call->at[0];
}

static struct value filter_attr(struct run *run, struct call *call)
{
    struct value name = value_str(run, call->at[0]), v = call->self;
    if (v.kind == KIND_DICT) v = value_dict(dict_new(run, 0)); // find only Python's own attributes
    return value_attribute(run, v, name.string, method_find(name.string->data, name.string->n));
}

// ---- Filters of Jinja that this interpreter does not have: using one is an error that names it.

static struct value filter_refused(struct run *run, struct call *call)
{
    run_fail(run, "the filters pprint, random, striptags, urlize and wordwrap are not supported");
}

static const struct function general_filters[] = {
    {"attr", filter_attr, 1, "name"},
    {"d", filter_default, 0, "default_value boolean"},
    {"default", filter_default, 0, "default_value boolean"},
    {"pprint", filter_refused, 0, "*"},
    {"random", filter_refused, 0, "*"},
    {"striptags", filter_refused, 0, "*"},
    {"urlize", filter_refused, 0, "*"},
    {"wordwrap", filter_refused, 0, "*"},
    {0},
};

const struct function *filter_find(const char *name, size_t n)
{
    static const struct function *const tables[] = {general_filters, text_filters, number_filters, sequence_filters,
                                                    generator_filters};
    const struct function *found = NULL;
    for (size_t i = 0; i < sizeof tables / sizeof *tables && !found; i++)
        found = function_find(tables[i], name, n);
    return found;
}
