// SPDX-License-Identifier: Apache-2.0
// Evaluates expressions.
#include <math.h>

#include "lib/jinja/render.h"

// ---- Variables.

struct value scope_get(struct run *run, const struct scope *scope, int symbol)
{
    for (; scope; scope = scope->outer) {
        run_spend(run, scope->n / 16);
        for (size_t i = scope->n; i-- > 0;)
            if (scope->bindings[i].symbol == symbol) return scope->bindings[i].value;
    }
    return run->globals[symbol];
}

void scope_set(struct run *run, struct scope *scope, int symbol, struct value v)
{
    if (!scope) {
        run->globals[symbol] = v;
        return;
    }
    run_spend(run, scope->n / 16);
    for (size_t i = 0; i < scope->n; i++)
        if (scope->bindings[i].symbol == symbol) {
            scope->bindings[i].value = v;
            return;
        }
    HEAP_GROW(run, scope->bindings, scope->n, scope->capacity);
    scope->bindings[scope->n++] = (struct binding){symbol, v};
}

static struct value eval_name(struct run *run, struct scope *scope, const struct node *node)
{
    struct value v = scope_get(run, scope, node->symbol);
    if (v.kind != KIND_MISSING) return v;
    const struct string *name = &run->template->symbols[node->symbol];
    const struct function *function = global_find(name->data, name->n);
    if (function) return (struct value){.kind = KIND_FUNCTION, .function = function};
    return undefined_new(run, UNDEFINED_NAME, NULL, (struct value){.kind = KIND_STRING, .string = name});
}

// ---- Arithmetic.

_Noreturn static void unsupported_operands(struct run *run, const char *op, struct value a, struct value b)
{
    if (a.kind == KIND_UNDEFINED) undefined_fail(run, a);
    if (b.kind == KIND_UNDEFINED) undefined_fail(run, b);
    if (op[0] == '+' && (a.kind == KIND_STRING || a.kind == KIND_LIST || a.kind == KIND_TUPLE))
        run_fail(run, "can only concatenate %s (not \"%s\") to %s", value_type(a), value_type(b), value_type(a));
    run_fail(run, "unsupported operand type(s) for %s: '%s' and '%s'", op, value_type(a), value_type(b));
}

_Noreturn static void too_large(struct run *run)
{
    run_fail(run, "integers over 64 bits are not supported");
}

static struct value concat_lists(struct run *run, struct value a, struct value b)
{
    struct list *list = list_new(run, a.list->n + b.list->n);
    run_spend(run, (a.list->n + b.list->n) / 4);
    for (size_t i = 0; i < a.list->n; i++)
        list_add(run, list, a.list->items[i]);
    for (size_t i = 0; i < b.list->n; i++)
        list_add(run, list, b.list->items[i]);
    return (struct value){.kind = a.kind, .list = list};
}

static struct value repeat(struct run *run, struct value v, int64_t count)
{
    if (v.kind == KIND_STRING) return string_repeat(run, v, count);
    struct list *list = list_new(run, 0);
    for (int64_t i = 0; i < count && v.list->n; i++)
        for (size_t k = 0; k < v.list->n; k++) {
            run_spend(run, 1);
            list_add(run, list, v.list->items[k]);
        }
    return (struct value){.kind = v.kind, .list = list};
}

static bool repeats(struct value v)
{
    return v.kind == KIND_STRING || v.kind == KIND_LIST || v.kind == KIND_TUPLE;
}

// Rounds the quotient down, so the remainder has the sign of the divisor.
static int64_t floor_divide(int64_t a, int64_t b)
{
    return a / b - (a % b != 0 && (a < 0) != (b < 0));
}

static struct value integer_power(struct run *run, int64_t a, int64_t b)
{
    int64_t result = 1;
    if (b < 0 && a == 0) run_fail(run, "0.0 cannot be raised to a negative power");
    if (b < 0) return value_float(pow((double)a, (double)b));
    for (; b; b >>= 1) {
        if ((b & 1) && __builtin_mul_overflow(result, a, &result)) too_large(run);
        if (b > 1 && __builtin_mul_overflow(a, a, &a)) too_large(run);
    }
    return value_int(result);
}

static struct value integers(struct run *run, char op, int64_t a, int64_t b)
{
    int64_t result = 0;
    bool over = false;
    if ((op == '/' || op == 'd' || op == '%') && b == 0)
        run_fail(run, op == '/' ? "division by zero" : "integer division or modulo by zero");
    switch (op) {
    case '+': over = __builtin_add_overflow(a, b, &result); break;
    case '-': over = __builtin_sub_overflow(a, b, &result); break;
    case '*': over = __builtin_mul_overflow(a, b, &result); break;
    case '/': return value_float((double)a / (double)b);
    case 'p': return integer_power(run, a, b);
    case 'd': over = b == -1 ? __builtin_sub_overflow(0, a, &result) : (result = floor_divide(a, b), false); break;
    default: result = b == -1 ? 0 : a - floor_divide(a, b) * b;
    }
    if (over) too_large(run);
    return value_int(result);
}

static struct value floats(struct run *run, char op, double a, double b)
{
    if ((op == '/' || op == 'd' || op == '%') && b == 0)
        run_fail(run, op == '/'   ? "float division by zero"
                      : op == 'd' ? "float floor division by zero"
                                  : "float modulo");
    double remainder = 0;
    if (op == 'd' || op == '%') {
        remainder = fmod(a, b);
        if (remainder != 0 && (remainder < 0) != (b < 0)) remainder += b;
    }
    switch (op) {
    case '+': return value_float(a + b);
    case '-': return value_float(a - b);
    case '*': return value_float(a * b);
    case '/': return value_float(a / b);
    case 'p':
        if (a == 0 && b < 0) run_fail(run, "0.0 cannot be raised to a negative power");
        if (a < 0 && b != floor(b)) run_fail(run, "complex numbers are not supported");
        return value_float(pow(a, b));
    case 'd': return value_float(round((a - remainder) / b));
    default: return value_float(remainder);
    }
}

struct value value_binary(struct run *run, char op, struct value a, struct value b)
{
    static const char *const names[] = {
        ['+'] = "+", ['-'] = "-", ['*'] = "*", ['/'] = "/", ['d'] = "//", ['%'] = "%", ['p'] = "** or pow()"};
    int64_t i, j;
    double x, y;
    if (op == '%' && a.kind == KIND_STRING) return string_percent(run, a, b);
    if (op == '+' && a.kind == KIND_STRING && b.kind == KIND_STRING) return string_concat(run, a, b);
    if (op == '+' && a.kind == b.kind && (a.kind == KIND_LIST || a.kind == KIND_TUPLE)) return concat_lists(run, a, b);
    if (op == '*' && repeats(a) && value_integer(b, &i)) return repeat(run, a, i);
    if (op == '*' && repeats(b) && value_integer(a, &i)) return repeat(run, b, i);
    if (value_integer(a, &i) && value_integer(b, &j)) return value_tagged(integers(run, op, i, j), a, b);
    if (!value_number(a, &x) || !value_number(b, &y)) unsupported_operands(run, names[(unsigned char)op], a, b);
    return value_tagged(floats(run, op, x, y), a, b);
}

static struct value eval_sign(struct run *run, struct value v, bool negative)
{
    int64_t i;
    if (v.kind == KIND_FLOAT) return value_tagged(value_float(negative ? -v.number : v.number), v, v);
    if (!value_integer(v, &i)) {
        if (v.kind == KIND_UNDEFINED) undefined_fail(run, v);
        run_fail(run, "bad operand type for unary %c: '%s'", negative ? '-' : '+', value_type(v));
    }
    if (negative && __builtin_sub_overflow(0, i, &i)) too_large(run);
    return value_tagged(value_int(i), v, v);
}

// ---- Comparison.

static bool compare(struct run *run, char op, struct value a, struct value b)
{
    if (op == '=') return value_equal(run, a, b);
    if (op == '!') return !value_equal(run, a, b);
    if (op == 'i') return value_contains(run, b, a);
    if (op == 'n') return !value_contains(run, b, a);
    int order = value_order(run, a, b, op == '<' ? "<" : op == 'l' ? "<=" : op == '>' ? ">" : ">=");
    if (order == ORDER_NONE) return false;
    return op == '<' ? order < 0 : op == 'l' ? order <= 0 : op == '>' ? order > 0 : order >= 0;
}

// Evaluates comparisons: a < b < c means a < b and b < c, with b evaluated once.
static struct value eval_compare(struct run *run, struct scope *scope, const struct node *node)
{
    struct value left = eval(run, scope, node->a);
    for (const struct node *operand = node->list; operand; operand = operand->next) {
        struct value right = eval(run, scope, operand->a);
        if (!compare(run, operand->op, left, right)) return value_bool(false);
        left = right;
    }
    return value_bool(true);
}

// ---- Calls.

void eval_arguments(struct run *run, struct scope *scope, const struct node *list, struct arguments *arguments)
{
    for (; list; list = list->next) {
        struct value v = eval(run, scope, list->a), item;
        if (list->kind == NODE_POSITIONAL) {
            HEAP_GROW(run, arguments->values, arguments->n, arguments->capacity);
            arguments->values[arguments->n++] = v;
            continue;
        }
        if (list->kind == NODE_SPREAD) {
            for (struct iterator it = iterator_start(run, v); iterator_next(run, &it, &item);) {
                HEAP_GROW(run, arguments->values, arguments->n, arguments->capacity);
                arguments->values[arguments->n++] = item;
            }
            continue;
        }
        if (!arguments->named) arguments->named = dict_new(run, 4);
        if (list->kind == NODE_KEYWORD) {
            dict_set(run, arguments->named, list->value, v);
            continue;
        }
        if (v.kind != KIND_DICT) run_fail(run, "argument after ** must be a mapping, not %s", value_type(v));
        for (size_t i = 0; i < v.dict->n; i++)
            dict_set(run, arguments->named, v.dict->entries[i].key, v.dict->entries[i].value);
    }
}

struct value value_call(struct run *run, struct value callee, struct arguments *arguments)
{
    switch (callee.kind) {
    case KIND_FUNCTION: return function_call(run, callee.function, value_none, arguments);
    case KIND_METHOD: return function_call(run, &callee.method->row->function, callee.method->self, arguments);
    case KIND_MACRO: return macro_call(run, callee.macro, arguments);
    case KIND_LOOP:
        if (arguments->n != 1) run_fail(run, "the loop takes one argument, %zu given", arguments->n);
        return loop_call(run, callee.loop, arguments->values[0]);
    case KIND_JOINER:
        if (callee.cycler->at++) return callee.cycler->separator;
        return value_string(run, "");
    case KIND_UNDEFINED: undefined_fail(run, callee);
    default: run_fail(run, "'%s' object is not callable", value_type(callee));
    }
}

static struct value eval_call(struct run *run, struct scope *scope, const struct node *node)
{
    struct arguments arguments = {0};
    struct value callee = eval(run, scope, node->a);
    eval_arguments(run, scope, node->list, &arguments);
    run->line = node->line;
    return value_call(run, callee, &arguments);
}

static struct value eval_function(struct run *run, struct scope *scope, const struct node *node, struct value operand)
{
    struct arguments arguments = {0};
    if (!node->function)
        run_fail(run, "No %s named '%.*s'.", node->kind == NODE_FILTER ? "filter" : "test", (int)node->value.string->n,
                 node->value.string->data);
    eval_arguments(run, scope, node->list, &arguments);
    run->line = node->line;
    return function_call(run, node->function, operand, &arguments);
}

struct value eval_filters(struct run *run, struct scope *scope, const struct node *filters, struct value body)
{
    if (!filters) return body;
    return eval_function(run, scope, filters, eval_filters(run, scope, filters->a, body));
}

// ---- Literals.

static struct value eval_list(struct run *run, struct scope *scope, const struct node *node)
{
    struct list *list = list_new(run, 0);
    for (const struct node *item = node->list; item; item = item->next)
        list_add(run, list, eval(run, scope, item));
    return node->kind == NODE_TUPLE ? value_tuple(list) : value_list(list);
}

static struct value eval_dict(struct run *run, struct scope *scope, const struct node *node)
{
    struct dict *dict = dict_new(run, 0);
    for (const struct node *pair = node->list; pair; pair = pair->next) {
        struct value key = eval(run, scope, pair->a);
        dict_set(run, dict, key, eval(run, scope, pair->b));
    }
    return value_dict(dict);
}

static struct value eval_concat(struct run *run, struct scope *scope, const struct node *node)
{
    struct value joined = value_missing;
    for (const struct node *part = node->list; part; part = part->next) {
        struct value v = value_str(run, eval(run, scope, part));
        v.safe = false;
        joined = joined.kind == KIND_MISSING ? v : string_concat(run, joined, v);
    }
    return joined;
}

static struct value eval_optional(struct run *run, struct scope *scope, const struct node *node)
{
    return node ? eval(run, scope, node) : value_none;
}

static struct value eval_item(struct run *run, struct scope *scope, const struct node *node)
{
    struct value object = eval(run, scope, node->a);
    if (node->b->kind != NODE_SLICE) return value_item(run, object, eval(run, scope, node->b));
    struct value start = eval_optional(run, scope, node->b->a), stop = eval_optional(run, scope, node->b->b);
    return value_slice(run, object, start, stop, eval_optional(run, scope, node->b->c));
}

static struct value eval_condition(struct run *run, struct scope *scope, const struct node *node)
{
    if (value_truth(run, eval(run, scope, node->a))) return eval(run, scope, node->b);
    if (node->c) return eval(run, scope, node->c);
    return value_hint(run, "the inline if-expression evaluated to false and no else section was defined.");
}

static struct value eval_node(struct run *run, struct scope *scope, const struct node *node)
{
    struct value v;
    switch (node->kind) {
    case NODE_CONSTANT: return node->value;
    case NODE_NAME: return eval_name(run, scope, node);
    case NODE_LIST:
    case NODE_TUPLE: return eval_list(run, scope, node);
    case NODE_DICT: return eval_dict(run, scope, node);
    case NODE_ATTRIBUTE: return value_attribute(run, eval(run, scope, node->a), node->value.string, node->method);
    case NODE_ITEM: return eval_item(run, scope, node);
    case NODE_CALL: return eval_call(run, scope, node);
    case NODE_FILTER:
    case NODE_TEST: return eval_function(run, scope, node, eval(run, scope, node->a));
    case NODE_NOT: return value_bool(!value_truth(run, eval(run, scope, node->a)));
    case NODE_NEGATIVE:
    case NODE_POSITIVE: return eval_sign(run, eval(run, scope, node->a), node->kind == NODE_NEGATIVE);
    case NODE_AND: v = eval(run, scope, node->a); return value_truth(run, v) ? eval(run, scope, node->b) : v;
    case NODE_OR: v = eval(run, scope, node->a); return value_truth(run, v) ? v : eval(run, scope, node->b);
    case NODE_CONDITION: return eval_condition(run, scope, node);
    case NODE_COMPARE: return eval_compare(run, scope, node);
    case NODE_CONCAT: return eval_concat(run, scope, node);
    case NODE_BINARY: v = eval(run, scope, node->a); return value_binary(run, node->op, v, eval(run, scope, node->b));
    default: run_fail(run, "slices stand only in brackets");
    }
}

struct value eval(struct run *run, struct scope *scope, const struct node *node)
{
    run_enter(run);
    run->line = node->line;
    struct value v = eval_node(run, scope, node);
    run->depth--;
    return v;
}
