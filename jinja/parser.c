// SPDX-License-Identifier: Apache-2.0
// Tokens to a syntax tree, by recursive descent with Jinja's precedence:
// condition < or < and < not < comparison < + - < ~ < * / // % < ** < sign < postfix and filters.
#include <string.h>

#include "jinja/syntax.h"

enum { SOURCE_DEPTH = 250 }; // deepest tree

struct parser {
    struct run *run;
    struct jinja_template *template;
    const struct token *token;
    int loops;                      // around this statement, within the macro
    bool uses_varargs, uses_kwargs; // seen in this macro
};

// A list of nodes under construction.
struct chain {
    struct node *first, **end;
};

static struct chain chain_empty(void)
{
    return (struct chain){0};
}

static void chain_add(struct chain *chain, struct node *node)
{
    if (!chain->end) chain->end = &chain->first;
    *chain->end = node;
    chain->end = &node->next;
}

// ---- Tokens.

static bool token_is(const struct token *token, enum token_type type, const char *text)
{
    return token->type == type && token->n == strlen(text) && !memcmp(token->data, text, token->n);
}

static bool at_operator(const struct parser *p, const char *text)
{
    return token_is(p->token, TOKEN_OPERATOR, text);
}

static bool at_name(const struct parser *p, const char *text)
{
    return token_is(p->token, TOKEN_NAME, text);
}

static const char *token_text(const struct parser *p, const struct token *token, int *n_p)
{
    static const char *const names[] = {"end of template",          "template data / text",
                                        "begin of print statement", "end of print statement",
                                        "begin of statement block", "end of statement block"};
    bool fixed = token->type < sizeof names / sizeof *names;
    const char *text = fixed ? names[token->type] : token->data;
    size_t n = fixed ? strlen(text) : token->n;
    *n_p = n > 60 ? 60 : (int)n;
    return text;
}

_Noreturn static void unexpected(struct parser *p, const char *due)
{
    int n;
    const char *text = token_text(p, p->token, &n);
    p->run->line = p->token->line;
    run_fail(p->run, "expected %s, got '%.*s'", due, n, text);
}

static const struct token *next(struct parser *p)
{
    const struct token *token = p->token;
    if (token->type != TOKEN_END) p->token++;
    p->run->line = p->token->line;
    return token;
}

static bool skip_operator(struct parser *p, const char *text)
{
    bool here = at_operator(p, text);
    if (here) next(p);
    return here;
}

static bool skip_name(struct parser *p, const char *text)
{
    bool here = at_name(p, text);
    if (here) next(p);
    return here;
}

static void expect_operator(struct parser *p, const char *text)
{
    if (!skip_operator(p, text)) unexpected(p, text);
}

static const struct token *expect(struct parser *p, enum token_type type, const char *due)
{
    if (p->token->type != type) unexpected(p, due);
    return next(p);
}

// ---- Nodes.

static int depth_of(const struct node *list)
{
    int depth = 0;
    for (; list; list = list->next)
        if (list->depth > depth) depth = list->depth;
    return depth;
}

// Computes the depth of a complete node.
static struct node *finish(struct parser *p, struct node *node)
{
    const struct node *children[] = {node->a, node->b, node->c, node->list, node->body, node->otherwise};
    for (size_t i = 0; i < sizeof children / sizeof *children; i++) {
        int depth = depth_of(children[i]) + 1; // operands are not in a list yet, their `next` is NULL
        if (depth > node->depth) node->depth = depth;
    }
    if (node->depth > SOURCE_DEPTH) run_fail(p->run, "the template is nested more than %d levels deep", SOURCE_DEPTH);
    return node;
}

static struct node *node_new(struct parser *p, enum node_kind kind)
{
    struct node *node = heap_alloc(p->run, sizeof *node);
    node->kind = (uint8_t)kind;
    node->line = p->token->line;
    return node;
}

static struct node *node_of(struct parser *p, enum node_kind kind, struct node *a, struct node *b)
{
    struct node *node = node_new(p, kind);
    if (a) node->line = a->line;
    node->a = a;
    node->b = b;
    return finish(p, node);
}

static struct value token_value(struct parser *p, const struct token *token)
{
    return value_bytes(p->run, token->data, token->n);
}

static int symbol_of(struct parser *p, const char *data, size_t n)
{
    struct jinja_template *t = p->template;
    for (size_t i = 0; i < t->n_symbols; i++)
        if (t->symbols[i].n == n && !memcmp(t->symbols[i].data, data, n)) return (int)i;
    if (t->n_symbols == 10000) run_fail(p->run, "more than 10000 different names");
    HEAP_GROW(p->run, t->symbols, t->n_symbols, t->symbols_capacity);
    t->symbols[t->n_symbols] = (struct string){.data = data, .n = n};
    return (int)t->n_symbols++;
}

static struct node *parse_expression(struct parser *p);
static struct node *parse_or(struct parser *p);
static struct node *parse_tuple(struct parser *p, bool condition, bool parentheses, const char *stop);
static struct node *parse_unary(struct parser *p, bool filters);

// Recursion on the source: one level of nesting, whatever the tree.
static void enter(struct parser *p)
{
    if (++p->run->depth > SOURCE_DEPTH)
        run_fail(p->run, "the template is nested more than %d levels deep", SOURCE_DEPTH);
}

static void leave(struct parser *p)
{
    p->run->depth--;
}

// ---- Expressions.

static struct node *constant(struct parser *p, struct value v)
{
    struct node *node = node_new(p, NODE_CONSTANT);
    node->value = v;
    return node;
}

static struct node *parse_name(struct parser *p)
{
    const struct token *token = p->token;
    struct node *node = NULL;
    if (at_name(p, "true") || at_name(p, "True"))
        node = constant(p, value_bool(true));
    else if (at_name(p, "false") || at_name(p, "False"))
        node = constant(p, value_bool(false));
    else if (at_name(p, "none") || at_name(p, "None"))
        node = constant(p, value_none);
    else {
        node = node_new(p, NODE_NAME);
        node->symbol = symbol_of(p, token->data, token->n);
        p->uses_varargs |= node->symbol == SYMBOL_VARARGS;
        p->uses_kwargs |= node->symbol == SYMBOL_KWARGS;
    }
    next(p);
    return node;
}

static struct node *parse_strings(struct parser *p)
{
    struct node *node = constant(p, token_value(p, p->token));
    next(p);
    while (p->token->type == TOKEN_STRING)
        node->value = string_concat(p->run, node->value, token_value(p, next(p)));
    return node;
}

static struct node *parse_list(struct parser *p)
{
    struct node *node = node_new(p, NODE_LIST);
    struct chain items = chain_empty();
    next(p);
    while (!at_operator(p, "]")) {
        if (items.first) expect_operator(p, ",");
        if (at_operator(p, "]")) break;
        chain_add(&items, parse_expression(p));
    }
    next(p);
    node->list = items.first;
    return finish(p, node);
}

static struct node *parse_dict(struct parser *p)
{
    struct node *node = node_new(p, NODE_DICT);
    struct chain pairs = chain_empty();
    next(p);
    while (!at_operator(p, "}")) {
        if (pairs.first) expect_operator(p, ",");
        if (at_operator(p, "}")) break;
        struct node *key = parse_expression(p);
        expect_operator(p, ":");
        chain_add(&pairs, node_of(p, NODE_PAIR, key, parse_expression(p)));
    }
    next(p);
    node->list = pairs.first;
    return finish(p, node);
}

static struct node *parse_primary(struct parser *p)
{
    switch (p->token->type) {
    case TOKEN_NAME: return parse_name(p);
    case TOKEN_STRING: return parse_strings(p);
    case TOKEN_INTEGER:
    case TOKEN_FLOAT: {
        struct node *node = constant(p, p->token->number);
        next(p);
        return node;
    }
    default: break;
    }
    if (at_operator(p, "[")) return parse_list(p);
    if (at_operator(p, "{")) return parse_dict(p);
    if (!at_operator(p, "(")) unexpected(p, "an expression");
    next(p);
    struct node *node = parse_tuple(p, true, true, NULL);
    expect_operator(p, ")");
    return node;
}

static bool at_subscript_end(const struct parser *p)
{
    return at_operator(p, "]") || at_operator(p, ",");
}

static struct node *parse_subscript(struct parser *p)
{
    struct node *part[3] = {0};
    if (!at_operator(p, ":")) {
        part[0] = parse_expression(p);
        if (!at_operator(p, ":")) return part[0];
    }
    struct node *slice = node_new(p, NODE_SLICE);
    for (int i = 1; i < 3 && skip_operator(p, ":"); i++)
        if (!at_operator(p, ":") && !at_subscript_end(p)) part[i] = parse_expression(p);
    slice->a = part[0];
    slice->b = part[1];
    slice->c = part[2];
    return finish(p, slice);
}

static struct node *parse_member(struct parser *p, struct node *object)
{
    struct node *node = node_new(p, NODE_ATTRIBUTE);
    next(p); // the dot
    node->a = object;
    if (p->token->type == TOKEN_NAME) {
        node->value = token_value(p, p->token);
        node->method = method_find(p->token->data, p->token->n);
    } else if (p->token->type == TOKEN_INTEGER) {
        node->kind = NODE_ITEM;
        node->b = constant(p, p->token->number);
    } else {
        unexpected(p, "name or number");
    }
    next(p);
    return finish(p, node);
}

static struct node *parse_item(struct parser *p, struct node *object)
{
    struct node *node = node_new(p, NODE_ITEM), *tuple = node_new(p, NODE_TUPLE);
    struct chain keys = chain_empty();
    next(p);
    while (!at_operator(p, "]")) {
        if (keys.first) expect_operator(p, ",");
        chain_add(&keys, parse_subscript(p));
    }
    next(p);
    node->a = object;
    tuple->list = keys.first;
    node->b = keys.first && !keys.first->next ? keys.first : finish(p, tuple);
    return finish(p, node);
}

// One argument of a call.
static struct node *parse_argument(struct parser *p)
{
    enum node_kind kind = NODE_POSITIONAL;
    struct value name = value_missing;
    if (skip_operator(p, "*")) {
        kind = NODE_SPREAD;
    } else if (skip_operator(p, "**")) {
        kind = NODE_SPREAD_NAMED;
    } else if (p->token->type == TOKEN_NAME && token_is(p->token + 1, TOKEN_OPERATOR, "=")) {
        kind = NODE_KEYWORD;
        name = token_value(p, next(p));
        next(p);
    }
    struct node *node = node_of(p, kind, parse_expression(p), NULL);
    node->value = name;
    return node;
}

static void check_argument_order(struct parser *p, const struct node *list)
{
    int last = NODE_POSITIONAL;
    for (; list; list = list->next) {
        int order = list->kind == NODE_KEYWORD      ? NODE_POSITIONAL + 1
                    : list->kind == NODE_POSITIONAL ? NODE_POSITIONAL
                                                    : 100;
        if (list->kind == NODE_POSITIONAL && last != NODE_POSITIONAL)
            run_fail(p->run, "invalid syntax for function call expression");
        if (order > last) last = order;
    }
}

static struct node *parse_arguments(struct parser *p)
{
    struct chain list = chain_empty();
    next(p); // (
    while (!at_operator(p, ")")) {
        if (list.first) expect_operator(p, ",");
        if (at_operator(p, ")")) break;
        chain_add(&list, parse_argument(p));
    }
    next(p);
    check_argument_order(p, list.first);
    return list.first;
}

static struct node *parse_call(struct parser *p, struct node *callee)
{
    struct node *node = node_new(p, NODE_CALL);
    node->a = callee;
    node->list = parse_arguments(p);
    return finish(p, node);
}

static struct node *parse_postfix(struct parser *p, struct node *node)
{
    for (;;) {
        if (at_operator(p, "."))
            node = parse_member(p, node);
        else if (at_operator(p, "["))
            node = parse_item(p, node);
        else if (at_operator(p, "("))
            node = parse_call(p, node);
        else
            return node;
    }
}

// The name of a filter or test; with dots. NULL in `function` is reported where it is used.
static void read_function_name(struct parser *p, struct node *node)
{
    const struct token *first = expect(p, TOKEN_NAME, "a name"), *last = first;
    while (skip_operator(p, "."))
        last = expect(p, TOKEN_NAME, "a name");
    node->value = value_bytes(p->run, first->data, (size_t)(last->data + last->n - first->data));
    const struct string *name = node->value.string;
    node->function = node->kind == NODE_FILTER ? filter_find(name->data, name->n) : test_find(name->data, name->n);
}

static struct node *parse_filter(struct parser *p, struct node *operand)
{
    struct node *node = node_new(p, NODE_FILTER);
    read_function_name(p, node);
    node->a = operand;
    if (at_operator(p, "(")) node->list = parse_arguments(p);
    return finish(p, node);
}

static struct node *parse_filters(struct parser *p, struct node *operand)
{
    while (skip_operator(p, "|"))
        operand = parse_filter(p, operand);
    return operand;
}

static bool at_test_argument(const struct parser *p)
{
    if (p->token->type == TOKEN_NAME) return !at_name(p, "else") && !at_name(p, "or") && !at_name(p, "and");
    return p->token->type == TOKEN_STRING || p->token->type == TOKEN_INTEGER || p->token->type == TOKEN_FLOAT ||
           at_operator(p, "[") || at_operator(p, "{");
}

static struct node *parse_test(struct parser *p, struct node *operand)
{
    struct node *node = node_new(p, NODE_TEST);
    next(p); // is
    bool negated = skip_name(p, "not");
    read_function_name(p, node);
    node->a = operand;
    if (at_operator(p, "(")) {
        node->list = parse_arguments(p);
    } else if (at_test_argument(p)) {
        if (at_name(p, "is")) run_fail(p->run, "You cannot chain multiple tests with is");
        node->list = node_of(p, NODE_POSITIONAL, parse_postfix(p, parse_primary(p)), NULL);
    }
    finish(p, node);
    return negated ? node_of(p, NODE_NOT, node, NULL) : node;
}

static struct node *parse_suffixes(struct parser *p, struct node *node)
{
    for (;;) {
        if (at_operator(p, "|"))
            node = parse_filters(p, node);
        else if (at_name(p, "is"))
            node = parse_test(p, node);
        else if (at_operator(p, "("))
            node = parse_call(p, node);
        else
            return node;
    }
}

static struct node *parse_unary(struct parser *p, bool filters)
{
    struct node *node;
    enter(p);
    if (skip_operator(p, "-"))
        node = node_of(p, NODE_NEGATIVE, parse_unary(p, false), NULL);
    else if (skip_operator(p, "+"))
        node = node_of(p, NODE_POSITIVE, parse_unary(p, false), NULL);
    else
        node = parse_primary(p);
    node = parse_postfix(p, node);
    if (filters) node = parse_suffixes(p, node);
    leave(p);
    return node;
}

static struct node *binary(struct parser *p, char op, struct node *a, struct node *b)
{
    struct node *node = node_of(p, NODE_BINARY, a, b);
    node->op = op;
    return node;
}

static struct node *parse_power(struct parser *p)
{
    struct node *left = parse_unary(p, true);
    while (skip_operator(p, "**"))
        left = binary(p, 'p', left, parse_unary(p, true));
    return left;
}

static struct node *parse_product(struct parser *p)
{
    struct node *left = parse_power(p);
    for (;;) {
        char op = at_operator(p, "*") ? '*' : at_operator(p, "/") ? '/' : at_operator(p, "//") ? 'd' : '%';
        if (op == '%' && !at_operator(p, "%")) return left;
        next(p);
        left = binary(p, op, left, parse_power(p));
    }
}

static struct node *parse_concat(struct parser *p)
{
    struct node *first = parse_product(p);
    if (!at_operator(p, "~")) return first;
    struct node *node = node_new(p, NODE_CONCAT);
    struct chain parts = chain_empty();
    chain_add(&parts, first);
    while (skip_operator(p, "~"))
        chain_add(&parts, parse_product(p));
    node->list = parts.first;
    return finish(p, node);
}

static struct node *parse_sum(struct parser *p)
{
    struct node *left = parse_concat(p);
    while (at_operator(p, "+") || at_operator(p, "-")) {
        char op = next(p)->data[0];
        left = binary(p, op, left, parse_concat(p));
    }
    return left;
}

// The comparison at this token, which is skipped; 0: none.
static char read_comparison(struct parser *p)
{
    static const struct {
        const char *text;
        char op;
    } operators[] = {{"==", '='}, {"!=", '!'}, {"<", '<'}, {"<=", 'l'}, {">", '>'}, {">=", 'g'}};
    for (size_t i = 0; i < sizeof operators / sizeof *operators; i++)
        if (skip_operator(p, operators[i].text)) return operators[i].op;
    if (skip_name(p, "in")) return 'i';
    if (!at_name(p, "not") || !token_is(p->token + 1, TOKEN_NAME, "in")) return 0;
    next(p);
    next(p);
    return 'n';
}

static struct node *parse_comparison(struct parser *p)
{
    struct node *first = parse_sum(p);
    struct chain operands = chain_empty();
    for (char op; (op = read_comparison(p));) {
        struct node *operand = node_of(p, NODE_OPERAND, parse_sum(p), NULL);
        operand->op = op;
        chain_add(&operands, operand);
    }
    if (!operands.first) return first;
    struct node *node = node_new(p, NODE_COMPARE);
    node->line = first->line;
    node->a = first;
    node->list = operands.first;
    return finish(p, node);
}

static struct node *parse_not(struct parser *p)
{
    if (!skip_name(p, "not")) return parse_comparison(p);
    enter(p);
    struct node *node = node_of(p, NODE_NOT, parse_not(p), NULL);
    leave(p);
    return node;
}

static struct node *parse_and(struct parser *p)
{
    struct node *left = parse_not(p);
    while (skip_name(p, "and"))
        left = node_of(p, NODE_AND, left, parse_not(p));
    return left;
}

static struct node *parse_or(struct parser *p)
{
    struct node *left = parse_and(p);
    while (skip_name(p, "or"))
        left = node_of(p, NODE_OR, left, parse_and(p));
    return left;
}

static struct node *parse_expression(struct parser *p)
{
    enter(p);
    struct node *value = parse_or(p);
    while (skip_name(p, "if")) {
        struct node *node = node_new(p, NODE_CONDITION);
        node->a = parse_or(p);
        node->b = value;
        if (skip_name(p, "else")) node->c = parse_expression(p);
        value = finish(p, node);
    }
    leave(p);
    return value;
}

static bool at_tuple_end(const struct parser *p, const char *stop)
{
    return p->token->type == TOKEN_PRINT_END || p->token->type == TOKEN_BLOCK_END || at_operator(p, ")") ||
           (stop && at_name(p, stop));
}

// Expressions separated by commas, a single one without a tuple.
static struct node *parse_tuple(struct parser *p, bool condition, bool parentheses, const char *stop)
{
    struct node *node = node_new(p, NODE_TUPLE);
    struct chain items = chain_empty();
    bool tuple = false;
    for (;;) {
        if (items.first) expect_operator(p, ",");
        if (at_tuple_end(p, stop)) break;
        chain_add(&items, condition ? parse_expression(p) : parse_or(p));
        if (!at_operator(p, ",")) break;
        tuple = true;
    }
    if (!tuple && items.first) return items.first;
    if (!tuple && !parentheses) unexpected(p, "an expression");
    node->list = items.first;
    return finish(p, node);
}

// ---- Statements.

static struct node *parse_body(struct parser *p, const char *const *ends);

static struct node *parse_target_name(struct parser *p)
{
    const struct token *token = p->token;
    if (token->type != TOKEN_NAME) unexpected(p, "a name");
    struct node *node = parse_name(p);
    if (node->kind != NODE_NAME) run_fail(p->run, "can't assign to '%.*s'", (int)token->n, token->data);
    return node;
}

static struct node *parse_target_item(struct parser *p, bool member)
{
    if (at_operator(p, "(")) {
        struct node *node = node_new(p, NODE_TUPLE);
        struct chain items = chain_empty();
        enter(p);
        next(p);
        while (!at_operator(p, ")")) {
            if (items.first) expect_operator(p, ",");
            if (at_operator(p, ")")) break;
            chain_add(&items, parse_target_item(p, member));
        }
        next(p);
        leave(p);
        node->list = items.first;
        return finish(p, node);
    }
    struct node *node = parse_target_name(p);
    if (!member || !skip_operator(p, ".")) return node;
    node->kind = NODE_TARGET_MEMBER;
    node->value = token_value(p, expect(p, TOKEN_NAME, "a name"));
    return node;
}

// Targets separated by commas; `stop`: a name that ends them.
static struct node *parse_target(struct parser *p, bool member, const char *stop)
{
    struct node *node = node_new(p, NODE_TUPLE);
    struct chain items = chain_empty();
    chain_add(&items, parse_target_item(p, member));
    if (!at_operator(p, ",")) return items.first;
    while (skip_operator(p, ",")) {
        if (at_operator(p, "=") || at_tuple_end(p, stop)) break;
        chain_add(&items, parse_target_item(p, member));
    }
    node->list = items.first;
    return finish(p, node);
}

static struct node *parse_set(struct parser *p)
{
    static const char *const ends[] = {"endset", NULL};
    struct node *node = node_new(p, NODE_SET);
    node->a = parse_target(p, true, NULL);
    if (skip_operator(p, "=")) {
        node->b = parse_tuple(p, true, false, NULL);
        return finish(p, node);
    }
    node->kind = NODE_SET_BLOCK;
    node->b = parse_filters(p, NULL);
    node->body = parse_body(p, ends);
    next(p);
    return finish(p, node);
}

static struct node *parse_for(struct parser *p)
{
    static const char *const ends[] = {"endfor", "else", NULL}, *const end[] = {"endfor", NULL};
    struct node *node = node_new(p, NODE_FOR);
    node->a = parse_target(p, false, "in");
    if (!skip_name(p, "in")) unexpected(p, "in");
    node->b = parse_tuple(p, false, false, "recursive");
    if (skip_name(p, "if")) node->c = parse_expression(p);
    node->op = skip_name(p, "recursive") ? 'r' : 0;
    p->loops++;
    node->body = parse_body(p, ends);
    p->loops--;
    if (at_name(p, "else")) {
        next(p);
        node->otherwise = parse_body(p, end);
    }
    next(p);
    return finish(p, node);
}

static struct node *parse_if(struct parser *p)
{
    static const char *const ends[] = {"elif", "else", "endif", NULL}, *const end[] = {"endif", NULL};
    struct node *node = node_new(p, NODE_IF);
    node->a = parse_tuple(p, false, false, NULL);
    node->body = parse_body(p, ends);
    if (at_name(p, "elif")) {
        enter(p);
        next(p);
        node->otherwise = parse_if(p); // up to endif
        leave(p);
        return finish(p, node);
    }
    if (skip_name(p, "else")) node->otherwise = parse_body(p, end);
    next(p);
    return finish(p, node);
}

static void parse_parameters(struct parser *p, struct node *macro)
{
    struct chain list = chain_empty();
    bool defaults = false;
    expect_operator(p, "(");
    while (!at_operator(p, ")")) {
        if (list.first) expect_operator(p, ",");
        struct node *parameter = parse_target_name(p);
        if (skip_operator(p, "="))
            parameter->b = parse_expression(p), defaults = true;
        else if (defaults)
            run_fail(p->run, "non-default argument follows default argument");
        chain_add(&list, finish(p, parameter));
    }
    next(p);
    macro->list = list.first;
}

static struct node *parse_macro_body(struct parser *p, struct node *macro, const char *const *ends)
{
    struct parser outer = *p;
    p->loops = 0;
    p->uses_varargs = p->uses_kwargs = false;
    macro->body = parse_body(p, ends);
    macro->uses_varargs = p->uses_varargs;
    macro->uses_kwargs = p->uses_kwargs;
    p->loops = outer.loops;
    p->uses_varargs = outer.uses_varargs;
    p->uses_kwargs = outer.uses_kwargs;
    next(p);
    return finish(p, macro);
}

static struct node *parse_macro(struct parser *p)
{
    static const char *const ends[] = {"endmacro", NULL};
    struct node *node = node_new(p, NODE_MACRO);
    node->value = token_value(p, p->token);
    node->symbol = parse_target_name(p)->symbol;
    parse_parameters(p, node);
    return parse_macro_body(p, node, ends);
}

static struct node *parse_call_block(struct parser *p)
{
    static const char *const ends[] = {"endcall", NULL};
    struct node *node = node_new(p, NODE_CALL_BLOCK), *body = node_new(p, NODE_MACRO);
    body->symbol = SYMBOL_CALLER;
    body->value = value_string(p->run, "caller");
    if (at_operator(p, "(")) parse_parameters(p, body);
    node->a = parse_expression(p);
    if (node->a->kind != NODE_CALL) run_fail(p->run, "expected call");
    node->b = parse_macro_body(p, body, ends);
    return finish(p, node);
}

static struct node *parse_filter_block(struct parser *p)
{
    static const char *const ends[] = {"endfilter", NULL};
    struct node *node = node_new(p, NODE_FILTER_BLOCK);
    node->a = parse_filters(p, parse_filter(p, NULL));
    node->body = parse_body(p, ends);
    next(p);
    return finish(p, node);
}

static struct node *parse_with(struct parser *p)
{
    static const char *const ends[] = {"endwith", NULL};
    struct node *node = node_new(p, NODE_WITH);
    struct chain list = chain_empty();
    while (p->token->type != TOKEN_BLOCK_END) {
        if (list.first) expect_operator(p, ",");
        struct node *set = node_new(p, NODE_SET);
        set->a = parse_target_item(p, false);
        expect_operator(p, "=");
        set->b = parse_expression(p);
        chain_add(&list, finish(p, set));
    }
    node->list = list.first;
    node->body = parse_body(p, ends);
    next(p);
    return finish(p, node);
}

static struct node *parse_print(struct parser *p)
{
    struct node *node = node_new(p, NODE_PRINT);
    struct chain list = chain_empty();
    while (p->token->type != TOKEN_BLOCK_END) {
        if (list.first) expect_operator(p, ",");
        chain_add(&list, parse_expression(p));
    }
    node->list = list.first;
    return finish(p, node);
}

static struct node *parse_scope(struct parser *p, const char *end)
{
    const char *const ends[] = {end, NULL};
    struct node *node = node_new(p, NODE_SCOPE);
    return parse_macro_body(p, node, ends);
}

static struct node *parse_block(struct parser *p)
{
    const struct token *name = expect(p, TOKEN_NAME, "a name");
    if (!skip_name(p, "scoped")) skip_name(p, "required");
    struct node *node = parse_scope(p, "endblock");
    if (p->token->type == TOKEN_NAME && p->token->n == name->n && !memcmp(p->token->data, name->data, name->n)) next(p);
    return node;
}

static struct node *parse_autoescape(struct parser *p)
{
    struct node *flag = parse_expression(p);
    if (flag->kind != NODE_CONSTANT || value_truth(p->run, flag->value))
        run_fail(p->run, "autoescape is not supported: only {%% autoescape false %%}");
    return parse_scope(p, "endautoescape");
}

static struct node *parse_loader(struct parser *p)
{
    struct node *node = node_new(p, NODE_LOADER);
    while (p->token->type != TOKEN_BLOCK_END && p->token->type != TOKEN_END)
        next(p);
    return node;
}

static struct node *parse_generation(struct parser *p)
{
    return parse_scope(p, "endgeneration");
}

static struct node *parse_break(struct parser *p)
{
    if (!p->loops) run_fail(p->run, "'break' outside loop");
    return node_new(p, NODE_BREAK);
}

static struct node *parse_continue(struct parser *p)
{
    if (!p->loops) run_fail(p->run, "'continue' outside loop");
    return node_new(p, NODE_CONTINUE);
}

static struct node *parse_statement(struct parser *p)
{
    static const struct {
        const char *tag;
        struct node *(*parse)(struct parser *p);
    } statements[] = {{"if", parse_if},
                      {"for", parse_for},
                      {"set", parse_set},
                      {"macro", parse_macro},
                      {"call", parse_call_block},
                      {"filter", parse_filter_block},
                      {"with", parse_with},
                      {"print", parse_print},
                      {"block", parse_block},
                      {"generation", parse_generation},
                      {"autoescape", parse_autoescape},
                      {"break", parse_break},
                      {"continue", parse_continue},
                      {"include", parse_loader},
                      {"import", parse_loader},
                      {"from", parse_loader},
                      {"extends", parse_loader}};
    if (p->token->type != TOKEN_NAME) unexpected(p, "a tag name");
    for (size_t i = 0; i < sizeof statements / sizeof *statements; i++) {
        if (!at_name(p, statements[i].tag)) continue;
        next(p);
        return statements[i].parse(p);
    }
    int n;
    const char *text = token_text(p, p->token, &n);
    run_fail(p->run, "Encountered unknown tag '%.*s'.", n, text);
}

static bool at_end_name(const struct parser *p, const char *const *ends)
{
    for (; ends && *ends; ends++)
        if (at_name(p, *ends)) return true;
    return false;
}

static struct node *parse_output(struct parser *p)
{
    struct node *node = node_new(p, NODE_PRINT);
    next(p);
    node->list = parse_tuple(p, true, false, NULL);
    if (p->token->type != TOKEN_PRINT_END) unexpected(p, "end of print statement");
    next(p);
    return finish(p, node);
}

static struct node *parse_data(struct parser *p)
{
    struct node *node = node_new(p, NODE_DATA);
    node->value = token_value(p, next(p));
    return node;
}

// Statements up to a block that begins with one of `ends`, whose name is then the current token; NULL: to the end.
static struct node *parse_statements(struct parser *p, const char *const *ends)
{
    struct chain list = chain_empty();
    for (;;) {
        if (p->token->type == TOKEN_DATA) {
            chain_add(&list, parse_data(p));
        } else if (p->token->type == TOKEN_PRINT_BEGIN) {
            chain_add(&list, parse_output(p));
        } else if (p->token->type == TOKEN_BLOCK_BEGIN) {
            next(p);
            if (at_end_name(p, ends)) return list.first;
            chain_add(&list, parse_statement(p));
            expect(p, TOKEN_BLOCK_END, "end of statement block");
        } else if (!ends) {
            return list.first;
        } else {
            run_fail(p->run, "Unexpected end of template: '%s' is missing", ends[0]);
        }
    }
}

static struct node *parse_body(struct parser *p, const char *const *ends)
{
    enter(p);
    skip_operator(p, ":");
    expect(p, TOKEN_BLOCK_END, "end of statement block");
    struct node *body = parse_statements(p, ends);
    leave(p);
    return body;
}

// ---- Unknown filters and tests. They are an error here unless an `if` around them may keep them from being reached.

static void check_functions(struct run *run, const struct node *list, bool conditional)
{
    for (; list; list = list->next) {
        bool named = list->kind == NODE_FILTER || list->kind == NODE_TEST;
        if (named && !list->function && !conditional) {
            run->line = list->line;
            run_fail(run, "No %s named '%.*s'.", list->kind == NODE_FILTER ? "filter" : "test",
                     (int)list->value.string->n, list->value.string->data);
        }
        bool soft = conditional || list->kind == NODE_IF || list->kind == NODE_CONDITION;
        bool frame = list->kind == NODE_FOR || list->kind == NODE_MACRO || list->kind == NODE_SET_BLOCK ||
                     list->kind == NODE_SCOPE || list->kind == NODE_WITH || list->kind == NODE_FILTER_BLOCK;
        check_functions(run, list->a, soft);
        check_functions(run, list->b, soft);
        check_functions(run, list->c, soft && !frame);
        check_functions(run, list->list, soft && !frame);
        check_functions(run, list->body, soft && !frame);
        check_functions(run, list->otherwise, soft && !frame);
    }
}

void template_parse(struct jinja_template *t, const struct token *tokens)
{
    static const char *const fixed[] = {
        [SYMBOL_CALLER] = "caller", [SYMBOL_VARARGS] = "varargs", [SYMBOL_KWARGS] = "kwargs", [SYMBOL_LOOP] = "loop"};
    struct parser p = {.run = &t->run, .template = t, .token = tokens};
    for (int i = 0; i < SYMBOL_FIXED; i++)
        symbol_of(&p, fixed[i], strlen(fixed[i]));
    t->run.line = tokens->line;
    t->body = parse_statements(&p, NULL);
    check_functions(&t->run, t->body, false);
}
