// SPDX-License-Identifier: Apache-2.0
// Gathers a whole answer. Core's thread.
#pragma once

#include "router/front/http/http_generation.h"

// Adds a chunk to the choice. False: the answer is too large, with the reason in status_message()
// (whole_answer_grow()).
bool http_collector_add(struct http_generation *g, struct http_choice *choice, const struct answer_chunk *chunk);

// Completes the choice, after its last chunk.
void http_collector_finish(struct http_generation *g, struct http_choice *choice);

// Answers the exchange, after the last choice.
void http_collector_answer(struct http_generation *g);
