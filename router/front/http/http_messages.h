// SPDX-License-Identifier: Apache-2.0
// The conversation of a body, as OpenAI's API has it: messages, whose content is a string or a list of text parts, and
// what vLLM adds for the chat template: chat_template_kwargs, documents, add_generation_prompt.
#pragma once

#include "router/front/http/http_input.h"

// INVALID or UNSUPPORTED names the field or the message. The conversation borrows from the body, in which the role
// "developer" becomes "system".
enum status http_messages_read(const json_t *body, struct http_input *in, struct http_prompt *prompt);
