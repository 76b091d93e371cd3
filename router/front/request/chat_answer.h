// SPDX-License-Identifier: Apache-2.0
// The sections of a chat answer: reasoning, content, tool calls (lib/text/output_parser.h).
//
// Any thread may read struct chat_syntax, which is constant after chat_syntax_open(). An answer belongs to the core's
// thread.
#pragma once

#include "lib/text/chat.h"
#include "lib/text/output_parser.h"
#include "lib/text/text_stream.h"
#include "lib/text/unicode.h"
#include "router/front/request/content_tokens.h"

// The markers of sections that the chat template uses.
struct chat_syntax {
    struct output_syntax output;
    int32_t shown[OUTPUT_MARKERS_MAX]; // [n_shown] markers that are special tokens; their text must reach the parser
    int n_shown;
    int32_t call_marker; // token [TOOL_CALLS], which begins Mistral's calls; -1: not a special token
};
struct chat_syntax chat_syntax_open(const struct chat_template *chat, const struct tokenizer *tokenizer);

enum { CHAT_CALL_ID_ROOM = 10 }; // nine letters and digits, as Mistral's templates require

struct chat_call {
    char id[CHAT_CALL_ID_ROOM];
    // Whole answers only:
    struct bytes name, arguments;
    size_t text_at, logprobs_at; // bytes of the answer's content and list of log-probabilities when the call began
};

struct chat_answer {
    struct output_parser *parser;
    struct bytes reasoning;  // whole answers only
    struct chat_call *calls; // [n_calls] owned
    int n_calls, capacity;
    size_t collected;             // bytes of `reasoning` and `calls`
    bool single;                  // calls after the first one are dropped
    bool dropped;                 // the last call was dropped
    struct content_tokens tokens; // used if only the content has log-probabilities (http_api.content_logprobs)
};

// Creates the state that splits the answer to a prompt [n]. If the prompt ends with a marker that begins the reasoning,
// the answer starts inside the reasoning; n = 0 prevents that. Looks for calls if `tools` is not NULL: the result of
// chat_tool_names(), to which the answer keeps a reference. If `single` is true, drops all calls after the first.
struct chat_answer *chat_answer_create(const struct chat_syntax *syntax, const struct tokenizer *tokenizer,
                                       const int32_t *prompt, int n, const json_t *tools, bool single);
void chat_answer_free(struct chat_answer *answer); // NULL is allowed

// Returns an object whose keys are the names of `tools`, a checked list of OpenAI's form; owned by the caller. Returns
// NULL if `tools` is NULL.
json_t *chat_tool_names(const json_t *tools);

// Begins a call with a random id. Returns NULL if the call is dropped.
struct chat_call *chat_answer_add_call(struct chat_answer *answer);
// Returns the call that the next arguments belong to, or NULL if this call was dropped.
struct chat_call *chat_answer_last_call(struct chat_answer *answer);
// Returns where the answer has ended. A call that was dropped does not count.
enum output_cut chat_answer_cut(const struct chat_answer *answer);
// Returns true if the answer has calls and did not end inside one.
bool chat_answer_calls(const struct chat_answer *answer);
