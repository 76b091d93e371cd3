// SPDX-License-Identifier: Apache-2.0
// The usage of a generation: counted over its choices, and shown as an object in JSON and as headers. Core's thread.
#pragma once

#include "router/front/http/http_generation.h"

// Adds to g->usage the growth of the request's usage since the last call. Prompt counts are added for the first choice
// of each prompt only. `n_tokens` is the number of the request's output tokens.
void http_usage_update(struct http_generation *g, struct http_choice *choice, const struct request *r, int n_tokens);

// Appends the object "usage": OpenAI's members and further ones, see docs/http-api.md.
void http_usage_add(const struct http_generation *g, struct bytes *out);

// Adds the headers x-forepack-*: prompt and kept tokens of all prompts, and how the first prompt was prefilled.
void http_usage_add_headers(const struct http_generation *g);
