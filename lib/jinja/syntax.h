// SPDX-License-Identifier: Apache-2.0
// Tokens and syntax tree of a template. Private to jinja/.
#pragma once

#include "lib/jinja/value.h"

enum token_type {
    TOKEN_END, // end of the source
    TOKEN_DATA,
    TOKEN_PRINT_BEGIN,
    TOKEN_PRINT_END,
    TOKEN_BLOCK_BEGIN,
    TOKEN_BLOCK_END,
    TOKEN_NAME,
    TOKEN_STRING,
    TOKEN_INTEGER,
    TOKEN_FLOAT,
    TOKEN_OPERATOR
};

struct token {
    enum token_type type;
    int line;
    const char *data; // [n] of the source; STRING: unescaped
    size_t n;
    struct value number; // INTEGER, FLOAT
};

// Reads all tokens of a source. The last one is TOKEN_END.
struct token *tokens_read(struct run *run, const char *source, size_t n);

enum node_kind {
    // expressions
    NODE_CONSTANT, // value
    NODE_NAME,     // symbol
    NODE_LIST,     // list
    NODE_TUPLE,    // list
    NODE_DICT,     // list: pairs, a: key, b: value
    NODE_PAIR,
    NODE_ATTRIBUTE,    // a.value
    NODE_ITEM,         // a[b]
    NODE_SLICE,        // a:b:c, each may be NULL
    NODE_CALL,         // a(list)
    NODE_FILTER,       // a | function(list); a NULL: the body of a block
    NODE_TEST,         // a is function(list)
    NODE_POSITIONAL,   // arguments: a
    NODE_KEYWORD,      // value = a
    NODE_SPREAD,       // *a
    NODE_SPREAD_NAMED, // **a
    NODE_NOT,
    NODE_NEGATIVE,
    NODE_POSITIVE,
    NODE_AND,
    NODE_OR,
    NODE_CONDITION, // b if a else c (c may be NULL)
    NODE_COMPARE,   // a, list: NODE_OPERAND
    NODE_OPERAND,   // op, a
    NODE_CONCAT,    // list
    NODE_BINARY,    // op
    // statements; `body` is a list
    NODE_DATA,          // value
    NODE_PRINT,         // list
    NODE_IF,            // a, body, otherwise
    NODE_FOR,           // target a, in b, if c, body, otherwise; symbol: "loop"; op 'r': recursive
    NODE_SET,           // target a = b
    NODE_SET_BLOCK,     // target a, filters b, body
    NODE_TARGET_MEMBER, // symbol.value: member of a namespace
    NODE_MACRO,         // symbol, list: parameters (NODE_NAME, b: default), body
    NODE_CALL_BLOCK,    // call a, macro b
    NODE_FILTER_BLOCK,  // filters a, body
    NODE_WITH,          // list: NODE_SET, body
    NODE_SCOPE,         // body
    NODE_BREAK,
    NODE_CONTINUE,
    NODE_LOADER // include, import, extends: raise an error
};

struct node {
    uint8_t kind;
    char op;                        // BINARY: + - * / d (//) % p (**); OPERAND: < l (<=) > g (>=) = ! i (in) n (not in)
    bool uses_varargs, uses_kwargs; // MACRO
    int line, symbol, depth;
    struct node *next; // next node of the same list
    struct node *a, *b, *c, *list, *body, *otherwise;
    struct value value;
    const struct function *function; // FILTER, TEST; NULL if there is none of this name
    const struct method_row *method; // ATTRIBUTE: the first method of this name
};

// Implicit parameters of a macro, which exist if its body uses them.
enum { SYMBOL_CALLER, SYMBOL_VARARGS, SYMBOL_KWARGS, SYMBOL_LOOP, SYMBOL_FIXED };

struct jinja_template {
    struct run run; // the tree is in its heap
    char *source;
    struct node *body;
    struct string *symbols; // names of variables
    size_t n_symbols, symbols_capacity;
};

void template_parse(struct jinja_template *t, const struct token *tokens);
