// SPDX-License-Identifier: Apache-2.0
// A prompt as text (a string) or token ids (a list of numbers).
#pragma once

#include "router/front/http/http_input.h"

// INVALID, also of an empty one.
enum status http_prompt_read(const json_t *value, struct http_input *in, struct http_prompt *prompt);
