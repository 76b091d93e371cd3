// SPDX-License-Identifier: Apache-2.0
// Values: lists, dicts, conversion from JSON, and Python's rules of truth, equality and order.
#include <math.h>
#include <string.h>

#include "lib/jinja/value.h"

const struct value value_none = {.kind = KIND_NONE, .tag = JINJA_TEMPLATE}, value_missing = {.kind = KIND_MISSING};

struct value value_bool(bool b)
{
    return (struct value){.kind = KIND_BOOL, .tag = JINJA_TEMPLATE, .boolean = b};
}

struct value value_int(int64_t i)
{
    return (struct value){.kind = KIND_INT, .tag = JINJA_TEMPLATE, .integer = i};
}

struct value value_float(double d)
{
    return (struct value){.kind = KIND_FLOAT, .tag = JINJA_TEMPLATE, .number = d};
}

struct value value_list(struct list *list)
{
    return (struct value){.kind = KIND_LIST, .list = list};
}

struct value value_tuple(struct list *list)
{
    return (struct value){.kind = KIND_TUPLE, .list = list};
}

struct value value_dict(struct dict *dict)
{
    return (struct value){.kind = KIND_DICT, .dict = dict};
}

struct value undefined_new(struct run *run, int why, const char *owner, struct value name)
{
    struct undefined *undefined = heap_alloc(run, sizeof *undefined);
    undefined->why = why;
    undefined->owner = owner;
    undefined->name = name;
    return (struct value){.kind = KIND_UNDEFINED, .undefined = undefined};
}

struct value value_hint(struct run *run, const char *hint)
{
    struct undefined *undefined = heap_alloc(run, sizeof *undefined);
    *undefined = (struct undefined){.why = UNDEFINED_HINT, .name = value_string(run, hint)};
    return (struct value){.kind = KIND_UNDEFINED, .undefined = undefined};
}

void undefined_fail(struct run *run, struct value v)
{
    const struct undefined *u = v.undefined;
    const char *name = u->why == UNDEFINED_HINT ? NULL : value_repr_short(run, u->name);
    switch (u->why) {
    case UNDEFINED_NAME: run_fail(run, "%s is undefined", name);
    case UNDEFINED_ATTRIBUTE: run_fail(run, "'%s object' has no attribute %s", u->owner, name);
    case UNDEFINED_ELEMENT: run_fail(run, "%s object has no element %s", u->owner, name);
    default: run_fail(run, "%.*s", (int)u->name.string->n, u->name.string->data);
    }
}

const char *value_type(struct value v)
{
    static const char *const names[] = {[KIND_MISSING] = "missing",
                                        [KIND_UNDEFINED] = "Undefined",
                                        [KIND_NONE] = "NoneType",
                                        [KIND_BOOL] = "bool",
                                        [KIND_INT] = "int",
                                        [KIND_FLOAT] = "float",
                                        [KIND_STRING] = "str",
                                        [KIND_LIST] = "list",
                                        [KIND_TUPLE] = "tuple",
                                        [KIND_DICT] = "dict",
                                        [KIND_NAMESPACE] = "Namespace",
                                        [KIND_RANGE] = "range",
                                        [KIND_GENERATOR] = "generator",
                                        [KIND_LOOP] = "LoopContext",
                                        [KIND_MACRO] = "Macro",
                                        [KIND_FUNCTION] = "function",
                                        [KIND_METHOD] = "builtin_function_or_method",
                                        [KIND_CYCLER] = "Cycler",
                                        [KIND_JOINER] = "Joiner"};
    static const char *const views[] = {"dict_keys", "dict_values", "dict_items"};
    return v.kind == KIND_VIEW ? views[v.view->what] : names[v.kind];
}

bool value_is(struct value v, const char *text)
{
    size_t n = strlen(text);
    return v.kind == KIND_STRING && v.string->n == n && !memcmp(v.string->data, text, n);
}

bool value_integer(struct value v, int64_t *integer_p)
{
    if (v.kind != KIND_INT && v.kind != KIND_BOOL) return false;
    *integer_p = v.kind == KIND_INT ? v.integer : v.boolean;
    return true;
}

bool value_number(struct value v, double *number_p)
{
    int64_t i;
    if (v.kind == KIND_FLOAT)
        *number_p = v.number;
    else if (value_integer(v, &i))
        *number_p = (double)i;
    else
        return false;
    return true;
}

static int tag_deep(struct value v, int depth)
{
    int tag = JINJA_TEMPLATE;
    switch (v.kind) {
    case KIND_BOOL:
    case KIND_INT:
    case KIND_FLOAT: return v.tag;
    case KIND_STRING: return string_tag(v.string);
    case KIND_LIST:
    case KIND_TUPLE:
        for (size_t i = 0; i < v.list->n && tag < 0 && depth; i++)
            tag = tag_deep(v.list->items[i], depth - 1);
        return tag;
    case KIND_DICT:
        for (size_t i = 0; i < v.dict->n && tag < 0 && depth; i++)
            tag = tag_deep(v.dict->entries[i].value, depth - 1);
        return tag;
    default: return tag;
    }
}

int value_tag(struct value v)
{
    return tag_deep(v, 4);
}

struct value value_tagged(struct value v, struct value a, struct value b)
{
    int tag = value_tag(a);
    v.tag = tag >= 0 ? tag : value_tag(b);
    return v;
}

// ---- Lists and dicts.

struct list *list_new(struct run *run, size_t capacity)
{
    struct list *list = heap_alloc(run, sizeof *list);
    if (capacity) list->items = heap_array(run, capacity, sizeof *list->items);
    list->capacity = capacity;
    return list;
}

void list_add(struct run *run, struct list *list, struct value v)
{
    HEAP_GROW(run, list->items, list->n, list->capacity);
    list->items[list->n++] = v;
}

struct value list_pair(struct run *run, struct value a, struct value b)
{
    struct list *pair = list_new(run, 2);
    list_add(run, pair, a);
    list_add(run, pair, b);
    return value_tuple(pair);
}

enum { DICT_SCANNED = 8 }; // a dict of at most this many entries needs no index

struct dict *dict_new(struct run *run, size_t capacity)
{
    struct dict *dict = heap_alloc(run, sizeof *dict);
    if (capacity) dict->entries = heap_array(run, capacity, sizeof *dict->entries);
    dict->capacity = capacity;
    return dict;
}

static uint64_t value_hash(struct run *run, struct value v)
{
    double d;
    uint64_t hash = 1;
    run_spend(run, v.kind == KIND_STRING ? v.string->n / 16 + 1 : 1);
    if (v.kind == KIND_STRING) return hash_bytes(&run->hash_key, v.string->data, v.string->n);
    if (value_number(v, &d)) {
        d += 0.0; // -0.0 equals 0.0
        memcpy(&hash, &d, sizeof hash);
        return hash_number(&run->hash_key, hash);
    }
    if (v.kind == KIND_TUPLE) {
        run_enter(run);
        for (size_t i = 0; i < v.list->n; i++)
            hash = hash_number(&run->hash_key, hash ^ value_hash(run, v.list->items[i]));
        run->depth--;
        return hash;
    }
    if (v.kind == KIND_LIST || v.kind == KIND_DICT) run_fail(run, "unhashable type: '%s'", value_type(v));
    return v.kind == KIND_NONE || v.kind == KIND_UNDEFINED ? v.kind : (uint64_t)(uintptr_t)v.list;
}

// Adds an entry. Different keys may have the same hash: NaN does not equal itself.
static void index_add(struct run *run, struct dict *dict, size_t entry)
{
    size_t at = dict->entries[entry].hash & (dict->index_size - 1);
    for (; dict->index[at]; at = (at + 1) & (dict->index_size - 1))
        run_spend(run, 1);
    dict->index[at] = (uint32_t)entry + 1;
}

static void index_build(struct run *run, struct dict *dict)
{
    dict->index_size = 64;
    while (dict->index_size < 4 * dict->n)
        dict->index_size *= 2;
    dict->index = heap_array(run, dict->index_size, sizeof *dict->index);
    for (size_t i = 0; i < dict->n; i++) {
        dict->entries[i].hash = value_hash(run, dict->entries[i].key);
        index_add(run, dict, i);
    }
}

static struct dict_entry *dict_find(struct run *run, const struct dict *dict, struct value key)
{
    if (!dict->index) {
        if (key.kind != KIND_STRING) value_hash(run, key); // fails for a list
        for (size_t i = 0; i < dict->n; i++)
            if (value_equal(run, dict->entries[i].key, key)) return &dict->entries[i];
        return NULL;
    }
    uint64_t hash = value_hash(run, key);
    for (size_t at = hash & (dict->index_size - 1); dict->index[at]; at = (at + 1) & (dict->index_size - 1)) {
        struct dict_entry *entry = &dict->entries[dict->index[at] - 1];
        run_spend(run, 1);
        if (entry->hash == hash && value_equal(run, entry->key, key)) return entry;
    }
    return NULL;
}

void dict_set(struct run *run, struct dict *dict, struct value key, struct value v)
{
    struct dict_entry *entry = dict_find(run, dict, key);
    if (entry) {
        entry->value = v;
        return;
    }
    HEAP_GROW(run, dict->entries, dict->n, dict->capacity);
    dict->entries[dict->n++] = (struct dict_entry){.key = key, .value = v};
    if (!dict->index && dict->n <= DICT_SCANNED) return;
    if (!dict->index || 2 * dict->n > dict->index_size) {
        index_build(run, dict);
        return;
    }
    dict->entries[dict->n - 1].hash = value_hash(run, key);
    index_add(run, dict, dict->n - 1);
}

bool dict_get(struct run *run, const struct dict *dict, struct value key, struct value *value_p)
{
    const struct dict_entry *entry = dict_find(run, dict, key);
    if (entry) *value_p = entry->value;
    return entry != NULL;
}

bool dict_get_text(struct run *run, const struct dict *dict, const char *key, struct value *value_p)
{
    const struct string s = {.data = key, .n = strlen(key)};
    return dict_get(run, dict, (struct value){.kind = KIND_STRING, .string = &s}, value_p);
}

// ---- JSON.

struct json_reader {
    struct run *run;
    const struct jinja_input *input;
};

static struct value tagged_bytes(struct run *run, const char *data, size_t n, int tag)
{
    if (tag < 0) return value_bytes(run, data, n);
    struct tagged {
        struct string string;
        struct text text;
        struct jinja_span span;
    } *tagged = heap_alloc(run, sizeof *tagged);
    tagged->span = (struct jinja_span){0, n, tag};
    tagged->text = (struct text){(char *)data, n, n, &tagged->span, n > 0, 1};
    tagged->string = (struct string){data, n, &tagged->text, 0};
    return (struct value){.kind = KIND_STRING, .string = &tagged->string};
}

static bool is_plain_word(const struct jinja_input *input, const char *member, const json_t *json)
{
    if (!input->plain_member || !json_is_string(json) || strcmp(member, input->plain_member) != 0) return false;
    for (const char *const *word = input->plain_words; *word; word++)
        if (strcmp(*word, json_string_value(json)) == 0) return true;
    return false;
}

static struct value read_json(const struct json_reader *r, const json_t *json, int tag)
{
    struct run *run = r->run;
    struct value v = value_none;
    run_enter(run);
    switch (json_typeof(json)) {
    case JSON_OBJECT: {
        struct dict *dict = dict_new(run, json_object_size(json));
        const char *key;
        size_t key_n;
        json_t *member;
        json_object_keylen_foreach((json_t *)json, key, key_n, member)
        {
            int member_tag = is_plain_word(r->input, key, member) ? JINJA_TEMPLATE : tag;
            dict_set(run, dict, tagged_bytes(run, key, key_n, tag), read_json(r, member, member_tag));
        }
        v = value_dict(dict);
        break;
    }
    case JSON_ARRAY: {
        bool numbered = run->depth == 1 && r->input->tag_elements;
        struct list *list = list_new(run, json_array_size(json));
        for (size_t i = 0; i < json_array_size(json); i++)
            list_add(run, list, read_json(r, json_array_get(json, i), numbered ? tag + (int)i : tag));
        v = value_list(list);
        break;
    }
    case JSON_STRING: v = tagged_bytes(run, json_string_value(json), json_string_length(json), tag); break;
    case JSON_INTEGER: v = value_int(json_integer_value(json)), v.tag = tag; break;
    case JSON_REAL: v = value_float(json_real_value(json)), v.tag = tag; break;
    case JSON_TRUE:
    case JSON_FALSE: v = value_bool(json_is_true(json)), v.tag = tag; break;
    case JSON_NULL: break;
    }
    run->depth--;
    return v;
}

struct value value_from_json(struct run *run, const json_t *json, const struct jinja_input *input)
{
    struct json_reader reader = {run, input};
    return json ? read_json(&reader, json, input->tag) : value_none;
}

// ---- Python's rules.

// Returns false if the value has no len().
static bool value_sized(struct value v, size_t *n_p)
{
    switch (v.kind) {
    case KIND_UNDEFINED: *n_p = 0; return true;
    case KIND_STRING: *n_p = utf8_count(v.string->data, v.string->n); return true;
    case KIND_LIST:
    case KIND_TUPLE: *n_p = v.list->n; return true;
    case KIND_DICT: *n_p = v.dict->n; return true;
    case KIND_VIEW: *n_p = v.view->dict->n; return true;
    case KIND_RANGE: *n_p = v.range->n; return true;
    case KIND_LOOP: *n_p = v.loop->n; return true;
    default: return false;
    }
}

size_t value_length(struct run *run, struct value v)
{
    size_t n;
    if (!value_sized(v, &n)) run_fail(run, "object of type '%s' has no len()", value_type(v));
    if (v.kind == KIND_STRING) run_spend(run, v.string->n / 16);
    return n;
}

bool value_truth(struct run *run, struct value v)
{
    switch (v.kind) {
    case KIND_NONE:
    case KIND_UNDEFINED:
    case KIND_MISSING: return false;
    case KIND_BOOL: return v.boolean;
    case KIND_INT: return v.integer != 0;
    case KIND_FLOAT: return v.number != 0;
    case KIND_STRING: return v.string->n != 0;
    default: {
        size_t n;
        return !value_sized(v, &n) || n != 0;
    }
    }
}

static bool lists_equal(struct run *run, const struct list *a, const struct list *b)
{
    if (a->n != b->n) return false;
    for (size_t i = 0; i < a->n; i++) {
        run_spend(run, 1);
        if (!value_equal(run, a->items[i], b->items[i])) return false;
    }
    return true;
}

static bool dicts_equal(struct run *run, const struct dict *a, const struct dict *b)
{
    struct value v;
    if (a->n != b->n) return false;
    for (size_t i = 0; i < a->n; i++)
        if (!dict_get(run, b, a->entries[i].key, &v) || !value_equal(run, a->entries[i].value, v)) return false;
    return true;
}

static bool ranges_equal(const struct range *a, const struct range *b)
{
    return a->n == b->n && (!a->n || (a->start == b->start && (a->n == 1 || a->step == b->step)));
}

bool value_equal(struct run *run, struct value a, struct value b)
{
    double x, y;
    if (a.kind == KIND_INT && b.kind == KIND_INT) return a.integer == b.integer;
    if (value_number(a, &x)) return value_number(b, &y) && x == y;
    if (a.kind != b.kind) return false;
    if (a.kind == KIND_STRING) {
        if (a.string->n != b.string->n) return false;
        run_spend(run, a.string->n / 16);
        return !memcmp(a.string->data, b.string->data, a.string->n);
    }
    if (a.kind == KIND_NONE || a.kind == KIND_UNDEFINED) return true;
    if (a.kind == KIND_RANGE) return ranges_equal(a.range, b.range);
    // Compare identity.
    if (a.kind != KIND_LIST && a.kind != KIND_TUPLE && a.kind != KIND_DICT) return a.list == b.list;
    run_enter(run);
    bool equal = a.kind == KIND_DICT ? dicts_equal(run, a.dict, b.dict) : lists_equal(run, a.list, b.list);
    run->depth--;
    return equal;
}

static int strings_order(const struct string *a, const struct string *b)
{
    size_t n = a->n < b->n ? a->n : b->n;
    int order = n ? memcmp(a->data, b->data, n) : 0; // UTF-8 sorts like its characters
    return order ? order : (a->n > b->n) - (a->n < b->n);
}

static int lists_order(struct run *run, const struct list *a, const struct list *b, const char *op)
{
    size_t n = a->n < b->n ? a->n : b->n;
    for (size_t i = 0; i < n; i++) {
        run_spend(run, 1);
        if (!value_equal(run, a->items[i], b->items[i])) return value_order(run, a->items[i], b->items[i], op);
    }
    return (a->n > b->n) - (a->n < b->n);
}

int value_order(struct run *run, struct value a, struct value b, const char *op)
{
    double x, y;
    run_enter(run);
    int order = 0;
    if (a.kind == KIND_INT && b.kind == KIND_INT) {
        order = (a.integer > b.integer) - (a.integer < b.integer);
    } else if (value_number(a, &x) && value_number(b, &y)) {
        order = isnan(x) || isnan(y) ? ORDER_NONE : (x > y) - (x < y);
    } else if (a.kind == KIND_STRING && b.kind == KIND_STRING) {
        run_spend(run, (a.string->n < b.string->n ? a.string->n : b.string->n) / 16);
        order = strings_order(a.string, b.string);
        order = (order > 0) - (order < 0);
    } else if (a.kind == b.kind && (a.kind == KIND_LIST || a.kind == KIND_TUPLE)) {
        order = lists_order(run, a.list, b.list, op);
    } else {
        if (a.kind == KIND_UNDEFINED) undefined_fail(run, a);
        if (b.kind == KIND_UNDEFINED) undefined_fail(run, b);
        run_fail(run, "'%s' not supported between instances of '%s' and '%s'", op, value_type(a), value_type(b));
    }
    run->depth--;
    return order;
}

bool value_contains(struct run *run, struct value container, struct value item)
{
    struct value v;
    if (container.kind == KIND_STRING) {
        if (item.kind == KIND_UNDEFINED || item.kind != KIND_STRING)
            run_fail(run, "'in <string>' requires string as left operand, not %s", value_type(item));
        run_spend(run, container.string->n / 16);
        return string_find(container.string->data, container.string->n, item.string->data, item.string->n) != SIZE_MAX;
    }
    if (container.kind == KIND_DICT) return dict_get(run, container.dict, item, &v);
    if (!value_iterable(container)) run_fail(run, "argument of type '%s' is not iterable", value_type(container));
    struct iterator it = iterator_start(run, container);
    while (iterator_next(run, &it, &v)) {
        run_spend(run, 1);
        if (value_equal(run, v, item)) return true;
    }
    return false;
}

// ---- Iteration.

bool value_iterable(struct value v)
{
    switch (v.kind) {
    case KIND_UNDEFINED:
    case KIND_STRING:
    case KIND_LIST:
    case KIND_TUPLE:
    case KIND_DICT:
    case KIND_VIEW:
    case KIND_RANGE:
    case KIND_GENERATOR: return true;
    default: return false;
    }
}

struct iterator iterator_start(struct run *run, struct value v)
{
    if (!value_iterable(v)) run_fail(run, "'%s' object is not iterable", value_type(v));
    return (struct iterator){.source = v};
}

static bool dict_next(struct run *run, const struct dict *dict, int what, size_t *at, struct value *value_p)
{
    if (*at >= dict->n) return false;
    const struct dict_entry *entry = &dict->entries[(*at)++];
    *value_p = what == VIEW_KEYS     ? entry->key
               : what == VIEW_VALUES ? entry->value
                                     : list_pair(run, entry->key, entry->value);
    return true;
}

static bool character_next(struct run *run, struct iterator *it, struct value *value_p)
{
    size_t length;
    if (it->at >= it->source.string->n) return false;
    utf8_get(it->source.string->data + it->at, &length);
    struct value s = it->source;
    s.safe = false;
    *value_p = value_part(run, s, it->at, it->at + length);
    it->at += length;
    return true;
}

bool iterator_next(struct run *run, struct iterator *it, struct value *value_p)
{
    run_spend(run, 1);
    switch (it->source.kind) {
    case KIND_STRING: return character_next(run, it, value_p);
    case KIND_LIST:
    case KIND_TUPLE:
        if (it->at >= it->source.list->n) return false;
        *value_p = it->source.list->items[it->at++];
        return true;
    case KIND_DICT: return dict_next(run, it->source.dict, VIEW_KEYS, &it->at, value_p);
    case KIND_VIEW: return dict_next(run, it->source.view->dict, it->source.view->what, &it->at, value_p);
    case KIND_RANGE:
        if (it->at >= it->source.range->n) return false;
        *value_p = value_int(it->source.range->start + (int64_t)it->at++ * it->source.range->step);
        return true;
    case KIND_GENERATOR: {
        run_enter(run);
        bool more = it->source.generator->next(run, it->source.generator, value_p);
        run->depth--;
        return more;
    }
    default: return false;
    }
}

struct list *value_items(struct run *run, struct value v)
{
    if (v.kind == KIND_LIST || v.kind == KIND_TUPLE) return v.list;
    size_t n = 0;
    struct iterator it = iterator_start(run, v);
    value_sized(v, &n);
    struct list *list = list_new(run, n);
    for (struct value item; iterator_next(run, &it, &item);)
        list_add(run, list, item);
    return list;
}

struct value value_generator(struct run *run, struct value source,
                             bool (*next)(struct run *run, struct generator *g, struct value *value_p))
{
    struct generator *g = heap_alloc(run, sizeof *g);
    g->next = next;
    g->source = iterator_start(run, source);
    return (struct value){.kind = KIND_GENERATOR, .generator = g};
}
