// SPDX-License-Identifier: Apache-2.0
// Anthropic's Messages API (POST /v1/messages, POST /v1/messages/count_tokens) for text and tools: translates bodies
// into bodies of /v1/chat/completions. Refused: images, documents, tools that Anthropic's servers run, and a last turn
// of the assistant, because an answer cannot continue that turn. Any thread.
#pragma once

#include <jansson.h>
#include <stdbool.h>

#include "lib/base/status.h"

// Creates the body of /v1/chat/completions that asks for the same. The caller owns *chat_p. `counted`: the body asks
// only to count the prompt's tokens, and needs no max_tokens. INVALID or UNSUPPORTED, with a sentence that names the
// field.
enum status anthropic_to_chat(const json_t *body, bool counted, json_t **chat_p);
