// SPDX-License-Identifier: Apache-2.0
// See output_parser.h. A state machine over the text that is not emitted yet. A step either uses some of this text or
// waits for more. The text of a call is kept until the call is certain, because it may turn out to be content.
#include "lib/text/output_parser.h"

#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "lib/text/call_reader.h"

enum state {
    START,     // before the first part, or after the reasoning
    REASONING, // in the reasoning
    CONTENT,
    CALL_LEAD, // after a marker or separator, before a call
    CALL,      // in a call
    CALL_TAIL, // after a call
};

struct output_parser {
    struct output_syntax syntax;
    json_t *tools; // object whose keys are the names of the tools, or NULL; a reference
    enum state state;
    size_t before;     // bytes of the answer before `text`
    struct bytes text; // text that is not emitted yet
    size_t from;       // position in `text`: the text before it has been used
    // Position up to which the text is read, at least `from`. Between `from` and `read` are only blanks, except in a
    // call.
    size_t read;
    struct call_reader call;
    size_t sent_arguments; // bytes of the arguments of `call` that have been emitted
    bool announced;        // OUTPUT_CALL of `call` has been emitted
    bool bare;             // Mistral's name[ARGS]{...}: no object around name and arguments
    bool marked;           // a marker precedes the call
    bool listed;           // in a list of calls
    bool reasoned;         // no further reasoning can follow
    bool drop_blank;       // the next blanks are dropped
    bool worded;           // text of the current section of content has been emitted
    bool called;           // a call has begun
    bool final, cut;       // the answer has ended; a limit or a stop string ended it
    enum output_cut ended; // where the answer ended
    output_part_fn *part;
    void *user;
};

// --- the forms

static const struct form {
    const char *begin, *end; // markers of a call, or NULL
} forms[] = {
    [OUTPUT_CALLS_NONE] = {NULL, NULL},
    [OUTPUT_CALLS_HERMES] = {"<tool_call>", "</tool_call>"},
    [OUTPUT_CALLS_LLAMA3] = {"<|python_tag|>", NULL},
    [OUTPUT_CALLS_MISTRAL] = {"[TOOL_CALLS]", NULL},
};

enum { CALL_HEAD_MAX = 1024 }; // longest head of a bare call, which is read again with each piece

static const char mistral_id[] = "[CALL_ID]", mistral_arguments[] = "[ARGS]";

struct output_syntax output_syntax_detect(const char *chat_template)
{
    struct output_syntax syntax = {0};
    bool xml = strstr(chat_template, "<arg_key>") || strstr(chat_template, "<function=");
    if (strstr(chat_template, "[TOOL_CALLS]")) {
        syntax.calls = OUTPUT_CALLS_MISTRAL;
    } else if (strstr(chat_template, "<tool_call>") && !xml) {
        syntax.calls = OUTPUT_CALLS_HERMES;
    } else if (strstr(chat_template, "\"parameters\": ") && strstr(chat_template, "<|eot_id|>")) {
        syntax.calls = OUTPUT_CALLS_LLAMA3;
    }
    if (strstr(chat_template, "</think>")) {
        syntax.reasoning_begin = "<think>";
        syntax.reasoning_end = "</think>";
    } else if (strstr(chat_template, "[/THINK]")) {
        syntax.reasoning_begin = "[THINK]";
        syntax.reasoning_end = "[/THINK]";
    }
    return syntax;
}

void output_syntax_markers(const struct output_syntax *syntax, const char *markers[OUTPUT_MARKERS_MAX])
{
    int n = 0;
    const struct form *form = &forms[syntax->calls];
    if (syntax->reasoning_begin) markers[n++] = syntax->reasoning_begin;
    if (syntax->reasoning_end) markers[n++] = syntax->reasoning_end;
    if (form->begin) markers[n++] = form->begin;
    if (form->end) markers[n++] = form->end;
    if (syntax->calls == OUTPUT_CALLS_MISTRAL) {
        markers[n++] = mistral_id;
        markers[n++] = mistral_arguments;
    }
    markers[n] = NULL;
}

// --- text

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

static char at(const struct output_parser *p, size_t i)
{
    return p->text.data[i];
}

static size_t skip_blank(const struct output_parser *p, size_t i)
{
    while (i < p->text.n && is_blank(at(p, i)))
        i++;
    return i;
}

enum match { MATCH_NO, MATCH_MAYBE, MATCH_YES }; // MAYBE: the remaining text is the start of the marker

// Compares the text with a marker, as if more text could follow.
static enum match match_start(const struct output_parser *p, size_t i, const char *marker)
{
    size_t left = p->text.n - i, n = strlen(marker), common = left < n ? left : n;
    if (memcmp(p->text.data + i, marker, common) != 0) return MATCH_NO;
    return common == n ? MATCH_YES : MATCH_MAYBE;
}

static enum match match_at(const struct output_parser *p, size_t i, const char *marker)
{
    enum match match = match_start(p, i, marker);
    return match == MATCH_MAYBE && p->final ? MATCH_NO : match;
}

// Returns the first position from `read` on where the marker begins or may begin, or else the end of the text.
static size_t find(const struct output_parser *p, const char *marker, enum match *match_p)
{
    size_t i = p->read;
    for (*match_p = MATCH_NO; i < p->text.n; i++) {
        const char *next = memchr(p->text.data + i, marker[0], p->text.n - i);
        i = next ? (size_t)(next - p->text.data) : p->text.n;
        if (!next || (*match_p = match_at(p, i, marker)) != MATCH_NO) break;
    }
    return i;
}

static void use(struct output_parser *p, size_t to)
{
    p->from = to;
    if (p->read < to) p->read = to;
}

// Emits the text before `to`.
static void give(struct output_parser *p, enum output_kind kind, size_t to)
{
    if (to > p->from) p->part(p->user, kind, p->text.data + p->from, to - p->from);
    use(p, to);
}

// --- steps; each returns false to wait for more text

static bool go(struct output_parser *p, enum state state)
{
    p->state = state;
    return true;
}

// Drops blanks at the start of a section.
static void drop_blanks(struct output_parser *p)
{
    if (p->drop_blank) use(p, skip_blank(p, p->from));
    if (p->from < p->text.n) p->drop_blank = false;
}

// Emits reasoning up to its end. Blanks are emitted once it is certain that the end does not follow.
static bool reasoning_step(struct output_parser *p)
{
    enum match match;
    drop_blanks(p);
    size_t stop = find(p, p->syntax.reasoning_end, &match), to = stop;
    bool hold = !p->final || match == MATCH_YES;
    while (hold && to > p->read && is_blank(at(p, to - 1)))
        to--;
    if (!hold || to > p->read) give(p, OUTPUT_REASONING, to);
    p->read = stop;
    if (match != MATCH_YES) return false;
    use(p, stop + strlen(p->syntax.reasoning_end));
    p->reasoned = p->drop_blank = true;
    return go(p, START);
}

// Emits content up to the marker of a call. Blanks at the start of the content are emitted with the text after them.
static bool content_step(struct output_parser *p)
{
    const char *marker = forms[p->syntax.calls].begin;
    enum match match = MATCH_NO;
    drop_blanks(p);
    size_t word = p->worded ? p->from : skip_blank(p, p->read), to = marker ? find(p, marker, &match) : p->text.n;
    if (word < to || (p->final && match == MATCH_NO && !p->called)) {
        give(p, OUTPUT_CONTENT, to);
        p->worded = true;
    }
    p->read = to;
    if (match != MATCH_YES) return false;
    p->read += strlen(marker);
    p->marked = true;
    return go(p, CALL_LEAD);
}

static bool content_begin(struct output_parser *p)
{
    p->worded = p->listed = false;
    return go(p, CONTENT);
}

// Ends the attempt to read a call, and emits its text as content.
static bool call_refused(struct output_parser *p)
{
    p->drop_blank = p->listed = false;
    p->worded = skip_blank(p, p->from) < p->read;
    if (p->worded) give(p, OUTPUT_CONTENT, p->read);
    return go(p, CONTENT);
}

// Ends an answer that ends before a call is certain.
static bool call_ends_early(struct output_parser *p)
{
    if (!p->cut || !p->marked) return call_refused(p);
    p->ended = OUTPUT_CUT_NAME;
    use(p, p->text.n);
    return false;
}

static bool call_begin(struct output_parser *p)
{
    call_reader_reset(&p->call, p->syntax.calls == OUTPUT_CALLS_LLAMA3);
    p->announced = p->bare = false;
    p->sent_arguments = 0;
    return go(p, CALL);
}

static bool start_step(struct output_parser *p)
{
    size_t first = p->read = skip_blank(p, p->read);
    if (p->drop_blank) use(p, first);
    if (first == p->text.n) return p->final && content_begin(p);
    if (!p->reasoned && p->syntax.reasoning_begin) {
        enum match match = match_at(p, first, p->syntax.reasoning_begin);
        if (match == MATCH_MAYBE) return false;
        if (match == MATCH_YES) {
            use(p, first + strlen(p->syntax.reasoning_begin));
            p->drop_blank = true;
            return go(p, REASONING);
        }
    }
    if (p->syntax.calls == OUTPUT_CALLS_LLAMA3 && at(p, first) == '{') return call_begin(p);
    return content_begin(p);
}

static bool is_name(char c)
{
    return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || strchr("_-.", c);
}

// Waits for more of the head of a bare call, or refuses the call.
static bool head_wait(struct output_parser *p)
{
    if (p->text.n - p->read > CALL_HEAD_MAX) return call_refused(p);
    return p->final && call_ends_early(p);
}

// Reads name[ARGS]{...} or name[CALL_ID]id[ARGS]{...} and pushes the equivalent object to the reader.
static bool bare_call_step(struct output_parser *p)
{
    static const char before[] = "{\"name\":\"", between[] = "\",\"arguments\":";
    size_t name = p->read, end = name;
    while (end < p->text.n && is_name(at(p, end)))
        end++;
    size_t next = end;
    if (next < p->text.n && match_at(p, next, mistral_id) != MATCH_NO)
        for (next += strlen(mistral_id); next < p->text.n && is_name(at(p, next));)
            next++;
    if (next >= p->text.n) return head_wait(p);
    enum match match = match_at(p, next, mistral_arguments);
    if (match == MATCH_MAYBE) return false;
    if (match == MATCH_YES) next += strlen(mistral_arguments);
    next = skip_blank(p, next);
    bool named = p->final && p->cut && match == MATCH_YES; // the answer was cut before the arguments
    if (next == p->text.n && !named) return head_wait(p);
    if (end == name || next - name > CALL_HEAD_MAX || (next < p->text.n && at(p, next) != '{')) return call_refused(p);
    call_begin(p);
    p->bare = true;
    call_reader_push(&p->call, before, strlen(before));
    call_reader_push(&p->call, p->text.data + name, end - name);
    call_reader_push(&p->call, between, strlen(between));
    p->read = next;
    return true;
}

static bool lead_step(struct output_parser *p)
{
    p->read = skip_blank(p, p->read);
    if (p->read == p->text.n) return p->final && call_ends_early(p);
    if (at(p, p->read) == '{') return call_begin(p);
    if (p->syntax.calls != OUTPUT_CALLS_MISTRAL || p->listed) return call_refused(p);
    if (at(p, p->read) != '[') return bare_call_step(p);
    p->read++;
    return p->listed = true;
}

static void call_give(struct output_parser *p)
{
    if (!p->announced) p->part(p->user, OUTPUT_CALL, p->call.name.data, p->call.name.n);
    p->announced = p->called = true;
    size_t n = p->call.arguments.n - p->sent_arguments;
    if (n) p->part(p->user, OUTPUT_ARGUMENTS, p->call.arguments.data + p->sent_arguments, n);
    p->sent_arguments = p->call.arguments.n;
    use(p, p->read);
}

static bool is_tool(const struct output_parser *p)
{
    const struct bytes *name = &p->call.name;
    return p->call.named && json_object_getn(p->tools, name->data, name->n);
}

static bool call_step(struct output_parser *p)
{
    const struct call_reader *call = &p->call;
    // The arguments of a bare call end before the object that the reader received.
    // The name of no tool ends the attempt, because a marker may follow in what would be the rest of the object.
    bool named = call->named;
    while (p->read < p->text.n && call->state < CALL_READER_DONE && (named == call->named || p->marked || is_tool(p)) &&
           !(p->bare && call->state == CALL_READER_KEY && call->arguments.n)) {
        named = call->named;
        p->read += call_reader_push(&p->call, p->text.data + p->read, 1);
    }
    bool done = call->state == CALL_READER_DONE || (p->bare && call->state == CALL_READER_KEY), tool = is_tool(p);
    bool refused = call->state == CALL_READER_BROKEN || (call->named && !p->marked && !tool);
    bool certain = call->named && p->marked + tool + call->argued >= 2;
    if (certain && call_reader_is_call(call)) call_give(p);
    if (refused || (done && !certain)) return call_refused(p);
    if (done) return go(p, CALL_TAIL);
    if (!p->final || p->announced) return false;
    if (!p->cut || !call->named) return call_ends_early(p);
    call_give(p);
    return false;
}

// Reads the text after a call: its end marker, a separator, or the end of a list.
static bool tail_step(struct output_parser *p)
{
    p->read = skip_blank(p, p->read);
    if (p->read == p->text.n) return false;
    const char *end = forms[p->syntax.calls].end;
    enum match match = end ? match_start(p, p->read, end) : MATCH_NO;
    if (match == MATCH_MAYBE && (!p->final || p->cut)) return false; // a cut end marker is dropped
    if (match == MATCH_YES) {
        use(p, p->read + strlen(end));
        return content_begin(p);
    }
    char separator = at(p, p->read);
    bool llama3 = p->syntax.calls == OUTPUT_CALLS_LLAMA3;
    if (p->listed ? separator == ',' : llama3 && separator == ';') {
        use(p, p->read + 1);
        return go(p, CALL_LEAD);
    }
    if (p->listed && separator == ']') use(p, p->read + 1);
    return llama3 && separator == '{' ? go(p, CALL_LEAD) : content_begin(p);
}

static bool (*const steps[])(struct output_parser *p) = {
    [START] = start_step,    [REASONING] = reasoning_step, [CONTENT] = content_step,
    [CALL_LEAD] = lead_step, [CALL] = call_step,           [CALL_TAIL] = tail_step,
};

static void advance(struct output_parser *p, output_part_fn *part, void *user)
{
    p->part = part;
    p->user = user;
    while (p->text.n && steps[p->state](p))
        ;
    if (p->from) memmove(p->text.data, p->text.data + p->from, p->text.n - p->from);
    p->text.n -= p->from;
    p->read -= p->from;
    p->before += p->from;
    p->from = 0;
}

// --- interface

struct output_parser *output_parser_create(const struct output_syntax *syntax, bool reasoning, const json_t *tools)
{
    struct output_parser *p = mem_alloc(sizeof *p);
    *p = (struct output_parser){.syntax = *syntax, .state = reasoning ? REASONING : START, .drop_blank = reasoning};
    p->tools = json_incref((json_t *)tools);
    return p;
}

void output_parser_free(struct output_parser *parser)
{
    if (!parser) return;
    bytes_free(&parser->text);
    call_reader_fini(&parser->call);
    json_decref(parser->tools);
    free(parser);
}

void output_parser_push(struct output_parser *parser, const char *text, size_t n, output_part_fn *part, void *user)
{
    bytes_add(&parser->text, text, n);
    advance(parser, part, user);
}

void output_parser_finish(struct output_parser *parser, bool cut, output_part_fn *part, void *user)
{
    parser->final = true;
    parser->cut = cut;
    advance(parser, part, user);
    bool in_call = parser->state == CALL && parser->announced;
    if (in_call && !call_reader_is_complete(&parser->call)) parser->ended = OUTPUT_CUT_CALL;
}

enum output_cut output_parser_cut(const struct output_parser *parser)
{
    return parser->ended;
}

size_t output_parser_used(const struct output_parser *parser)
{
    return parser->before + parser->from;
}

size_t output_parser_held(const struct output_parser *parser)
{
    const struct call_reader *call = &parser->call;
    return parser->text.n + call->key.n + call->value.n + call->name.n + call->arguments.n;
}
