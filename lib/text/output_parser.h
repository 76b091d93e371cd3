// SPDX-License-Identifier: Apache-2.0
// Splits the text of a chat answer into reasoning, content and tool calls as the text arrives.
//
// The markers of these sections depend on the model and are detected in its chat template:
//
//   reasoning   <think>...</think>, or [THINK]...[/THINK], at the start of the answer
//   Hermes      <tool_call>{"name": ..., "arguments": {...}}</tool_call>, any number of them (Qwen too)
//   Llama 3     {"name": ..., "parameters": {...}} as the start of the answer or after <|python_tag|>, joined by ";"
//   Mistral     [TOOL_CALLS][{"name": ..., "arguments": {...}}, ...], or [TOOL_CALLS]name[ARGS]{...} for each call
//
// A call is certain if at least two of these hold: a marker precedes it, its name is a tool of the request, it has
// arguments. So an answer that is JSON and has a member "name" is not taken for a call of Llama 3's form.
//
// The parser emits a part as soon as its kind is certain. Text that begins like a call but is not a call is content,
// and an answer without sections stays unchanged. Content keeps its blanks, as in vLLM's parsers. Blanks around the
// reasoning are dropped. So are blanks if nothing else stands between two sections, or after the last section.
//
// If an answer ends inside a call, the arguments so far are emitted, and the call is incomplete. If the answer was cut,
// this holds from the call's marker on, but a call whose name is not complete is left out. The result does not depend
// on how the text is cut into pieces.
//
// One owner, one thread at a time.
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

enum output_calls { OUTPUT_CALLS_NONE, OUTPUT_CALLS_HERMES, OUTPUT_CALLS_LLAMA3, OUTPUT_CALLS_MISTRAL };

// Markers in a model's answers.
struct output_syntax {
    enum output_calls calls;
    const char *reasoning_begin, *reasoning_end; // static; NULL if the model does not reason
};

// Detects the syntax that a chat template shows to the model. `calls` stays NONE for a form that is not supported.
struct output_syntax output_syntax_detect(const char *chat_template);

// Lists the markers of a syntax, NULL-terminated. Tokens with these texts must reach the parser even if they are
// special.
enum { OUTPUT_MARKERS_MAX = 8 };
void output_syntax_markers(const struct output_syntax *syntax, const char *markers[OUTPUT_MARKERS_MAX]);

enum output_kind {
    OUTPUT_REASONING,
    OUTPUT_CONTENT,
    OUTPUT_CALL,      // a call begins; the text is the name of its function
    OUTPUT_ARGUMENTS, // more JSON text of the arguments of the last call
};

// Receives a part. Consecutive parts of one kind belong together. The text is valid during the call and not
// NUL-terminated.
typedef void output_part_fn(void *user, enum output_kind kind, const char *text, size_t n);

struct output_parser;

// Creates a parser. `reasoning`: the prompt ended inside a reasoning section. `syntax` is copied. `tools` is an object
// whose keys are the names of the request's tools (NULL: none); the parser keeps a reference to it.
struct output_parser *output_parser_create(const struct output_syntax *syntax, bool reasoning, const json_t *tools);
void output_parser_free(struct output_parser *parser); // NULL is fine

// Adds text, whole characters only. Calls `part` for each piece of text as soon as its kind is certain.
void output_parser_push(struct output_parser *parser, const char *text, size_t n, output_part_fn *part, void *user);
// Ends the answer. `cut`: a limit or a stop string ended it, and not the model.
void output_parser_finish(struct output_parser *parser, bool cut, output_part_fn *part, void *user);

// The place where the answer ended.
enum output_cut {
    OUTPUT_CUT_NONE, // not inside a call
    OUTPUT_CUT_CALL, // inside the last call, which is incomplete
    OUTPUT_CUT_NAME, // inside a call that was left out, because its name is not complete
};
enum output_cut output_parser_cut(const struct output_parser *parser);

// Returns the bytes of the answer that were emitted or dropped. When `part` receives OUTPUT_REASONING or
// OUTPUT_CONTENT, the result is the position of that text in the answer.
size_t output_parser_used(const struct output_parser *parser);
size_t output_parser_held(const struct output_parser *parser); // bytes of the answer in memory
