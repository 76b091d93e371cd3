// SPDX-License-Identifier: Apache-2.0
// The usage of a generation: counted over its choices, and shown as an object in JSON and as headers. Core's thread.
#pragma once

#include "router/front/http/http_generation.h"

// Adds what the choice's request has used since the last call: prompts once, outputs of all choices. `n_tokens` is the
// number of its output tokens.
void http_usage_update(struct http_generation *g, struct http_choice *choice, const struct request *r, int n_tokens);

// Adds OpenAI's object with our fields, see docs/http-api.md.
void http_usage_add(const struct http_generation *g, struct bytes *out);

// Adds the headers x-forepack-* of the first prompt's prefill.
void http_usage_add_headers(const struct http_generation *g);
