// SPDX-License-Identifier: Apache-2.0
// Collects an answer that is not streamed. Core's thread.
#pragma once

#include "router/front/http/http_generation.h"

// Adds a chunk to the choice. Returns false if the answer is too large (whole_answer_grow()); status_message() has the
// error message.
bool http_collector_add(struct http_generation *g, struct http_choice *choice, const struct answer_chunk *chunk);

// Completes the choice. Call it after the choice's last chunk.
void http_collector_finish(struct http_generation *g, struct http_choice *choice);

// Answers the exchange. Call it once all choices are complete.
void http_collector_answer(struct http_generation *g);
