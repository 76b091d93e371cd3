// SPDX-License-Identifier: Apache-2.0
// OpenAI's Responses API (POST /v1/responses) without its state: no response is stored, so a request carries its whole
// conversation. Any thread.
#pragma once

#include <jansson.h>

#include "lib/base/status.h"

// A response repeats fields of its request, a stream several times, and a waiting request keeps them. Each may have so
// many bytes of JSON: longer instructions, which are a part of the prompt, are not repeated, other fields are refused.
enum { RESPONSES_REPEATED_JSON_MAX = 256 << 10 };

// The body of /v1/chat/completions that asks for the same. INVALID or UNSUPPORTED, with a sentence that names the
// field. The caller owns *chat_p.
enum status responses_to_chat(const json_t *body, json_t **chat_p);
