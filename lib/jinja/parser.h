// SPDX-License-Identifier: Apache-2.0
// Declarations shared by the files of the parser. Private to jinja/.
//
//   parser.c            tokens and nodes
//   parse_expression.c  expressions
//   parse_statement.c   blocks in {% %}, text and {{ }}, the template; unknown filters and tests
#pragma once

#include "lib/jinja/syntax.h"

struct parser {
    struct run *run;
    struct jinja_template *template;
    const struct token *token;
    int loops;                      // number of loops around this statement within its macro
    bool uses_varargs, uses_kwargs; // this macro uses them
};

// A list of nodes under construction.
struct chain {
    struct node *first, **end;
};

struct chain chain_empty(void);
void chain_add(struct chain *chain, struct node *node);

// ---- Tokens.

bool token_is(const struct token *token, enum token_type type, const char *text);
bool parser_at_operator(const struct parser *p, const char *text);
bool parser_at_name(const struct parser *p, const char *text);
const struct token *parser_next(struct parser *p);             // skips and returns the token
bool parser_skip_operator(struct parser *p, const char *text); // returns false if the token is another one
bool parser_skip_name(struct parser *p, const char *text);
void parser_expect_operator(struct parser *p, const char *text);
const struct token *parser_expect(struct parser *p, enum token_type type, const char *due);
_Noreturn void parser_unexpected(struct parser *p, const char *due);
const char *parser_token_text(const struct parser *p, const struct token *token, int *n_p); // for messages

// Enter and leave a level of recursion. Nesting in the source counts, even where the tree is flat.
void parser_enter(struct parser *p);
void parser_leave(struct parser *p);

// ---- Nodes.

struct node *node_new(struct parser *p, enum node_kind kind);
struct node *node_of(struct parser *p, enum node_kind kind, struct node *a, struct node *b);
struct node *node_finish(struct parser *p, struct node *node); // computes the depth of a complete node
struct value token_value(struct parser *p, const struct token *token);
int parser_symbol(struct parser *p, const char *data, size_t n);

// ---- Expressions (parse_expression.c).

struct node *parse_expression(struct parser *p);
// Parses expressions separated by commas into a tuple. A single expression without a comma is returned as it is. With
// `condition`, each expression may have an `if`. With `parentheses`, there may be no expression at all. `stop` is a
// name that ends the list, or NULL.
struct node *parse_tuple(struct parser *p, bool condition, bool parentheses, const char *stop);
bool parser_at_tuple_end(const struct parser *p, const char *stop);
struct node *parse_name(struct parser *p);
struct node *parse_filter(struct parser *p, struct node *operand);
struct node *parse_filters(struct parser *p, struct node *operand);
