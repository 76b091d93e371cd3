// SPDX-License-Identifier: Apache-2.0
// Counts the usage of a generation over its choices, and writes it as a JSON object and as headers. Core's thread.
#pragma once

#include "router/front/http/http_generation.h"

// Adds the growth of the request's usage since the last call to g->usage. Prompt counts are added only for the first
// choice of each prompt. `n_tokens` is the number of the request's output tokens.
void http_usage_update(struct http_generation *g, struct http_choice *choice, const struct request *r, int n_tokens);

// Appends the object "usage" with OpenAI's members and more, see docs/http-api.md.
void http_usage_add(const struct http_generation *g, struct bytes *out);

// Adds the headers x-forepack-*: prompt and kept tokens of all prompts, and how the first prompt was prefilled.
void http_usage_add_headers(const struct http_generation *g);
