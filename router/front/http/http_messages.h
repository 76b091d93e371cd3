// SPDX-License-Identifier: Apache-2.0
// Reads the conversation of a body of OpenAI's API. The content of a message is a string or a list of text parts. Also
// reads the fields that vLLM adds for the chat template: chat_template_kwargs, documents, add_generation_prompt; and
// reasoning_effort and verbosity, which are variables of the template.
#pragma once

#include "router/front/http/http_input.h"

// Reads prompt->conversation, which borrows from the body. Replaces the role "developer" by "system" in the body.
// Returns INVALID or UNSUPPORTED on failure; status_message() names the field or the message.
enum status http_messages_read(const json_t *body, struct http_input *in, struct http_prompt *prompt);

// Returns true if http_messages_read() reads the field.
bool http_messages_knows(const char *name);
