// SPDX-License-Identifier: Apache-2.0
// Endpoints that count the tokens of a prompt: POST /v1/messages/count_tokens and /v1/responses/input_tokens.
#pragma once

#include "lib/http/http.h"
#include "router/front/http/http_input.h"

// The part of an endpoint that depends on the API.
struct http_count_api {
    enum status (*read)(const json_t *body, struct http_input *in); // reads one prompt, a conversation
    const char *object; // JSON of the answer's first members, each with a trailing comma
};

// Counts the tokens of the exchange's body: a route's on_request calls it. `api` is static.
void http_count_start(struct http_exchange *x, const struct http_count_api *api);
