// SPDX-License-Identifier: Apache-2.0
// Writes the parts that OpenAI's chat completions and completions share: the frame of an answer and of an event,
// log-probabilities of tokens, the end of a stream.
#pragma once

#include "router/front/http/http_generation.h"

// Begins an answer: {"id":...,"object":...,"created":...,"model":...,"choices":[
void openai_begin(const struct http_generation *g, const char *object, struct bytes *out);
// Ends a whole answer: ],"usage":...}
void openai_end(const struct http_generation *g, struct bytes *out);
// Begin an event (data: {...,"choices":[) and end it (]...}).
void openai_event_begin(const struct http_generation *g, struct bytes *out);
void openai_event_end(const struct http_generation *g, struct bytes *out);
// http_api.end and http_api.fail
void openai_stream_end(struct http_generation *g, struct bytes *out);
void openai_stream_fail(struct http_generation *g, enum status status, const char *message, struct bytes *out);

// Adds the last members of a choice that has ended: ,"finish_reason":...}
void openai_choice_end(const struct http_generation *g, const struct http_choice *choice, struct bytes *out);
// Ends the event of a choice that has not ended: ,"finish_reason":null...}]...}
void openai_chunk_end(const struct http_generation *g, const struct answer_chunk *chunk, struct bytes *out);

// Adds the text of a token as JSON. Part of a character becomes U+FFFD.
void openai_add_token(const struct http_generation *g, int32_t token, struct bytes *out);

// openai_add_prompt_logprobs() implements http_api.add_prompt_logprobs. openai_prompt_logprobs_member() adds the member
// "prompt_logprobs" in vLLM's format: null for the first token, then an object for each further token. The object
// contains the token and the likeliest tokens, with token ids as keys.
void openai_add_prompt_logprobs(struct http_generation *g, struct http_choice *choice,
                                const struct answer_chunk *chunk);
void openai_prompt_logprobs_member(const struct http_generation *g, const struct http_choice *choice,
                                   struct bytes *out);

extern const struct http_api http_chat, http_completions;
