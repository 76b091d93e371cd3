// SPDX-License-Identifier: Apache-2.0
// OpenAI's Responses API (POST /v1/responses) without its state: no response is stored, so a request carries its whole
// conversation, and `store` in the answer is false. Tools, background responses and structured output are refused.
//
// Any thread; one answer is used by one thread at a time.
#pragma once

#include <jansson.h>

#include "router/core/request.h"
#include "router/front/json_writer.h"

// The body of /v1/chat/completions that asks for the same. INVALID or UNSUPPORTED, with a sentence that names the
// field. The caller owns *chat_p.
enum status responses_to_chat(const json_t *body, json_t **chat_p);

// What a response repeats of its request: members of a JSON object, without braces. Free it.
char *responses_echo(const json_t *body);

// The answer to one request.
struct responses_answer {
    const char *id, *item_id; // resp-NUMBER, and msg-NUMBER of the message in the output; borrowed, like the next two
    const char *model;
    const char *echo; // responses_echo()
    int64_t created_s;
    struct bytes text;     // of the answer so far; owned
    struct bytes logprobs; // of its tokens: JSON objects of a list, without the brackets; owned
    int64_t n_events;      // sent so far
};

// How an answer ended.
struct responses_end {
    enum finish_reason reason;
    const struct request_usage *usage;
    const char *error; // with FINISH_REASON_ERROR
};

// The response object of an answer that is complete.
void responses_add_object(struct bytes *out, const struct responses_answer *a, const struct responses_end *end);

// The events of a stream: first responses_add_begin(), then one delta for each piece of text, which becomes part of the
// answer's text, last responses_add_end().
void responses_add_begin(struct bytes *out, struct responses_answer *a);
// `logprobs` are those of the tokens that came with the text, likewise; they may come without text.
void responses_add_delta(struct bytes *out, struct responses_answer *a, const char *text, size_t n,
                         const struct bytes *logprobs);
void responses_add_end(struct bytes *out, struct responses_answer *a, const struct responses_end *end);
