// SPDX-License-Identifier: Apache-2.0
// OpenAI's Responses API (POST /v1/responses) without its state: no response is stored, so a request carries its whole
// conversation. Any thread.
#pragma once

#include <jansson.h>

#include "lib/base/status.h"

// A response repeats some fields of the request body. This is the limit in bytes of each such field's JSON: a stream
// repeats the fields several times, and a waiting request keeps them. Longer instructions are allowed but not repeated,
// because they are part of the prompt. Other fields that are longer are refused.
enum { RESPONSES_REPEATED_JSON_MAX = 256 << 10 };

// Translates a body of /v1/responses to a body of /v1/chat/completions. The caller owns *chat_p. Returns INVALID or
// UNSUPPORTED on failure; status_message() names the field.
enum status responses_to_chat(const json_t *body, json_t **chat_p);
