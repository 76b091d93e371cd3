// SPDX-License-Identifier: Apache-2.0
// Splits the text of a chat answer into its sections (reasoning, content, tool calls) and passes their parts on. Core's
// thread.
#pragma once

#include "router/front/http/http_generation.h"

struct http_sections {
    struct http_generation *g;
    struct http_choice *choice; // with `chat`
    struct bytes *out;          // of a stream; NULL: a whole answer
    // Receives a part of a section. `call` is set for OUTPUT_CALL and OUTPUT_ARGUMENTS.
    void (*part)(const struct http_sections *s, enum output_kind kind, struct chat_call *call, const char *text,
                 size_t n);
    // Receives the log-probabilities of the part of the content that was passed on last.
    void (*logprobs)(const struct http_sections *s, const struct answer_chunk *tokens);
};

void http_sections_push(const struct http_sections *s, const struct answer_chunk *chunk);
void http_sections_finish(const struct http_sections *s); // after the last chunk

// Returns true if `logprobs` receives the chunk's log-probabilities, because the API reports the content's only.
bool http_sections_split_logprobs(const struct http_generation *g, const struct answer_chunk *chunk);
