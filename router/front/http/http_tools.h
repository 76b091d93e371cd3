// SPDX-License-Identifier: Apache-2.0
// Reads the tools of a body of /v1/chat/completions and the client's choice among them. Every API with tools uses this
// form. Any thread may call.
#pragma once

#include "router/front/http/http_input.h"

// Reads tools, tool_choice and parallel_tool_calls.
enum status http_tools_read(const json_t *body, struct http_input *in);

// Returns true if http_tools_read() reads the field.
bool http_tools_knows(const char *name);
