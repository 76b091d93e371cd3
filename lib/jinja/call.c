// SPDX-License-Identifier: Apache-2.0
// Calls filters, tests, methods and functions: looks them up in tables and binds arguments.
#include <string.h>

#include "lib/jinja/value.h"

const struct function *function_find(const struct function *table, const char *name, size_t n)
{
    for (; table->name; table++)
        if (strlen(table->name) == n && !memcmp(table->name, name, n)) return table;
    return NULL;
}

const struct function *test_find(const char *name, size_t n)
{
    return function_find(test_table, name, n);
}

const struct function *global_find(const char *name, size_t n)
{
    return function_find(global_table, name, n);
}

const struct method_row *method_find(const char *name, size_t n)
{
    for (const struct method_row *row = method_table; row->function.name; row++)
        if (strlen(row->function.name) == n && !memcmp(row->function.name, name, n)) return row;
    return NULL;
}

static int parameter_count(const char *params)
{
    int n = *params != 0;
    for (; *params; params++)
        n += *params == ' ';
    return n;
}

static int parameter_find(const char *params, const struct string *name)
{
    for (int i = 0; *params; i++) {
        size_t n = strcspn(params, " ");
        if (n == name->n && !memcmp(params, name->data, n)) return i;
        params += n + (params[n] == ' ');
    }
    return -1;
}

static void bind_named(struct run *run, const struct function *function, const struct dict *named, struct call *call)
{
    for (size_t i = 0; i < named->n; i++) {
        struct value key = named->entries[i].key;
        int at = key.kind == KIND_STRING ? parameter_find(function->params, key.string) : -1;
        if (at < 0)
            run_fail(run, "%s() got an unexpected keyword argument %s", function->name, value_repr_short(run, key));
        if (call->at[at].kind != KIND_MISSING)
            run_fail(run, "%s() got multiple values for argument %s", function->name, value_repr_short(run, key));
        call->at[at] = named->entries[i].value;
    }
}

struct value function_call(struct run *run, const struct function *function, struct value self,
                           struct arguments *arguments)
{
    struct call call = {.self = self, .arguments = arguments};
    run_enter(run);
    if (strcmp(function->params, "*") != 0) {
        size_t most = (size_t)parameter_count(function->params);
        if (arguments->n > most)
            run_fail(run, "%s() takes at most %zu arguments, %zu given", function->name, most, arguments->n);
        for (size_t i = 0; i < arguments->n; i++)
            call.at[i] = arguments->values[i];
        if (arguments->named) bind_named(run, function, arguments->named, &call);
        for (int i = 0; i < function->required; i++)
            if (call.at[i].kind == KIND_MISSING) run_fail(run, "%s() misses an argument", function->name);
    }
    struct value v = function->fn(run, &call);
    run->depth--;
    return v;
}

int64_t call_integer(struct run *run, const struct call *call, int parameter, int64_t otherwise)
{
    struct value v = call->at[parameter];
    int64_t i;
    if (v.kind == KIND_MISSING || v.kind == KIND_NONE) return otherwise;
    if (v.kind == KIND_UNDEFINED) undefined_fail(run, v);
    if (!value_integer(v, &i)) run_fail(run, "'%s' object cannot be interpreted as an integer", value_type(v));
    return i;
}

bool call_flag(struct run *run, const struct call *call, int parameter)
{
    return value_truth(run, call->at[parameter]);
}

struct value call_text(struct run *run, const struct call *call, int parameter)
{
    struct value v = call->at[parameter];
    if (v.kind == KIND_UNDEFINED) undefined_fail(run, v);
    if (v.kind != KIND_STRING) run_fail(run, "expected a str argument, got %s", value_type(v));
    return v;
}
