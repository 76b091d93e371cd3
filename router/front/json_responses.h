// SPDX-License-Identifier: Apache-2.0
// OpenAI's Responses API (POST /v1/responses) without its state: no response is stored, so a request carries its whole
// conversation. Any thread.
#pragma once

#include <jansson.h>

#include "base/status.h"

// The body of /v1/chat/completions that asks for the same. INVALID or UNSUPPORTED, with a sentence that names the
// field. The caller owns *chat_p.
enum status responses_to_chat(const json_t *body, json_t **chat_p);
