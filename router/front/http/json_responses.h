// SPDX-License-Identifier: Apache-2.0
// OpenAI's Responses API (POST /v1/responses) without its state: no response is stored, so a request carries its whole
// conversation. Any thread may call.
//
//   json_responses.c         the fields of a body
//   json_responses_input.c   its items
//   json_responses_tools.c   its tools
//   json_responses_echo.c    the fields that the answer repeats
//   json_responses_answer.c  the answer: items and events
//   json_custom_input.c      the text of a call of a custom tool
#pragma once

#include <jansson.h>
#include <stdbool.h>

#include "lib/base/status.h"
#include "router/front/http/json_responses_tools.h"

// A response repeats some fields of the request body. This is the limit in bytes of each such field's JSON: a stream
// repeats the fields several times, and a waiting request keeps them. Longer instructions are allowed but not repeated,
// because they are part of the prompt. Other fields that are longer are refused.
enum { RESPONSES_REPEATED_JSON_MAX = 256 << 10 };

// Translates a body of /v1/responses to a body of /v1/chat/completions. With `system_turns`, the chat template renders
// turns of the role system anywhere (system_turns.h). The caller owns *chat_p, and calls responses_tools_fini()
// whatever the status. Returns INVALID or UNSUPPORTED on failure; status_message() names the field.
enum status responses_to_chat(const json_t *body, bool system_turns, struct responses_tools *tools, json_t **chat_p);

// Returns true if /v1/responses reads this field itself. /v1/chat/completions has the other fields.
bool responses_knows(const char *name);

// Returns the request's fields that a response repeats, as members of a JSON object, each with a leading comma. The
// body has been translated. The caller frees the text.
char *responses_echo(const json_t *body);
