// SPDX-License-Identifier: Apache-2.0
// Parses expressions with Jinja's precedence: condition < or < and < not < comparison < + - < ~ < * / // % < ** < sign
// < postfix and filters.
#include <string.h>

#include "lib/jinja/parser.h"

static struct node *parse_unary(struct parser *p, bool filters);

static struct node *constant(struct parser *p, struct value v)
{
    struct node *node = node_new(p, NODE_CONSTANT);
    node->value = v;
    return node;
}

struct node *parse_name(struct parser *p)
{
    const struct token *token = p->token;
    struct node *node = NULL;
    if (parser_at_name(p, "true") || parser_at_name(p, "True"))
        node = constant(p, value_bool(true));
    else if (parser_at_name(p, "false") || parser_at_name(p, "False"))
        node = constant(p, value_bool(false));
    else if (parser_at_name(p, "none") || parser_at_name(p, "None"))
        node = constant(p, value_none);
    else {
        node = node_new(p, NODE_NAME);
        node->symbol = parser_symbol(p, token->data, token->n);
        p->uses_varargs |= node->symbol == SYMBOL_VARARGS;
        p->uses_kwargs |= node->symbol == SYMBOL_KWARGS;
    }
    parser_next(p);
    return node;
}

static struct node *parse_strings(struct parser *p)
{
    struct node *node = constant(p, token_value(p, p->token));
    parser_next(p);
    while (p->token->type == TOKEN_STRING)
        node->value = string_concat(p->run, node->value, token_value(p, parser_next(p)));
    return node;
}

static struct node *parse_list(struct parser *p)
{
    struct node *node = node_new(p, NODE_LIST);
    struct chain items = chain_empty();
    parser_next(p);
    while (!parser_at_operator(p, "]")) {
        if (items.first) parser_expect_operator(p, ",");
        if (parser_at_operator(p, "]")) break;
        chain_add(&items, parse_expression(p));
    }
    parser_next(p);
    node->list = items.first;
    return node_finish(p, node);
}

static struct node *parse_dict(struct parser *p)
{
    struct node *node = node_new(p, NODE_DICT);
    struct chain pairs = chain_empty();
    parser_next(p);
    while (!parser_at_operator(p, "}")) {
        if (pairs.first) parser_expect_operator(p, ",");
        if (parser_at_operator(p, "}")) break;
        struct node *key = parse_expression(p);
        parser_expect_operator(p, ":");
        chain_add(&pairs, node_of(p, NODE_PAIR, key, parse_expression(p)));
    }
    parser_next(p);
    node->list = pairs.first;
    return node_finish(p, node);
}

static struct node *parse_primary(struct parser *p)
{
    switch (p->token->type) {
    case TOKEN_NAME: return parse_name(p);
    case TOKEN_STRING: return parse_strings(p);
    case TOKEN_INTEGER:
    case TOKEN_FLOAT: {
        struct node *node = constant(p, p->token->number);
        parser_next(p);
        return node;
    }
    default: break;
    }
    if (parser_at_operator(p, "[")) return parse_list(p);
    if (parser_at_operator(p, "{")) return parse_dict(p);
    if (!parser_at_operator(p, "(")) parser_unexpected(p, "an expression");
    parser_next(p);
    struct node *node = parse_tuple(p, true, true, NULL);
    parser_expect_operator(p, ")");
    return node;
}

static bool at_subscript_end(const struct parser *p)
{
    return parser_at_operator(p, "]") || parser_at_operator(p, ",");
}

static struct node *parse_subscript(struct parser *p)
{
    struct node *part[3] = {0};
    if (!parser_at_operator(p, ":")) {
        part[0] = parse_expression(p);
        if (!parser_at_operator(p, ":")) return part[0];
    }
    struct node *slice = node_new(p, NODE_SLICE);
    for (int i = 1; i < 3 && parser_skip_operator(p, ":"); i++)
        if (!parser_at_operator(p, ":") && !at_subscript_end(p)) part[i] = parse_expression(p);
    slice->a = part[0];
    slice->b = part[1];
    slice->c = part[2];
    return node_finish(p, slice);
}

static struct node *parse_member(struct parser *p, struct node *object)
{
    struct node *node = node_new(p, NODE_ATTRIBUTE);
    parser_next(p); // skips the dot
    node->a = object;
    if (p->token->type == TOKEN_NAME) {
        node->value = token_value(p, p->token);
        node->method = method_find(p->token->data, p->token->n);
    } else if (p->token->type == TOKEN_INTEGER) {
        node->kind = NODE_ITEM;
        node->b = constant(p, p->token->number);
    } else {
        parser_unexpected(p, "name or number");
    }
    parser_next(p);
    return node_finish(p, node);
}

static struct node *parse_item(struct parser *p, struct node *object)
{
    struct node *node = node_new(p, NODE_ITEM), *tuple = node_new(p, NODE_TUPLE);
    struct chain keys = chain_empty();
    parser_next(p);
    while (!parser_at_operator(p, "]")) {
        if (keys.first) parser_expect_operator(p, ",");
        chain_add(&keys, parse_subscript(p));
    }
    parser_next(p);
    node->a = object;
    tuple->list = keys.first;
    node->b = keys.first && !keys.first->next ? keys.first : node_finish(p, tuple);
    return node_finish(p, node);
}

// Parses one argument of a call.
static struct node *parse_argument(struct parser *p)
{
    enum node_kind kind = NODE_POSITIONAL;
    struct value name = value_missing;
    if (parser_skip_operator(p, "*")) {
        kind = NODE_SPREAD;
    } else if (parser_skip_operator(p, "**")) {
        kind = NODE_SPREAD_NAMED;
    } else if (p->token->type == TOKEN_NAME && token_is(p->token + 1, TOKEN_OPERATOR, "=")) {
        kind = NODE_KEYWORD;
        name = token_value(p, parser_next(p));
        parser_next(p);
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
    parser_next(p); // (
    while (!parser_at_operator(p, ")")) {
        if (list.first) parser_expect_operator(p, ",");
        if (parser_at_operator(p, ")")) break;
        chain_add(&list, parse_argument(p));
    }
    parser_next(p);
    check_argument_order(p, list.first);
    return list.first;
}

static struct node *parse_call(struct parser *p, struct node *callee)
{
    struct node *node = node_new(p, NODE_CALL);
    node->a = callee;
    node->list = parse_arguments(p);
    return node_finish(p, node);
}

static struct node *parse_postfix(struct parser *p, struct node *node)
{
    for (;;) {
        if (parser_at_operator(p, "."))
            node = parse_member(p, node);
        else if (parser_at_operator(p, "["))
            node = parse_item(p, node);
        else if (parser_at_operator(p, "("))
            node = parse_call(p, node);
        else
            return node;
    }
}

// Reads the name of a filter or test, which may have dots. If there is no such function, node->function becomes NULL,
// and the use of the node is an error.
static void read_function_name(struct parser *p, struct node *node)
{
    const struct token *first = parser_expect(p, TOKEN_NAME, "a name"), *last = first;
    while (parser_skip_operator(p, "."))
        last = parser_expect(p, TOKEN_NAME, "a name");
    node->value = value_bytes(p->run, first->data, (size_t)(last->data + last->n - first->data));
    const struct string *name = node->value.string;
    node->function = node->kind == NODE_FILTER ? filter_find(name->data, name->n) : test_find(name->data, name->n);
}

struct node *parse_filter(struct parser *p, struct node *operand)
{
    struct node *node = node_new(p, NODE_FILTER);
    read_function_name(p, node);
    node->a = operand;
    if (parser_at_operator(p, "(")) node->list = parse_arguments(p);
    return node_finish(p, node);
}

struct node *parse_filters(struct parser *p, struct node *operand)
{
    while (parser_skip_operator(p, "|"))
        operand = parse_filter(p, operand);
    return operand;
}

static bool at_test_argument(const struct parser *p)
{
    if (p->token->type == TOKEN_NAME)
        return !parser_at_name(p, "else") && !parser_at_name(p, "or") && !parser_at_name(p, "and");
    return p->token->type == TOKEN_STRING || p->token->type == TOKEN_INTEGER || p->token->type == TOKEN_FLOAT ||
           parser_at_operator(p, "[") || parser_at_operator(p, "{");
}

static struct node *parse_test(struct parser *p, struct node *operand)
{
    struct node *node = node_new(p, NODE_TEST);
    parser_next(p); // is
    bool negated = parser_skip_name(p, "not");
    read_function_name(p, node);
    node->a = operand;
    if (parser_at_operator(p, "(")) {
        node->list = parse_arguments(p);
    } else if (at_test_argument(p)) {
        if (parser_at_name(p, "is")) run_fail(p->run, "You cannot chain multiple tests with is");
        node->list = node_of(p, NODE_POSITIONAL, parse_postfix(p, parse_primary(p)), NULL);
    }
    node_finish(p, node);
    return negated ? node_of(p, NODE_NOT, node, NULL) : node;
}

static struct node *parse_suffixes(struct parser *p, struct node *node)
{
    for (;;) {
        if (parser_at_operator(p, "|"))
            node = parse_filters(p, node);
        else if (parser_at_name(p, "is"))
            node = parse_test(p, node);
        else if (parser_at_operator(p, "("))
            node = parse_call(p, node);
        else
            return node;
    }
}

static struct node *parse_unary(struct parser *p, bool filters)
{
    struct node *node;
    parser_enter(p);
    if (parser_skip_operator(p, "-"))
        node = node_of(p, NODE_NEGATIVE, parse_unary(p, false), NULL);
    else if (parser_skip_operator(p, "+"))
        node = node_of(p, NODE_POSITIVE, parse_unary(p, false), NULL);
    else
        node = parse_primary(p);
    node = parse_postfix(p, node);
    if (filters) node = parse_suffixes(p, node);
    parser_leave(p);
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
    while (parser_skip_operator(p, "**"))
        left = binary(p, 'p', left, parse_unary(p, true));
    return left;
}

static struct node *parse_product(struct parser *p)
{
    struct node *left = parse_power(p);
    for (;;) {
        char op = parser_at_operator(p, "*")    ? '*'
                  : parser_at_operator(p, "/")  ? '/'
                  : parser_at_operator(p, "//") ? 'd'
                                                : '%';
        if (op == '%' && !parser_at_operator(p, "%")) return left;
        parser_next(p);
        left = binary(p, op, left, parse_power(p));
    }
}

static struct node *parse_concat(struct parser *p)
{
    struct node *first = parse_product(p);
    if (!parser_at_operator(p, "~")) return first;
    struct node *node = node_new(p, NODE_CONCAT);
    struct chain parts = chain_empty();
    chain_add(&parts, first);
    while (parser_skip_operator(p, "~"))
        chain_add(&parts, parse_product(p));
    node->list = parts.first;
    return node_finish(p, node);
}

static struct node *parse_sum(struct parser *p)
{
    struct node *left = parse_concat(p);
    while (parser_at_operator(p, "+") || parser_at_operator(p, "-")) {
        char op = parser_next(p)->data[0];
        left = binary(p, op, left, parse_concat(p));
    }
    return left;
}

// Skips a comparison at this token and returns it, or returns 0 if there is none.
static char read_comparison(struct parser *p)
{
    static const struct {
        const char *text;
        char op;
    } operators[] = {{"==", '='}, {"!=", '!'}, {"<", '<'}, {"<=", 'l'}, {">", '>'}, {">=", 'g'}};
    for (size_t i = 0; i < sizeof operators / sizeof *operators; i++)
        if (parser_skip_operator(p, operators[i].text)) return operators[i].op;
    if (parser_skip_name(p, "in")) return 'i';
    if (!parser_at_name(p, "not") || !token_is(p->token + 1, TOKEN_NAME, "in")) return 0;
    parser_next(p);
    parser_next(p);
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
    return node_finish(p, node);
}

static struct node *parse_not(struct parser *p)
{
    if (!parser_skip_name(p, "not")) return parse_comparison(p);
    parser_enter(p);
    struct node *node = node_of(p, NODE_NOT, parse_not(p), NULL);
    parser_leave(p);
    return node;
}

static struct node *parse_and(struct parser *p)
{
    struct node *left = parse_not(p);
    while (parser_skip_name(p, "and"))
        left = node_of(p, NODE_AND, left, parse_not(p));
    return left;
}

static struct node *parse_or(struct parser *p)
{
    struct node *left = parse_and(p);
    while (parser_skip_name(p, "or"))
        left = node_of(p, NODE_OR, left, parse_and(p));
    return left;
}

struct node *parse_expression(struct parser *p)
{
    parser_enter(p);
    struct node *value = parse_or(p);
    while (parser_skip_name(p, "if")) {
        struct node *node = node_new(p, NODE_CONDITION);
        node->a = parse_or(p);
        node->b = value;
        if (parser_skip_name(p, "else")) node->c = parse_expression(p);
        value = node_finish(p, node);
    }
    parser_leave(p);
    return value;
}

bool parser_at_tuple_end(const struct parser *p, const char *stop)
{
    return p->token->type == TOKEN_PRINT_END || p->token->type == TOKEN_BLOCK_END || parser_at_operator(p, ")") ||
           (stop && parser_at_name(p, stop));
}

struct node *parse_tuple(struct parser *p, bool condition, bool parentheses, const char *stop)
{
    struct node *node = node_new(p, NODE_TUPLE);
    struct chain items = chain_empty();
    bool tuple = false;
    for (;;) {
        if (items.first) parser_expect_operator(p, ",");
        if (parser_at_tuple_end(p, stop)) break;
        chain_add(&items, condition ? parse_expression(p) : parse_or(p));
        if (!parser_at_operator(p, ",")) break;
        tuple = true;
    }
    if (!tuple && items.first) return items.first;
    if (!tuple && !parentheses) parser_unexpected(p, "an expression");
    node->list = items.first;
    return node_finish(p, node);
}
