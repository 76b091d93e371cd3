// SPDX-License-Identifier: Apache-2.0
// Evaluates the syntax tree. Private to jinja/.
#pragma once

#include "lib/jinja/syntax.h"

struct binding {
    int symbol;
    struct value value;
};

// Variables of a loop's iteration, a macro call or a block. The outermost variables are run->globals.
struct scope {
    struct scope *outer;
    struct binding *bindings;
    size_t n, capacity;
    bool captured; // a macro refers to this scope, so the next iteration must not reuse it
};

struct value eval(struct run *run, struct scope *scope, const struct node *node);
void eval_arguments(struct run *run, struct scope *scope, const struct node *list, struct arguments *arguments);
struct value eval_filters(struct run *run, struct scope *scope, const struct node *filters, struct value body);
struct value scope_get(struct run *run, const struct scope *scope, int symbol);
void scope_set(struct run *run, struct scope *scope, int symbol, struct value v);
