// SPDX-License-Identifier: Apache-2.0
// Filters of lists and dicts: length, order, groups.
#include "lib/jinja/filters.h"

#include <string.h>

static struct value filter_length(struct run *run, struct call *call)
{
    return value_int((int64_t)value_length(run, call->self));
}

static struct value filter_list(struct run *run, struct call *call)
{
    struct list *copy = list_new(run, 0);
    // A second list with the same elements is enough: neither list can be changed.
    *copy = *value_items(run, call->self);
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

// Sorts indices by their keys: a stable merge sort.
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

// Returns the values of several attributes, separated by commas, as one key.
static struct value sort_key(struct run *run, struct value item, struct value attribute, bool sensitive)
{
    if (attribute.kind != KIND_STRING || !memchr(attribute.string->data, ',', attribute.string->n))
        return fold_case(run, item_path(run, item, attribute, value_missing), sensitive);
    struct list *keys = list_new(run, 2);
    const struct string *s = attribute.string;
    for (size_t from = 0, to; from <= s->n; from = to + 1) {
        const char *comma = memchr(s->data + from, ',', s->n - from);
        to = comma ? (size_t)(comma - s->data) : s->n;
        struct value part = value_part(run, attribute, from, to);
        list_add(run, keys, fold_case(run, item_path(run, item, part, value_missing), sensitive));
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
    for (size_t i = 0; i < items->n; i++) { // Jinja puts each key into a list: equal keys are then never ordered
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
        keys[i] = fold_case(run, by_value ? entry->value : entry->key, call_flag(run, call, 0));
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
        total = value_binary(run, '+', total, item_path(run, v, call->at[0], value_missing));
    return total;
}

static struct value filter_groupby(struct run *run, struct call *call)
{
    struct list *items = value_items(run, call->self), *groups = list_new(run, 0);
    struct value attribute = call->at[0], otherwise = call->at[1];
    bool sensitive = call_flag(run, call, 2);
    struct value *keys = heap_array(run, items->n + 1, sizeof *keys);
    for (size_t i = 0; i < items->n; i++)
        keys[i] = fold_case(run, item_path(run, items->items[i], attribute, otherwise), sensitive);
    struct list *sorted = list_sorted(run, keys, items->items, items->n, false).list, *group = NULL;
    struct value last = value_missing;
    for (size_t i = 0; i < sorted->n; i++) {
        struct value key = item_path(run, sorted->items[i], attribute, otherwise),
                     folded = fold_case(run, key, sensitive);
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

const struct function sequence_filters[] = {
    {"count", filter_length, 0, ""},
    {"dictsort", filter_dictsort, 0, "case_sensitive by reverse"},
    {"first", filter_first, 0, ""},
    {"groupby", filter_groupby, 1, "attribute default case_sensitive"},
    {"last", filter_last, 0, ""},
    {"length", filter_length, 0, ""},
    {"list", filter_list, 0, ""},
    {"max", filter_max, 0, "case_sensitive attribute"},
    {"min", filter_min, 0, "case_sensitive attribute"},
    {"reverse", filter_reverse, 0, ""},
    {"sort", filter_sort, 0, "reverse case_sensitive attribute"},
    {"sum", filter_sum, 0, "attribute start"},
    {0},
};
