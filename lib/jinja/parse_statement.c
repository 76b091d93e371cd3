// SPDX-License-Identifier: Apache-2.0
// Parses statements: blocks in {% %}, text and {{ }}, and the whole template.
#include <string.h>

#include "lib/jinja/parser.h"

static struct node *parse_body(struct parser *p, const char *const *ends);

static struct node *parse_target_name(struct parser *p)
{
    const struct token *token = p->token;
    if (token->type != TOKEN_NAME) parser_unexpected(p, "a name");
    struct node *node = parse_name(p);
    if (node->kind != NODE_NAME) run_fail(p->run, "can't assign to '%.*s'", (int)token->n, token->data);
    return node;
}

static struct node *parse_target_item(struct parser *p, bool member)
{
    if (parser_at_operator(p, "(")) {
        struct node *node = node_new(p, NODE_TUPLE);
        struct chain items = chain_empty();
        parser_enter(p);
        parser_next(p);
        while (!parser_at_operator(p, ")")) {
            if (items.first) parser_expect_operator(p, ",");
            if (parser_at_operator(p, ")")) break;
            chain_add(&items, parse_target_item(p, member));
        }
        parser_next(p);
        parser_leave(p);
        node->list = items.first;
        return node_finish(p, node);
    }
    struct node *node = parse_target_name(p);
    if (!member || !parser_skip_operator(p, ".")) return node;
    node->kind = NODE_TARGET_MEMBER;
    node->value = token_value(p, parser_expect(p, TOKEN_NAME, "a name"));
    return node;
}

// Parses targets separated by commas. `stop` is a name that ends them.
static struct node *parse_target(struct parser *p, bool member, const char *stop)
{
    struct node *node = node_new(p, NODE_TUPLE);
    struct chain items = chain_empty();
    chain_add(&items, parse_target_item(p, member));
    if (!parser_at_operator(p, ",")) return items.first;
    while (parser_skip_operator(p, ",")) {
        if (parser_at_operator(p, "=") || parser_at_tuple_end(p, stop)) break;
        chain_add(&items, parse_target_item(p, member));
    }
    node->list = items.first;
    return node_finish(p, node);
}

static struct node *parse_set(struct parser *p)
{
    static const char *const ends[] = {"endset", NULL};
    struct node *node = node_new(p, NODE_SET);
    node->a = parse_target(p, true, NULL);
    if (parser_skip_operator(p, "=")) {
        node->b = parse_tuple(p, true, false, NULL);
        return node_finish(p, node);
    }
    node->kind = NODE_SET_BLOCK;
    node->b = parse_filters(p, NULL);
    node->body = parse_body(p, ends);
    parser_next(p);
    return node_finish(p, node);
}

static struct node *parse_for(struct parser *p)
{
    static const char *const ends[] = {"endfor", "else", NULL}, *const end[] = {"endfor", NULL};
    struct node *node = node_new(p, NODE_FOR);
    node->a = parse_target(p, false, "in");
    if (!parser_skip_name(p, "in")) parser_unexpected(p, "in");
    node->b = parse_tuple(p, false, false, "recursive");
    if (parser_skip_name(p, "if")) node->c = parse_expression(p);
    node->op = parser_skip_name(p, "recursive") ? 'r' : 0;
    p->loops++;
    node->body = parse_body(p, ends);
    p->loops--;
    if (parser_at_name(p, "else")) {
        parser_next(p);
        node->otherwise = parse_body(p, end);
    }
    parser_next(p);
    return node_finish(p, node);
}

static struct node *parse_if(struct parser *p)
{
    static const char *const ends[] = {"endif", "elif", "else", NULL}, *const end[] = {"endif", NULL};
    struct node *node = node_new(p, NODE_IF);
    node->a = parse_tuple(p, false, false, NULL);
    node->body = parse_body(p, ends);
    if (parser_at_name(p, "elif")) {
        parser_enter(p);
        parser_next(p);
        node->otherwise = parse_if(p); // parses up to endif
        parser_leave(p);
        return node_finish(p, node);
    }
    if (parser_skip_name(p, "else")) node->otherwise = parse_body(p, end);
    parser_next(p);
    return node_finish(p, node);
}

static void parse_parameters(struct parser *p, struct node *macro)
{
    struct chain list = chain_empty();
    bool defaults = false;
    parser_expect_operator(p, "(");
    while (!parser_at_operator(p, ")")) {
        if (list.first) parser_expect_operator(p, ",");
        struct node *parameter = parse_target_name(p);
        if (parser_skip_operator(p, "="))
            parameter->b = parse_expression(p), defaults = true;
        else if (defaults)
            run_fail(p->run, "non-default argument follows default argument");
        chain_add(&list, node_finish(p, parameter));
    }
    parser_next(p);
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
    parser_next(p);
    return node_finish(p, macro);
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
    if (parser_at_operator(p, "(")) parse_parameters(p, body);
    node->a = parse_expression(p);
    if (node->a->kind != NODE_CALL) run_fail(p->run, "expected call");
    node->b = parse_macro_body(p, body, ends);
    return node_finish(p, node);
}

static struct node *parse_filter_block(struct parser *p)
{
    static const char *const ends[] = {"endfilter", NULL};
    struct node *node = node_new(p, NODE_FILTER_BLOCK);
    node->a = parse_filters(p, parse_filter(p, NULL));
    node->body = parse_body(p, ends);
    parser_next(p);
    return node_finish(p, node);
}

static struct node *parse_with(struct parser *p)
{
    static const char *const ends[] = {"endwith", NULL};
    struct node *node = node_new(p, NODE_WITH);
    struct chain list = chain_empty();
    while (p->token->type != TOKEN_BLOCK_END) {
        if (list.first) parser_expect_operator(p, ",");
        struct node *set = node_new(p, NODE_SET);
        set->a = parse_target_item(p, false);
        parser_expect_operator(p, "=");
        set->b = parse_expression(p);
        chain_add(&list, node_finish(p, set));
    }
    node->list = list.first;
    node->body = parse_body(p, ends);
    parser_next(p);
    return node_finish(p, node);
}

static struct node *parse_print(struct parser *p)
{
    struct node *node = node_new(p, NODE_PRINT);
    struct chain list = chain_empty();
    while (p->token->type != TOKEN_BLOCK_END) {
        if (list.first) parser_expect_operator(p, ",");
        chain_add(&list, parse_expression(p));
    }
    node->list = list.first;
    return node_finish(p, node);
}

static struct node *parse_scope(struct parser *p, const char *end)
{
    const char *const ends[] = {end, NULL};
    struct node *node = node_new(p, NODE_SCOPE);
    return parse_macro_body(p, node, ends);
}

static struct node *parse_block(struct parser *p)
{
    const struct token *name = parser_expect(p, TOKEN_NAME, "a name");
    if (!parser_skip_name(p, "scoped")) parser_skip_name(p, "required");
    struct node *node = parse_scope(p, "endblock");
    if (p->token->type == TOKEN_NAME && p->token->n == name->n && !memcmp(p->token->data, name->data, name->n))
        parser_next(p);
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
        parser_next(p);
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
    if (p->token->type != TOKEN_NAME) parser_unexpected(p, "a tag name");
    for (size_t i = 0; i < sizeof statements / sizeof *statements; i++) {
        if (!parser_at_name(p, statements[i].tag)) continue;
        parser_next(p);
        return statements[i].parse(p);
    }
    int n;
    const char *text = parser_token_text(p, p->token, &n);
    run_fail(p->run, "Encountered unknown tag '%.*s'.", n, text);
}

static bool at_end_name(const struct parser *p, const char *const *ends)
{
    for (; ends && *ends; ends++)
        if (parser_at_name(p, *ends)) return true;
    return false;
}

static struct node *parse_output(struct parser *p)
{
    struct node *node = node_new(p, NODE_PRINT);
    parser_next(p);
    node->list = parse_tuple(p, true, false, NULL);
    if (p->token->type != TOKEN_PRINT_END) parser_unexpected(p, "end of print statement");
    parser_next(p);
    return node_finish(p, node);
}

static struct node *parse_data(struct parser *p)
{
    struct node *node = node_new(p, NODE_DATA);
    node->value = token_value(p, parser_next(p));
    return node;
}

// Parses up to a block tag named in `ends` and stops at that name; NULL: parses to the end of the template.
static struct node *parse_statements(struct parser *p, const char *const *ends)
{
    struct chain list = chain_empty();
    for (;;) {
        if (p->token->type == TOKEN_DATA) {
            chain_add(&list, parse_data(p));
        } else if (p->token->type == TOKEN_PRINT_BEGIN) {
            chain_add(&list, parse_output(p));
        } else if (p->token->type == TOKEN_BLOCK_BEGIN) {
            parser_next(p);
            if (at_end_name(p, ends)) return list.first;
            chain_add(&list, parse_statement(p));
            parser_expect(p, TOKEN_BLOCK_END, "end of statement block");
        } else if (!ends) {
            return list.first;
        } else {
            run_fail(p->run, "Unexpected end of template: '%s' is missing", ends[0]);
        }
    }
}

static struct node *parse_body(struct parser *p, const char *const *ends)
{
    parser_enter(p);
    parser_skip_operator(p, ":");
    parser_expect(p, TOKEN_BLOCK_END, "end of statement block");
    struct node *body = parse_statements(p, ends);
    parser_leave(p);
    return body;
}

// ---- Unknown filters and tests. They are an error here, unless they are in an `if`, which may keep them from being
// reached. This `if` must be in the same body: an `if` around a loop, a macro or another block with its own variables
// does not excuse what the body contains.

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
        parser_symbol(&p, fixed[i], strlen(fixed[i]));
    t->run.line = tokens->line;
    t->body = parse_statements(&p, NULL);
    check_functions(&t->run, t->body, false);
}
