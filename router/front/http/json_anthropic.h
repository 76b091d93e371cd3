// SPDX-License-Identifier: Apache-2.0
// Anthropic's Messages API (POST /v1/messages, POST /v1/messages/count_tokens) for text and tools: translates bodies
// into bodies of /v1/chat/completions. Refuses images, documents and tools that Anthropic's servers run. Refuses a
// conversation that ends with the assistant's turn, because an answer cannot continue that turn. Any thread.
#pragma once

#include <jansson.h>
#include <stdbool.h>

#include "lib/base/status.h"

// Translates a body of /v1/messages to a body of /v1/chat/completions. The caller owns *chat_p. `counted` is true for a
// body of /v1/messages/count_tokens, which needs no max_tokens. Returns INVALID or UNSUPPORTED on failure;
// status_message() names the field.
enum status anthropic_to_chat(const json_t *body, bool counted, json_t **chat_p);
