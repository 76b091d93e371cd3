// SPDX-License-Identifier: Apache-2.0
// Anthropic's Messages API: POST /v1/messages and POST /v1/messages/count_tokens.
#pragma once

#include "router/front/http/http_generation.h"

extern const struct http_api http_anthropic;
void http_count_tokens_post(struct http_exchange *x); // on_request of its route
