// SPDX-License-Identifier: Apache-2.0
// Reads the conversation of a body of OpenAI's API: messages, whose content is a string or a list of text parts, and
// the fields that vLLM adds for the chat template: chat_template_kwargs, documents, add_generation_prompt.
#pragma once

#include "router/front/http/http_input.h"

// The conversation borrows from the body, in which the role "developer" becomes "system". INVALID or UNSUPPORTED, with
// a sentence that names the field or the message.
enum status http_messages_read(const json_t *body, struct http_input *in, struct http_prompt *prompt);
