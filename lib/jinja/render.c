// SPDX-License-Identifier: Apache-2.0
// Renders statements and macros. Has the entry points to compile and render.
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "lib/base/utf8.h"
#include "lib/jinja/render.h"

enum flow { FLOW_NEXT, FLOW_BREAK, FLOW_CONTINUE };

static enum flow render(struct run *run, struct scope *scope, const struct node *list);

static struct scope *scope_new(struct run *run, struct scope *outer)
{
    struct scope *scope = heap_alloc(run, sizeof *scope);
    scope->outer = outer;
    return scope;
}

// Renders the statements and returns their text.
static struct value render_text(struct run *run, struct scope *scope, const struct node *body)
{
    struct text *outer = run->out;
    run->out = text_new(run, 0);
    render(run, scope, body);
    struct value v = value_text(run, run->out);
    run->out = outer;
    return v;
}

// ---- Assignment.

static void assign(struct run *run, struct scope *scope, const struct node *target, struct value v);

static void unpack(struct run *run, struct scope *scope, const struct node *target, struct value v)
{
    size_t wanted = 0;
    for (const struct node *item = target->list; item; item = item->next)
        wanted++;
    if (!value_iterable(v)) run_fail(run, "cannot unpack non-iterable %s object", value_type(v));
    const struct list *items = value_items(run, v);
    if (items->n > wanted) run_fail(run, "too many values to unpack (expected %zu)", wanted);
    if (items->n < wanted) run_fail(run, "not enough values to unpack (expected %zu, got %zu)", wanted, items->n);
    size_t i = 0;
    for (const struct node *item = target->list; item; item = item->next)
        assign(run, scope, item, items->items[i++]);
}

static void assign(struct run *run, struct scope *scope, const struct node *target, struct value v)
{
    if (target->kind == NODE_TUPLE) {
        unpack(run, scope, target, v);
        return;
    }
    if (target->kind == NODE_NAME) {
        scope_set(run, scope, target->symbol, v);
        return;
    }
    struct value space = scope_get(run, scope, target->symbol);
    if (space.kind != KIND_NAMESPACE) run_fail(run, "cannot assign attribute on non-namespace object");
    dict_set(run, space.dict, target->value, v);
}

// ---- Loops.

// Returns the elements of `from` that pass the loop's `if`. Returns all elements if the loop has no `if`.
static struct list *loop_items(struct run *run, struct scope *scope, const struct node *node, struct value from)
{
    struct list *all = value_items(run, from);
    if (!node->c) return all;
    struct list *kept = list_new(run, 0);
    for (size_t i = 0; i < all->n; i++) {
        struct scope *inner = scope_new(run, scope);
        assign(run, inner, node->a, all->items[i]);
        if (value_truth(run, eval(run, inner, node->c))) list_add(run, kept, all->items[i]);
    }
    return kept;
}

static enum flow render_loop(struct run *run, struct scope *scope, const struct node *node, struct value from,
                             int nesting)
{
    const struct list *items = loop_items(run, scope, node, from);
    struct loop *loop = heap_alloc(run, sizeof *loop);
    *loop = (struct loop){.items = items->items,
                          .n = items->n,
                          .nesting = nesting,
                          .node = node->op == 'r' ? node : NULL,
                          .scope = scope};
    struct scope *inner = NULL;
    for (size_t i = 0; i < items->n; i++) {
        if (!inner || inner->captured) inner = scope_new(run, scope);
        inner->n = 0;
        loop->index = i;
        run_spend(run, 1);
        scope_set(run, inner, SYMBOL_LOOP, (struct value){.kind = KIND_LOOP, .loop = loop});
        assign(run, inner, node->a, items->items[i]);
        if (render(run, inner, node->body) == FLOW_BREAK) return FLOW_NEXT;
    }
    if (!items->n && node->otherwise) return render(run, scope_new(run, scope), node->otherwise);
    return FLOW_NEXT;
}

struct value loop_call(struct run *run, const struct loop *loop, struct value items)
{
    if (!loop->node) run_fail(run, "The loop must have the 'recursive' marker to be called recursively.");
    struct text *outer = run->out;
    run_enter(run);
    run->out = text_new(run, 0);
    render_loop(run, loop->scope, loop->node, items, loop->nesting + 1);
    struct value v = value_text(run, run->out);
    run->out = outer;
    run->depth--;
    return v;
}

// ---- Macros.

static struct value macro_new(struct run *run, struct scope *scope, const struct node *node)
{
    struct macro *macro = heap_alloc(run, sizeof *macro);
    *macro = (struct macro){node, scope};
    for (struct scope *s = scope; s; s = s->outer)
        s->captured = true;
    return (struct value){.kind = KIND_MACRO, .macro = macro};
}

// Finds the named argument, writes its value to *value_p and marks it as taken. Returns false if there is no such
// argument that is not taken yet.
static bool named_take(struct run *run, struct dict *named, bool *taken, struct value name, struct value *value_p)
{
    if (!named) return false;
    run_spend(run, named->n / 16);
    for (size_t i = 0; i < named->n; i++)
        if (!taken[i] && value_equal(run, named->entries[i].key, name)) {
            *value_p = named->entries[i].value;
            taken[i] = true;
            return true;
        }
    return false;
}

static struct value parameter_missing(struct run *run, const struct string *name)
{
    struct text *text = text_new(run, 64);
    text_add(run, text, "parameter '", 11, JINJA_TEMPLATE);
    text_add_string(run, text, name);
    text_add(run, text, "' was not provided", 18, JINJA_TEMPLATE);
    text_add(run, text, "", 1, JINJA_TEMPLATE);
    return value_hint(run, text->data);
}

// Binds the arguments that match no parameter to the variables varargs, kwargs and caller of the macro's body.
static void bind_rest(struct run *run, struct scope *scope, const struct macro *macro,
                      const struct arguments *arguments, size_t n_bound, const bool *taken)
{
    struct list *rest = list_new(run, 0);
    struct dict *named = dict_new(run, 0);
    struct value caller = value_missing;
    for (size_t i = n_bound; i < arguments->n; i++)
        list_add(run, rest, arguments->values[i]);
    for (size_t i = 0; arguments->named && i < arguments->named->n; i++) {
        const struct dict_entry *entry = &arguments->named->entries[i];
        if (taken[i]) continue;
        if (value_is(entry->key, "caller"))
            caller = entry->value;
        else
            dict_set(run, named, entry->key, entry->value);
    }
    const struct node *node = macro->node;
    if (rest->n && !node->uses_varargs)
        run_fail(run, "macro '%.*s' takes not more than %zu argument(s)", (int)node->value.string->n,
                 node->value.string->data, n_bound);
    if (named->n && !node->uses_kwargs)
        run_fail(run, "macro '%.*s' takes no keyword argument %s", (int)node->value.string->n, node->value.string->data,
                 value_repr_short(run, named->entries[0].key));
    scope_set(run, scope, SYMBOL_VARARGS, value_tuple(rest));
    scope_set(run, scope, SYMBOL_KWARGS, value_dict(named));
    if (caller.kind == KIND_MISSING) caller = value_hint(run, "No caller defined");
    if (node->symbol == SYMBOL_CALLER) return; // the body of a call block sees the outer caller
    for (const struct node *parameter = node->list; parameter; parameter = parameter->next)
        if (parameter->symbol == SYMBOL_CALLER) return; // bound as a parameter
    scope_set(run, scope, SYMBOL_CALLER, caller);
}

struct value macro_call(struct run *run, const struct macro *macro, struct arguments *arguments)
{
    struct scope *scope = scope_new(run, macro->scope);
    size_t n = 0, n_named = arguments->named ? arguments->named->n : 0;
    bool *taken = heap_alloc(run, n_named + 1);
    run_enter(run);
    for (const struct node *parameter = macro->node->list; parameter; parameter = parameter->next, n++) {
        const struct string *name = &run->template->symbols[parameter->symbol];
        struct value v;
        if (n < arguments->n)
            v = arguments->values[n];
        else if (named_take(run, arguments->named, taken, (struct value){.kind = KIND_STRING, .string = name}, &v))
            ;
        else
            v = parameter->b ? eval(run, scope, parameter->b) : parameter_missing(run, name);
        scope_set(run, scope, parameter->symbol, v);
    }
    bind_rest(run, scope, macro, arguments, n < arguments->n ? n : arguments->n, taken);
    struct value v = render_text(run, scope, macro->node->body);
    run->depth--;
    return v;
}

static void render_call_block(struct run *run, struct scope *scope, const struct node *node)
{
    struct arguments arguments = {0};
    struct value callee = eval(run, scope, node->a->a);
    eval_arguments(run, scope, node->a->list, &arguments);
    if (!arguments.named) arguments.named = dict_new(run, 1);
    dict_set(run, arguments.named, value_string(run, "caller"), macro_new(run, scope, node->b));
    text_add_value(run, run->out, value_call(run, callee, &arguments));
}

// ---- Statements.

static enum flow render_with(struct run *run, struct scope *scope, const struct node *node)
{
    struct scope *inner = scope_new(run, scope);
    for (const struct node *set = node->list; set; set = set->next)
        assign(run, inner, set->a, eval(run, scope, set->b));
    return render(run, inner, node->body);
}

static enum flow render_if(struct run *run, struct scope *scope, const struct node *node)
{
    return render(run, scope, value_truth(run, eval(run, scope, node->a)) ? node->body : node->otherwise);
}

static enum flow render_node(struct run *run, struct scope *scope, const struct node *node)
{
    struct value v;
    switch (node->kind) {
    case NODE_DATA: text_add_string(run, run->out, node->value.string); break;
    case NODE_PRINT:
        for (const struct node *item = node->list; item; item = item->next)
            text_add_value(run, run->out, eval(run, scope, item));
        break;
    case NODE_IF: return render_if(run, scope, node);
    case NODE_FOR: return render_loop(run, scope, node, eval(run, scope, node->b), 0);
    case NODE_SET: assign(run, scope, node->a, eval(run, scope, node->b)); break;
    case NODE_SET_BLOCK:
        v = render_text(run, scope_new(run, scope), node->body);
        assign(run, scope, node->a, eval_filters(run, scope, node->b, v));
        break;
    case NODE_MACRO: scope_set(run, scope, node->symbol, macro_new(run, scope, node)); break;
    case NODE_CALL_BLOCK: render_call_block(run, scope, node); break;
    case NODE_FILTER_BLOCK:
        v = render_text(run, scope_new(run, scope), node->body);
        text_add_value(run, run->out, eval_filters(run, scope, node->a, v));
        break;
    case NODE_WITH: return render_with(run, scope, node);
    case NODE_SCOPE: render(run, scope_new(run, scope), node->body); break;
    case NODE_BREAK: return FLOW_BREAK;
    case NODE_CONTINUE: return FLOW_CONTINUE;
    default: run_fail(run, "a chat template has no access to other templates");
    }
    return FLOW_NEXT;
}

static enum flow render(struct run *run, struct scope *scope, const struct node *list)
{
    enum flow flow = FLOW_NEXT;
    run_enter(run);
    for (; list && flow == FLOW_NEXT; list = list->next) {
        run->line = list->line;
        flow = render_node(run, scope, list);
    }
    run->depth--;
    return flow;
}

// ---- Public.

// Makes \n the only line end and drops the last line end.
static size_t normalize_lines(char *source, size_t n)
{
    size_t to = 0;
    for (size_t i = 0; i < n; i++) {
        bool cr = source[i] == '\r';
        if (cr && i + 1 < n && source[i + 1] == '\n') i++;
        source[to++] = cr ? '\n' : source[i];
    }
    return to && source[to - 1] == '\n' ? to - 1 : to;
}

enum status jinja_compile(const char *source, size_t size_bytes, struct jinja_template **template_p)
{
    enum { MEMORY_PER_BYTE = 256, MEMORY_MIN = 1 << 20 };
    size_t bad;
    if (size_bytes > JINJA_SOURCE_LIMIT_BYTES)
        return status_fail(STATUS_DATA, "%zu bytes long: at most %zu are allowed", size_bytes,
                           JINJA_SOURCE_LIMIT_BYTES);
    if (!utf8_valid(source, size_bytes, &bad)) return status_fail(STATUS_DATA, "byte %zu is not UTF-8", bad);
    struct jinja_template *t = mem_alloc(sizeof *t);
    t->source = mem_alloc(size_bytes + 1);
    memcpy(t->source, source, size_bytes);
    t->run.limits = JINJA_LIMITS_DEFAULT;
    t->run.limits.memory_bytes = MEMORY_MIN + MEMORY_PER_BYTE * size_bytes;
    if (setjmp(t->run.jump)) {
        enum status status = status_fail(STATUS_DATA, "%s", t->run.sentence);
        jinja_free(t);
        return status;
    }
    template_parse(t, tokens_read(&t->run, t->source, normalize_lines(t->source, size_bytes)));
    *template_p = t;
    return STATUS_OK;
}

void jinja_free(struct jinja_template *t)
{
    if (!t) return;
    run_fini(&t->run);
    free(t->source);
    free(t);
}

static void set_input(struct run *run, const struct jinja_input *input)
{
    size_t n = strlen(input->name);
    for (size_t i = 0; i < run->template->n_symbols; i++) {
        const struct string *name = &run->template->symbols[i];
        if (name->n == n && !memcmp(name->data, input->name, n))
            run->globals[i] = value_from_json(run, input->value, input);
    }
}

static void output_copy(const struct text *text, struct jinja_output *output_p)
{
    *output_p = (struct jinja_output){.text = mem_alloc(text->used + 1), .text_bytes = text->used};
    if (text->used) memcpy(output_p->text, text->data, text->used);
    output_p->n_spans = (int)text->n_spans;
    if (text->n_spans) output_p->spans = mem_copy(text->spans, text->n_spans * sizeof *text->spans);
}

enum status jinja_render(const struct jinja_template *t, const struct jinja_input *inputs, int n, const struct tm *now,
                         const struct jinja_limits *limits, struct jinja_output *output_p)
{
    struct run *run = mem_alloc(sizeof *run);
    enum status status = STATUS_OK;
    run->limits = *limits;
    run->template = t;
    run->now = now;
    run->hash_key = hash_key_random();
    if (setjmp(run->jump)) {
        status = status_fail(STATUS_INVALID, "%s", run->sentence);
    } else {
        run->globals = heap_array(run, t->n_symbols, sizeof *run->globals);
        run->out = text_new(run, 0);
        for (int i = 0; i < n; i++)
            set_input(run, &inputs[i]);
        render(run, NULL, t->body);
        output_copy(run->out, output_p);
    }
    run_fini(run);
    free(run);
    return status;
}

void jinja_output_fini(struct jinja_output *output)
{
    free(output->text);
    free(output->spans);
    *output = (struct jinja_output){0};
}
