// SPDX-License-Identifier: Apache-2.0
// Anthropic's Messages API (POST /v1/messages, POST /v1/messages/count_tokens) for text. Tools, images, documents and
// extended thinking are refused, and so is a last turn of the assistant, which an answer cannot continue.
//
// Any thread; one answer is used by one thread at a time.
#pragma once

#include <jansson.h>

#include "router/core/request.h"
#include "router/front/json_writer.h"

// The body of /v1/chat/completions that asks for the same. INVALID or UNSUPPORTED, with a sentence that names the
// field. The caller owns *chat_p. `counted`: only the prompt's tokens are asked for, max_tokens is not needed.
enum status anthropic_to_chat(const json_t *body, bool counted, json_t **chat_p);

// What the answer's objects repeat. Borrowed.
struct anthropic_answer {
    const char *id; // msg-NUMBER
    const char *model;
};

// How an answer ended.
struct anthropic_end {
    enum finish_reason reason; // not FINISH_REASON_ERROR: see anthropic_add_error()
    const char *stop;          // the stop sequence that ended it; NULL: none did
    const struct request_usage *usage;
};

// The message of an answer that is complete.
void anthropic_add_message(struct bytes *out, const struct anthropic_answer *a, const char *text, size_t n,
                           const struct anthropic_end *end);

// The events of a stream: first anthropic_add_begin(), then one delta for each piece of text, last anthropic_add_end().
// A stream that fails ends with anthropic_add_error_event() instead.
void anthropic_add_begin(struct bytes *out, const struct anthropic_answer *a, int prompt_tokens);
void anthropic_add_delta(struct bytes *out, const char *text, size_t n);
void anthropic_add_end(struct bytes *out, const struct anthropic_end *end);
void anthropic_add_error_event(struct bytes *out, enum status status, const char *message);

// {"type":"error","error":{"type","message"}}
void anthropic_add_error(struct bytes *out, enum status status, const char *message);
