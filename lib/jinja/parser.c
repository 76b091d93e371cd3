// SPDX-License-Identifier: Apache-2.0
// Parses tokens to a syntax tree by recursive descent.
#include "lib/jinja/parser.h"

#include <string.h>

enum { SOURCE_DEPTH = 250 }; // depth of the deepest tree

struct chain chain_empty(void)
{
    return (struct chain){0};
}

void chain_add(struct chain *chain, struct node *node)
{
    if (!chain->end) chain->end = &chain->first;
    *chain->end = node;
    chain->end = &node->next;
}

// ---- Tokens.

bool token_is(const struct token *token, enum token_type type, const char *text)
{
    return token->type == type && token->n == strlen(text) && !memcmp(token->data, text, token->n);
}

bool parser_at_operator(const struct parser *p, const char *text)
{
    return token_is(p->token, TOKEN_OPERATOR, text);
}

bool parser_at_name(const struct parser *p, const char *text)
{
    return token_is(p->token, TOKEN_NAME, text);
}

const char *parser_token_text(const struct parser *p, const struct token *token, int *n_p)
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

_Noreturn void parser_unexpected(struct parser *p, const char *due)
{
    int n;
    const char *text = parser_token_text(p, p->token, &n);
    p->run->line = p->token->line;
    run_fail(p->run, "expected %s, got '%.*s'", due, n, text);
}

const struct token *parser_next(struct parser *p)
{
    const struct token *token = p->token;
    if (token->type != TOKEN_END) p->token++;
    p->run->line = p->token->line;
    return token;
}

bool parser_skip_operator(struct parser *p, const char *text)
{
    bool here = parser_at_operator(p, text);
    if (here) parser_next(p);
    return here;
}

bool parser_skip_name(struct parser *p, const char *text)
{
    bool here = parser_at_name(p, text);
    if (here) parser_next(p);
    return here;
}

void parser_expect_operator(struct parser *p, const char *text)
{
    if (!parser_skip_operator(p, text)) parser_unexpected(p, text);
}

const struct token *parser_expect(struct parser *p, enum token_type type, const char *due)
{
    if (p->token->type != type) parser_unexpected(p, due);
    return parser_next(p);
}

// ---- Nodes.

static int depth_of(const struct node *list)
{
    int depth = 0;
    for (; list; list = list->next)
        if (list->depth > depth) depth = list->depth;
    return depth;
}

struct node *node_finish(struct parser *p, struct node *node)
{
    const struct node *children[] = {node->a, node->b, node->c, node->list, node->body, node->otherwise};
    for (size_t i = 0; i < sizeof children / sizeof *children; i++) {
        int depth = depth_of(children[i]) + 1; // operands are not in a list yet, so their `next` is NULL
        if (depth > node->depth) node->depth = depth;
    }
    if (node->depth > SOURCE_DEPTH) run_fail(p->run, "the template is nested more than %d levels deep", SOURCE_DEPTH);
    return node;
}

struct node *node_new(struct parser *p, enum node_kind kind)
{
    struct node *node = heap_alloc(p->run, sizeof *node);
    node->kind = (uint8_t)kind;
    node->line = p->token->line;
    return node;
}

struct node *node_of(struct parser *p, enum node_kind kind, struct node *a, struct node *b)
{
    struct node *node = node_new(p, kind);
    if (a) node->line = a->line;
    node->a = a;
    node->b = b;
    return node_finish(p, node);
}

struct value token_value(struct parser *p, const struct token *token)
{
    return value_bytes(p->run, token->data, token->n);
}

int parser_symbol(struct parser *p, const char *data, size_t n)
{
    struct jinja_template *t = p->template;
    run_spend(p->run, t->n_symbols / 16);
    for (size_t i = 0; i < t->n_symbols; i++)
        if (t->symbols[i].n == n && !memcmp(t->symbols[i].data, data, n)) return (int)i;
    if (t->n_symbols == 10000) run_fail(p->run, "more than 10000 different names");
    HEAP_GROW(p->run, t->symbols, t->n_symbols, t->symbols_capacity);
    t->symbols[t->n_symbols] = (struct string){.data = data, .n = n};
    return (int)t->n_symbols++;
}

void parser_enter(struct parser *p)
{
    if (++p->run->depth > SOURCE_DEPTH)
        run_fail(p->run, "the template is nested more than %d levels deep", SOURCE_DEPTH);
}

void parser_leave(struct parser *p)
{
    p->run->depth--;
}
