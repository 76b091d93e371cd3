// SPDX-License-Identifier: Apache-2.0
// Splits the text of a chat answer into sections (reasoning, content, tool calls). Calls a function for each part of a
// section. Core's thread.
#pragma once

#include "router/front/http/http_generation.h"

struct http_sections {
    struct http_generation *g;
    struct http_choice *choice; // its `chat` is not NULL
    struct bytes *out;          // buffer for the events of a stream; NULL: the answer is not streamed
    // Receives a part of a section. `call` is set for OUTPUT_CALL and OUTPUT_ARGUMENTS.
    void (*part)(const struct http_sections *s, enum output_kind kind, struct chat_call *call, const char *text,
                 size_t n);
    // Receives the log-probabilities of the content that the last call of `part` received.
    void (*logprobs)(const struct http_sections *s, const struct answer_chunk *tokens);
};

void http_sections_push(const struct http_sections *s, const struct answer_chunk *chunk);
// Call it after the last chunk, when the choice has its `reason` and `stop`.
void http_sections_finish(const struct http_sections *s);

// Returns true if the chunk has log-probabilities and the API reports them for the content only. Then
// http_sections_push() gives them to `logprobs`, and the caller must not add them itself.
bool http_sections_split_logprobs(const struct http_generation *g, const struct answer_chunk *chunk);
