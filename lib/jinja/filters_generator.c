// SPDX-License-Identifier: Apache-2.0
// Filters whose result is a generator, which computes its elements on demand.
#include "lib/jinja/filters.h"

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
            fold_case(run, item_path(run, v, g->argument[1], value_missing), value_truth(run, g->argument[0]));
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
    while (argument_given(g->argument[0]) && row->n < g->n)
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
        if (argument_given(call->at[1]) && i >= items->n % count) list_add(run, slice, call->at[1]);
        list_add(run, slices, value_list(slice));
    }
    return value_generator(run, value_list(slices), iterator_forward);
}

// Returns the arguments from `first` on, for the filter or test that a filter calls.
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
                           : item_path(run, v, g->argument[0], g->argument[1]);
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
        struct value tested = item_path(run, v, g->argument[0], value_missing);
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

const struct function generator_filters[] = {
    {"batch", filter_batch, 1, "linecount fill_with"},
    {"items", filter_items, 0, ""},
    {"map", filter_map, 0, "*"},
    {"reject", filter_reject, 0, "*"},
    {"rejectattr", filter_rejectattr, 0, "*"},
    {"select", filter_select, 0, "*"},
    {"selectattr", filter_selectattr, 0, "*"},
    {"slice", filter_slice, 1, "slices fill_with"},
    {"unique", filter_unique, 0, "case_sensitive attribute"},
    {0},
};
