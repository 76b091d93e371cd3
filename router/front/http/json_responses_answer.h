// SPDX-License-Identifier: Apache-2.0
// Writes answers in the format of OpenAI's Responses API: items of the types reasoning, message and function_call. Only
// one thread may use an answer at a time.
#pragma once

#include <jansson.h>

#include "router/core/request.h"
#include "router/front/http/json_writer.h"
#include "router/front/request/chat_answer.h"

// Returns the request's fields that a response repeats, as members of a JSON object, each with a leading comma. The
// caller frees the text.
char *responses_echo(const json_t *body);

struct responses_item {
    enum output_kind kind;           // OUTPUT_REASONING, OUTPUT_CONTENT (a message) or OUTPUT_CALL
    struct bytes text;               // the text, or the arguments of a call
    struct bytes logprobs;           // messages: JSON objects of a list, without the brackets
    struct bytes name;               // calls: name of the function
    char call_id[CHAT_CALL_ID_ROOM]; // calls
};

// The answer to one request. The members after the first four start as zero.
struct responses_answer {
    const char *id;               // resp-NUMBER; ids of items have the same number; borrowed
    const char *model;            // borrowed
    const char *echo;             // result of responses_echo(); borrowed
    int64_t created_s;            // Unix time
    struct responses_item *items; // [n] owned
    int n, capacity;
    // Streams:
    bool open;             // the last item has not ended
    int64_t n_events;      // number of events added so far
    size_t logprobs_bytes; // bytes of the log-probabilities of all items, kept or not
};
void responses_answer_fini(struct responses_answer *a);

// How an answer ended.
struct responses_end {
    enum finish_reason reason;
    const struct request_usage *usage;
    const char *error; // error message, with FINISH_REASON_ERROR only
    enum output_cut cut;
};

// Sets the items of a complete answer, in the order of its stream. `chat` has the reasoning and the calls; NULL: the
// answer has only text.
void responses_set_items(struct responses_answer *a, const struct bytes *text, const struct bytes *logprobs,
                         const struct chat_answer *chat);
// Adds the response object of a complete answer.
void responses_add_object(struct bytes *out, const struct responses_answer *a, const struct responses_end *end);

// Add the events of a stream: first responses_add_begin(), then a call for each part, last responses_add_end(). Parts
// become the items of the answer. The events that end an item and the answer repeat the text. They repeat the
// log-probabilities only if the answer has at most 1 MiB of them, because the router has to keep them until the end.
void responses_add_begin(struct bytes *out, struct responses_answer *a);
// `call` is set for OUTPUT_CALL.
void responses_add_part(struct bytes *out, struct responses_answer *a, enum output_kind kind,
                        const struct chat_call *call, const char *text, size_t n);
// Adds text to the message, with the log-probabilities of its tokens. Either may be empty.
void responses_add_text(struct bytes *out, struct responses_answer *a, const char *text, size_t n,
                        const struct bytes *logprobs);
void responses_add_end(struct bytes *out, struct responses_answer *a, const struct responses_end *end);
