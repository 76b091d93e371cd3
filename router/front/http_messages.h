// SPDX-License-Identifier: Apache-2.0
// The messages of a chat, as OpenAI's API has them: content is a string or a list of text parts.
#pragma once

#include "router/front/http_generation.h"

// INVALID or UNSUPPORTED names the message. `list` NULL: there is no such field.
enum status http_messages_read(const json_t *list, struct http_input *in, struct http_prompt *prompt);
