// SPDX-License-Identifier: Apache-2.0
// Values of a rendering, their memory and their errors. Private to jinja/.
//
// Everything that a compilation or a rendering allocates is in one heap and is freed with it. An error leaves through
// run_fail(), a longjmp() to the entry point, so no function may own anything outside of the heap.
#pragma once

#include <setjmp.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include "lib/base/hash.h"
#include "lib/jinja/jinja.h"

// ---- Memory and errors.

struct heap_block;

// State of one compilation or rendering.
struct run {
    struct heap_block *blocks;
    char *at, *end; // free part of the newest block
    size_t memory_bytes, steps;
    int depth, line; // line: current line of the template
    struct jinja_limits limits;
    struct hash_key hash_key;
    jmp_buf jump;
    char sentence[512];

    // Used only by renderings.
    const struct jinja_template *template;
    const struct tm *now;
    struct value *globals; // [symbols of the template] MISSING if not given
    struct text *out;      // text that statements print to
    size_t output_bytes;
};

_Noreturn void run_fail(struct run *run, const char *format, ...) __attribute__((format(printf, 2, 3)));
void *heap_alloc(struct run *run, size_t bytes); // zeroed
void *heap_array(struct run *run, size_t count, size_t size_bytes);
void *heap_grow(struct run *run, void *old, size_t old_bytes, size_t new_bytes); // the new part is zeroed
void run_fini(struct run *run);
void run_spend(struct run *run, size_t steps);
void run_enter(struct run *run); // enters one level of nesting; run->depth-- leaves it

// Makes room for one more item in an array of the heap.
#define HEAP_GROW(run, array, count, capacity)                                                                         \
    do {                                                                                                               \
        if ((count) == (capacity)) {                                                                                   \
            size_t grow_to = (capacity) ? 2 * (size_t)(capacity) : 8;                                                  \
            (array) = heap_grow((run), (array), (count) * sizeof *(array), grow_to * sizeof *(array));                 \
            (capacity) = grow_to;                                                                                      \
        }                                                                                                              \
    } while (0)

// ---- Strings with origins.

// Bytes with their origins. Only the end changes: a string that ends where the text ends is extended in place.
struct text {
    char *data;
    size_t used, capacity;
    struct jinja_span *spans; // ascending, disjoint; bytes outside of spans come from the template
    size_t n_spans, spans_capacity;
};

// A part of a text, in UTF-8. Immutable.
struct string {
    const char *data;
    size_t n;
    const struct text *text; // NULL: all bytes come from the template
    size_t start;            // start of `data` in the text
};

struct text *text_new(struct run *run, size_t capacity);
void text_add(struct run *run, struct text *text, const char *data, size_t n, int tag);
void text_add_string(struct run *run, struct text *text, const struct string *s);

// ---- Values.

enum kind {
    KIND_MISSING, // an argument that was not given; templates never see it
    KIND_UNDEFINED,
    KIND_NONE,
    KIND_BOOL,
    KIND_INT,
    KIND_FLOAT,
    KIND_STRING,
    KIND_LIST,
    KIND_TUPLE,
    KIND_DICT,
    KIND_NAMESPACE,
    KIND_RANGE,
    KIND_VIEW,      // keys(), values() or items() of a dict
    KIND_GENERATOR, // result of map, select, ...: evaluated during iteration, once
    KIND_LOOP,
    KIND_MACRO,
    KIND_FUNCTION,
    KIND_METHOD,
    KIND_CYCLER,
    KIND_JOINER
};

struct value {
    uint8_t kind;
    bool safe;   // STRING: Python's Markup, which escapes strings that it is joined with
    int32_t tag; // BOOL, INT, FLOAT: origin
    union {
        bool boolean;
        int64_t integer;
        double number;
        const struct string *string;
        struct list *list; // LIST, TUPLE
        struct dict *dict; // DICT, NAMESPACE
        struct undefined *undefined;
        struct range *range;
        struct view *view;
        struct generator *generator;
        struct loop *loop;
        struct macro *macro;
        const struct function *function;
        struct method *method;
        struct cycler *cycler; // CYCLER, JOINER
    };
};

struct list {
    struct value *items;
    size_t n, capacity;
};

struct dict_entry {
    struct value key, value;
    uint64_t hash;
};

// A dict that keeps the order of insertion.
struct dict {
    struct dict_entry *entries;
    size_t n, capacity;
    uint32_t *index; // [index_size] entry + 1 by hash, 0 if free; NULL while the dict is small
    size_t index_size;
};

// Reason why a value is undefined, for the error of its use.
struct undefined {
    enum { UNDEFINED_NAME, UNDEFINED_ATTRIBUTE, UNDEFINED_ELEMENT, UNDEFINED_HINT } why;
    const char *owner; // type of the object that lacks the attribute or element
    struct value name; // name of the variable, attribute or element; HINT: the error message
};

struct range {
    int64_t start, stop, step;
    size_t n;
};

struct view {
    const struct dict *dict;
    enum { VIEW_KEYS, VIEW_VALUES, VIEW_ITEMS } what;
};

struct loop {
    const struct value *items;
    size_t index, n;
    int nesting;              // level of a recursive loop, from 0
    struct value last_change; // argument of the last loop.changed()
    const struct node *node;  // the node of a recursive loop, else NULL
    struct scope *scope;
};

struct macro {
    const struct node *node;
    struct scope *scope; // scope of its definition
};

struct method {
    struct value self;
    const struct method_row *row;
};

struct cycler {
    struct list *items;
    size_t at;
    struct value separator; // JOINER
};

// Arguments of a call.
struct arguments {
    struct value *values; // [n] positional
    size_t n, capacity;
    struct dict *named; // NULL if there are none
};

extern const struct value value_none, value_missing;
struct value value_bool(bool b);
struct value value_int(int64_t i);
struct value value_float(double d);
struct value value_list(struct list *list);
struct value value_tuple(struct list *list);
struct value value_dict(struct dict *dict);
struct value value_text(struct run *run, const struct text *text);     // the whole text
struct value value_bytes(struct run *run, const char *data, size_t n); // not copied; the origin is the template
struct value value_string(struct run *run, const char *text);          // a literal
struct value value_part(struct run *run, struct value s, size_t start, size_t end); // part of a string
struct value value_hint(struct run *run, const char *hint);                         // undefined value with a reason
// Makes an undefined value from the members of struct undefined.
struct value undefined_new(struct run *run, int why, const char *owner, struct value name);
struct value value_from_json(struct run *run, const json_t *json, const struct jinja_input *input);

struct list *list_new(struct run *run, size_t capacity);
void list_add(struct run *run, struct list *list, struct value v);
struct value list_pair(struct run *run, struct value a, struct value b); // a tuple

struct dict *dict_new(struct run *run, size_t capacity);
void dict_set(struct run *run, struct dict *dict, struct value key, struct value v);
bool dict_get(struct run *run, const struct dict *dict, struct value key, struct value *value_p);
bool dict_get_text(struct run *run, const struct dict *dict, const char *key, struct value *value_p);

const char *value_type(struct value v); // Python's name of the type
bool value_is(struct value v, const char *text);
bool value_truth(struct run *run, struct value v);
bool value_equal(struct run *run, struct value a, struct value b);
enum { ORDER_NONE = 2 };                                                          // result for NaN
int value_order(struct run *run, struct value a, struct value b, const char *op); // -1, 0, 1 or ORDER_NONE
bool value_contains(struct run *run, struct value container, struct value item);
size_t value_length(struct run *run, struct value v);   // fails if it has no len()
bool value_integer(struct value v, int64_t *integer_p); // INT and BOOL
bool value_number(struct value v, double *number_p);    // INT, BOOL, FLOAT
int value_tag(struct value v);                          // one origin for the whole value
int string_tag(const struct string *s);
struct value value_tagged(struct value v, struct value a, struct value b); // `v` with the origin of a or b
_Noreturn void undefined_fail(struct run *run, struct value v);

void text_add_value(struct run *run, struct text *text, struct value v); // Python's str()
void text_add_repr(struct run *run, struct text *text, struct value v);  // Python's repr()
struct value value_str(struct run *run, struct value v);       // converts to a string; returns a string as it is
const char *value_repr_short(struct run *run, struct value v); // for messages
enum { FLOAT_FORMAT_STEPS = 8 };                               // steps that a caller of float_format() must spend
int float_format(char *out, size_t size, double d);            // Python's repr()

// ---- Iteration.

struct iterator {
    struct value source;
    size_t at;
};

struct iterator iterator_start(struct run *run, struct value v); // fails if it cannot be iterated
bool iterator_next(struct run *run, struct iterator *it, struct value *value_p);
// Returns a list's own items, which must not be changed, or a new list for other values.
struct list *value_items(struct run *run, struct value v);
bool value_iterable(struct value v);

// A generator calls `next` for each element. `next` returns false at the end.
struct generator {
    bool (*next)(struct run *run, struct generator *g, struct value *value_p);
    struct iterator source;
    struct value argument[4];
    const struct function *function; // filter or test
    struct arguments *arguments;
    bool reject;
    size_t n, at;
    struct dict *seen;
};
struct value value_generator(struct run *run, struct value source,
                             bool (*next)(struct run *run, struct generator *g, struct value *value_p));

bool iterator_forward(struct run *run, struct generator *g, struct value *value_p); // yields the source unchanged

// ---- Operations on strings (bytes of well-formed UTF-8).

size_t utf8_count(const char *data, size_t n);
size_t utf8_offset(const char *data, size_t n, size_t index); // offset of character `index`, at most n
int32_t utf8_get(const char *data, size_t *length_p);
bool char_is_space(int32_t c); // Python's str.isspace()
struct value string_concat(struct run *run, struct value a, struct value b);
struct value string_strip(struct run *run, struct value s, struct value chars, bool left, bool right);
struct value string_replace(struct run *run, struct value s, struct value old, struct value with, int64_t count);
struct value string_escape(struct run *run, struct value s); // HTML; returns Markup
enum letter_case { CASE_UPPER, CASE_LOWER, CASE_CAPITAL, CASE_TITLE, CASE_FILTER_TITLE, CASE_SWAP };
struct value string_case(struct run *run, struct value s, enum letter_case to);
size_t string_find(const char *data, size_t n, const char *part, size_t part_n);           // SIZE_MAX if not found
struct value string_lines(struct run *run, struct value s, bool keep_ends);                // list
struct value string_percent(struct run *run, struct value format, struct value arguments); // format % arguments
struct value string_format(struct run *run, struct value format, const struct arguments *arguments);
struct value string_join(struct run *run, struct value separator, struct value items, bool convert);
struct value string_repeat(struct run *run, struct value s, int64_t count);
void text_add_strftime(struct run *run, struct text *text, struct value format);

// ---- Attributes and elements (access.c).

struct value value_attribute(struct run *run, struct value v, const struct string *name,
                             const struct method_row *methods);             // v.name
struct value value_item(struct run *run, struct value v, struct value key); // v[key]
struct value value_slice(struct run *run, struct value v, struct value start, struct value stop, struct value step);

// ---- Expressions (eval.c).

struct value value_call(struct run *run, struct value callee, struct arguments *arguments);
struct value value_add(struct run *run, struct value a, struct value b);
struct value value_binary(struct run *run, char op, struct value a, struct value b); // + - * / d(//) % p(**)

// ---- Tables of functions. `params` names the parameters, separated by blanks, or is "*" if the function reads
// `arguments` itself. The first `required` parameters must be given.

enum { PARAMS_MAX = 8 };
struct call {
    struct value self;           // the filtered or tested value, or the object of the method
    struct value at[PARAMS_MAX]; // MISSING if not given
    struct arguments *arguments;
};

typedef struct value (*call_fn)(struct run *run, struct call *call);

struct function {
    const char *name;
    call_fn fn;
    int required;
    const char *params;
};

struct method_row {
    enum kind kind;
    struct function function;
};

const struct function *function_find(const struct function *table, const char *name, size_t n);
const struct function *filter_find(const char *name, size_t n);
const struct function *test_find(const char *name, size_t n);
// Returns the first row of this name, or NULL. The other rows of the name follow it in the table.
const struct method_row *method_find(const char *name, size_t n);
extern const struct function test_table[], global_table[]; // end with a row without name
extern const struct method_row method_table[];
const struct function *global_find(const char *name, size_t n);
struct value function_call(struct run *run, const struct function *function, struct value self,
                           struct arguments *arguments);

bool integer_parse(struct run *run, const struct string *s, int base, int64_t *integer_p); // Python's int(text, base)
struct value list_sorted(struct run *run, struct value *keys, struct value *items, size_t n, bool reverse);
int64_t call_integer(struct run *run, const struct call *call, int parameter, int64_t otherwise);
bool call_flag(struct run *run, const struct call *call, int parameter);
struct value call_text(struct run *run, const struct call *call, int parameter); // fails unless it is a string

// Appends the value as JSON. `call` has the arguments of the filter tojson.
void text_add_json(struct run *run, struct text *text, struct value v, const struct call *call);
struct value macro_call(struct run *run, const struct macro *macro, struct arguments *arguments);
struct value loop_call(struct run *run, const struct loop *loop, struct value items);
