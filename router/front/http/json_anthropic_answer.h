// SPDX-License-Identifier: Apache-2.0
// Writes answers in the format of Anthropic's Messages API: content blocks of types thinking, text and tool_use. Only
// one thread may use an answer at a time.
#pragma once

#include "router/core/request.h"
#include "router/front/http/json_writer.h"
#include "router/front/request/chat_answer.h"

// Values that several objects of an answer contain. Borrowed.
struct anthropic_answer {
    const char *id; // msg-NUMBER
    const char *model;
};

// The end of an answer and its cause.
struct anthropic_end {
    enum finish_reason reason; // not FINISH_REASON_ERROR: see anthropic_add_error()
    const char *stop;          // the stop sequence that ended the answer; NULL: none
    const struct request_usage *usage;
    bool calls;                      // the answer calls tools
    const struct bytes *explanation; // see json_add_explanation()
};

// Adds the message of a complete answer. `chat` has the reasoning and the calls; NULL: the answer has only text.
void anthropic_add_message(struct bytes *out, const struct anthropic_answer *a, const struct bytes *text,
                           const struct chat_answer *chat, const struct anthropic_end *end);

// The content blocks of a stream; starts as zero.
struct anthropic_blocks {
    int n;                 // number of blocks begun
    enum output_kind kind; // kind of the last block
    bool open;             // the last block has not ended
};

// Add the events of a stream: first anthropic_add_begin(), then a call for each part, last anthropic_add_end(). A
// stream that fails ends with anthropic_add_error_event() instead.
void anthropic_add_begin(struct bytes *out, const struct anthropic_answer *a, int prompt_tokens);
void anthropic_add_part(struct bytes *out, struct anthropic_blocks *blocks, enum output_kind kind,
                        const struct chat_call *call, const char *text, size_t n);
void anthropic_add_end(struct bytes *out, struct anthropic_blocks *blocks, const struct anthropic_end *end);
void anthropic_add_error_event(struct bytes *out, enum status status, const char *message);

// Adds an error: {"type":"error","error":{"type","message"}}
void anthropic_add_error(struct bytes *out, enum status status, const char *message);
// Adds an error of the HTTP server, which has an HTTP status but no enum status.
void anthropic_add_http_error(struct bytes *out, int http_status, const char *message);
