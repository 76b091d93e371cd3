// SPDX-License-Identifier: Apache-2.0
// Implements the tests of `is`.
#include <string.h>
#include <utf8proc.h>

#include "lib/jinja/value.h"

#define TEST(name, condition)                                                                                          \
    static struct value name(struct run *run, struct call *call)                                                       \
    {                                                                                                                  \
        struct value v = call->self;                                                                                   \
        (void)v;                                                                                                       \
        return value_bool(condition);                                                                                  \
    }

static bool remainder_is(struct run *run, struct value v, struct value divisor, int64_t remainder)
{
    return value_equal(run, value_binary(run, '%', v, divisor), value_int(remainder));
}

static bool is_sequence(struct value v)
{
    return v.kind == KIND_STRING || v.kind == KIND_LIST || v.kind == KIND_TUPLE || v.kind == KIND_DICT ||
           v.kind == KIND_RANGE || v.kind == KIND_UNDEFINED;
}

static bool is_callable(struct value v)
{
    return v.kind == KIND_FUNCTION || v.kind == KIND_METHOD || v.kind == KIND_MACRO || v.kind == KIND_JOINER ||
           v.kind == KIND_LOOP || v.kind == KIND_UNDEFINED;
}

static bool is_same(struct run *run, struct value a, struct value b)
{
    if (a.kind != b.kind) return false;
    if (a.kind <= KIND_STRING) return value_equal(run, a, b);
    return a.list == b.list;
}

static int order(struct run *run, struct call *call, const char *op)
{
    return value_order(run, call->self, call->at[0], op);
}

static bool has_case(struct run *run, struct value v, utf8proc_category_t wanted)
{
    const struct string *s = value_str(run, v).string;
    bool found = false;
    run_spend(run, s->n / 4);
    for (size_t i = 0, length; i < s->n; i += length) {
        utf8proc_category_t category = utf8proc_category(utf8_get(s->data + i, &length));
        if (category == wanted)
            found = true;
        else if (category == UTF8PROC_CATEGORY_LU || category == UTF8PROC_CATEGORY_LL ||
                 category == UTF8PROC_CATEGORY_LT)
            return false;
    }
    return found;
}

static bool names_function(struct value v, const struct function *(*find)(const char *, size_t))
{
    return v.kind == KIND_STRING && find(v.string->data, v.string->n);
}

TEST(is_odd, remainder_is(run, v, value_int(2), 1))
TEST(is_even, remainder_is(run, v, value_int(2), 0))
TEST(is_divisible, remainder_is(run, v, call->at[0], 0))
TEST(is_defined, v.kind != KIND_UNDEFINED)
TEST(is_undefined, v.kind == KIND_UNDEFINED)
TEST(is_filter, names_function(v, filter_find))
TEST(is_test, names_function(v, test_find))
TEST(is_none, v.kind == KIND_NONE)
TEST(is_boolean, v.kind == KIND_BOOL)
TEST(is_false, v.kind == KIND_BOOL && !v.boolean)
TEST(is_true, v.kind == KIND_BOOL && v.boolean)
TEST(is_integer, v.kind == KIND_INT)
TEST(is_float, v.kind == KIND_FLOAT)
TEST(is_lower, has_case(run, v, UTF8PROC_CATEGORY_LL))
TEST(is_upper, has_case(run, v, UTF8PROC_CATEGORY_LU))
TEST(is_string, v.kind == KIND_STRING)
TEST(is_mapping, v.kind == KIND_DICT)
TEST(is_number, v.kind == KIND_INT || v.kind == KIND_FLOAT || v.kind == KIND_BOOL)
TEST(is_a_sequence, is_sequence(v))
TEST(is_iterable, value_iterable(v) || v.kind == KIND_LOOP)
TEST(is_a_callable, is_callable(v))
TEST(is_same_as, is_same(run, v, call->at[0]))
TEST(is_escaped, v.kind == KIND_STRING && v.safe)
TEST(is_in, value_contains(run, call->at[0], v))
TEST(is_equal, value_equal(run, v, call->at[0]))
TEST(is_not_equal, !value_equal(run, v, call->at[0]))
TEST(is_greater, order(run, call, ">") == 1)
TEST(is_less, order(run, call, "<") == -1)

static struct value is_greater_or_equal(struct run *run, struct call *call)
{
    int o = order(run, call, ">=");
    return value_bool(o == 0 || o == 1);
}

static struct value is_less_or_equal(struct run *run, struct call *call)
{
    return value_bool(order(run, call, "<=") <= 0);
}

const struct function test_table[] = {
    {"odd", is_odd, 0, ""},
    {"even", is_even, 0, ""},
    {"divisibleby", is_divisible, 1, "num"},
    {"defined", is_defined, 0, ""},
    {"undefined", is_undefined, 0, ""},
    {"filter", is_filter, 0, ""},
    {"test", is_test, 0, ""},
    {"none", is_none, 0, ""},
    {"boolean", is_boolean, 0, ""},
    {"false", is_false, 0, ""},
    {"true", is_true, 0, ""},
    {"integer", is_integer, 0, ""},
    {"float", is_float, 0, ""},
    {"lower", is_lower, 0, ""},
    {"upper", is_upper, 0, ""},
    {"string", is_string, 0, ""},
    {"mapping", is_mapping, 0, ""},
    {"number", is_number, 0, ""},
    {"sequence", is_a_sequence, 0, ""},
    {"iterable", is_iterable, 0, ""},
    {"callable", is_a_callable, 0, ""},
    {"sameas", is_same_as, 1, "other"},
    {"escaped", is_escaped, 0, ""},
    {"in", is_in, 1, "seq"},
    {"==", is_equal, 1, "other"},
    {"eq", is_equal, 1, "other"},
    {"equalto", is_equal, 1, "other"},
    {"!=", is_not_equal, 1, "other"},
    {"ne", is_not_equal, 1, "other"},
    {">", is_greater, 1, "other"},
    {"gt", is_greater, 1, "other"},
    {"greaterthan", is_greater, 1, "other"},
    {">=", is_greater_or_equal, 1, "other"},
    {"ge", is_greater_or_equal, 1, "other"},
    {"<", is_less, 1, "other"},
    {"lt", is_less, 1, "other"},
    {"lessthan", is_less, 1, "other"},
    {"<=", is_less_or_equal, 1, "other"},
    {"le", is_less_or_equal, 1, "other"},
    {0},
};
