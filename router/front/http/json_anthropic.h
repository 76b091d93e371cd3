// SPDX-License-Identifier: Apache-2.0
// Anthropic's Messages API (POST /v1/messages, POST /v1/messages/count_tokens) for text and tools: translates bodies
// into bodies of /v1/chat/completions. Refuses images, documents and tools that Anthropic's servers run. Refuses a
// conversation that ends with the assistant's turn, because an answer cannot continue that turn. Any thread may call.
//
// Clients such as Claude Code put turns of the role system between other turns. They stay in their places if the chat
// template renders such turns. Otherwise their text joins the turn before them.
#pragma once

#include <jansson.h>
#include <stdbool.h>

#include "lib/base/status.h"

struct anthropic_options {
    bool counted;      // the body is one of /v1/messages/count_tokens, which needs no max_tokens
    bool system_turns; // the chat template renders turns of the role system anywhere (system_turns.h)
};

// Translates a body of /v1/messages to a body of /v1/chat/completions. The caller owns *chat_p. Returns INVALID or
// UNSUPPORTED on failure; status_message() names the field.
enum status anthropic_to_chat(const json_t *body, const struct anthropic_options *options, json_t **chat_p);

// Returns true if the API has its own field of this name, in addition to the fields of a chat.
bool anthropic_knows(const char *name);
