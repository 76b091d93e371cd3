// SPDX-License-Identifier: Apache-2.0
// OpenAI's Responses API (POST /v1/responses) without its state: no response is stored, so a request carries its whole
// conversation. Any thread.
#pragma once

#include <jansson.h>

#include "lib/base/status.h"

// Limit of the JSON of each field that a response repeats. A stream repeats them several times, and a waiting request
// keeps them. Longer instructions, which are a part of the prompt, are not repeated; other longer fields are refused.
enum { RESPONSES_REPEATED_JSON_MAX = 256 << 10 };

// Creates the body of /v1/chat/completions that asks for the same. The caller owns *chat_p. INVALID or UNSUPPORTED,
// with a sentence that names the field.
enum status responses_to_chat(const json_t *body, json_t **chat_p);
