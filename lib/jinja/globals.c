// SPDX-License-Identifier: Apache-2.0
// Functions that every template has.
#include <string.h>

#include "lib/jinja/value.h"

static struct value global_range(struct run *run, struct call *call)
{
    enum { RANGE_MAX = 100000 };
    int64_t a = call_integer(run, call, 0, 0), start = 0, stop = a, step = call_integer(run, call, 2, 1);
    if (call->at[1].kind != KIND_MISSING) start = a, stop = call_integer(run, call, 1, 0);
    if (step == 0) run_fail(run, "range() arg 3 must not be zero");
    uint64_t span = step > 0 ? (stop > start ? (uint64_t)stop - (uint64_t)start : 0)
                             : (start > stop ? (uint64_t)start - (uint64_t)stop : 0);
    uint64_t stride = step > 0 ? (uint64_t)step : 0 - (uint64_t)step, n = span / stride + (span % stride != 0);
    if (n > RANGE_MAX) run_fail(run, "Range too big. The sandbox blocks ranges larger than MAX_RANGE (%d).", RANGE_MAX);
    struct range *range = heap_alloc(run, sizeof *range);
    *range = (struct range){start, stop, step, (size_t)n};
    return (struct value){.kind = KIND_RANGE, .range = range};
}

// Reads dict(mapping or pairs, **named).
static struct dict *dict_read(struct run *run, const struct arguments *arguments)
{
    struct dict *dict = dict_new(run, 0);
    struct value v = arguments->n ? arguments->values[0] : value_none, pair;
    if (arguments->n > 1) run_fail(run, "dict expected at most 1 argument, got %zu", arguments->n);
    if (arguments->n && v.kind == KIND_DICT) {
        for (size_t i = 0; i < v.dict->n; i++)
            dict_set(run, dict, v.dict->entries[i].key, v.dict->entries[i].value);
    } else if (arguments->n) {
        for (struct iterator it = iterator_start(run, v); iterator_next(run, &it, &pair);) {
            const struct list *items = value_items(run, pair);
            if (items->n != 2) run_fail(run, "a dict is made of pairs");
            dict_set(run, dict, items->items[0], items->items[1]);
        }
    }
    for (size_t i = 0; arguments->named && i < arguments->named->n; i++)
        dict_set(run, dict, arguments->named->entries[i].key, arguments->named->entries[i].value);
    return dict;
}

static struct value global_dict(struct run *run, struct call *call)
{
    return value_dict(dict_read(run, call->arguments));
}

static struct value global_namespace(struct run *run, struct call *call)
{
    return (struct value){.kind = KIND_NAMESPACE, .dict = dict_read(run, call->arguments)};
}

static struct value global_cycler(struct run *run, struct call *call)
{
    struct cycler *cycler = heap_alloc(run, sizeof *cycler);
    if (!call->arguments->n) run_fail(run, "at least one item has to be provided");
    cycler->items = list_new(run, call->arguments->n);
    for (size_t i = 0; i < call->arguments->n; i++)
        list_add(run, cycler->items, call->arguments->values[i]);
    return (struct value){.kind = KIND_CYCLER, .cycler = cycler};
}

static struct value global_joiner(struct run *run, struct call *call)
{
    struct cycler *joiner = heap_alloc(run, sizeof *joiner);
    joiner->separator = call->at[0].kind == KIND_MISSING ? value_string(run, ", ") : call->at[0];
    return (struct value){.kind = KIND_JOINER, .cycler = joiner};
}

static struct value global_raise_exception(struct run *run, struct call *call)
{
    struct text *text = text_new(run, 64);
    text_add_value(run, text, call->at[0]);
    run_fail(run, "%.*s", (int)(text->used > 400 ? 400 : text->used), text->used ? text->data : "");
}

static struct value global_strftime_now(struct run *run, struct call *call)
{
    struct text *text = text_new(run, 32);
    text_add_strftime(run, text, call_text(run, call, 0));
    return value_text(run, text);
}

const struct function global_table[] = {
    {"range", global_range, 1, "start stop step"},
    {"dict", global_dict, 0, "*"},
    {"namespace", global_namespace, 0, "*"},
    {"cycler", global_cycler, 0, "*"},
    {"joiner", global_joiner, 0, "sep"},
    {"raise_exception", global_raise_exception, 1, "message"},
    {"strftime_now", global_strftime_now, 1, "format"},
    {0},
};
