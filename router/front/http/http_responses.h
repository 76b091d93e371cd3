// SPDX-License-Identifier: Apache-2.0
// OpenAI's Responses API: POST /v1/responses and POST /v1/responses/input_tokens.
#pragma once

#include "router/front/http/http_generation.h"

extern const struct http_api http_responses;
void http_input_tokens_post(struct http_exchange *x); // on_request of its route
