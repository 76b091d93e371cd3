// SPDX-License-Identifier: Apache-2.0
// Reads a prompt given as text (a string) or as token ids (a list of numbers).
#pragma once

#include "router/front/http/http_input.h"

// Returns INVALID if the value has another type, or if a list is empty.
enum status http_prompt_read(const json_t *value, struct http_input *in, struct http_prompt *prompt);
