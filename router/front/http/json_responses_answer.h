// SPDX-License-Identifier: Apache-2.0
// Writes answers in the format of OpenAI's Responses API: items of the types reasoning, message, function_call and
// custom_tool_call. Only one thread may use an answer at a time.
//
// The items of an answer are made from its parts, whether it is streamed or not, so that both forms are the same.
#pragma once

#include <jansson.h>

#include "router/core/request.h"
#include "router/front/http/json_custom_input.h"
#include "router/front/http/json_writer.h"
#include "router/front/request/chat_answer.h"

struct responses_item {
    enum output_kind kind;           // OUTPUT_REASONING, OUTPUT_CONTENT (a message) or OUTPUT_CALL
    struct bytes text;               // the text, the arguments of a function, or the input of a custom tool
    struct bytes logprobs;           // messages: JSON objects of a list, without the brackets
    struct bytes name;               // calls: name of the tool
    const char *space;               // calls: namespace of the tool; NULL: none; borrowed from responses_answer.tools
    bool custom;                     // calls: the tool is a custom tool
    char call_id[CHAT_CALL_ID_ROOM]; // calls
};

// The answer to one request. The members after `tools` start as zero.
struct responses_answer {
    const char *id;               // resp-NUMBER; ids of items have the same number; borrowed
    const char *model;            // borrowed
    const char *echo;             // result of responses_echo(); borrowed
    int64_t created_s;            // Unix time
    const json_t *tools;          // responses_tools.renamed; NULL: none; borrowed
    struct responses_item *items; // [n] owned
    int n, capacity;
    bool open;                 // the last item has not ended
    struct custom_input input; // state of the last item if it is a call of a custom tool
    size_t logprobs_bytes;     // bytes of the log-probabilities of all items, kept or not
    int64_t n_events;          // streams: number of events added so far
};
void responses_answer_fini(struct responses_answer *a);

// The end of an answer and its cause.
struct responses_end {
    enum finish_reason reason;
    const struct request_usage *usage;
    const char *error; // error message, with FINISH_REASON_ERROR only
    enum output_cut cut;
    int64_t completed_s;             // Unix time
    const struct bytes *explanation; // see json_add_explanation()
};

// Add the events of a stream: first responses_add_begin(), then a call for each part, last responses_add_end(). Parts
// become the items of the answer. The events that end an item and the answer repeat the text. They repeat the
// log-probabilities only if the answer has at most 1 MiB of them, because the router has to keep them until the end.
//
// If `out` is NULL, there are no events, and all log-probabilities are kept: the answer is sent whole.
void responses_add_begin(struct bytes *out, struct responses_answer *a, const struct request_usage *usage);
// `call` is set for OUTPUT_CALL.
void responses_add_part(struct bytes *out, struct responses_answer *a, enum output_kind kind,
                        const struct chat_call *call, const char *text, size_t n);
// Adds text to the message, with the log-probabilities of its tokens. Either may be empty.
void responses_add_text(struct bytes *out, struct responses_answer *a, const char *text, size_t n,
                        const struct bytes *logprobs);
void responses_add_end(struct bytes *out, struct responses_answer *a, const struct responses_end *end);

// Sets the items of a whole answer, in the order of its stream. `chat` has the reasoning and the calls; NULL: the
// answer has only text.
void responses_set_items(struct responses_answer *a, const struct bytes *text, const struct bytes *logprobs,
                         const struct chat_answer *chat);
// Ends a whole answer and adds its response object.
void responses_add_whole(struct bytes *out, struct responses_answer *a, const struct responses_end *end);
