// SPDX-License-Identifier: Apache-2.0
// The input of the Responses API, a list of items, as messages of /v1/chat/completions. Any thread may call.
#pragma once

#include <jansson.h>
#include <stdbool.h>

#include "lib/base/status.h"

// Adds the messages of `input`, a string or a list of items. status_message() names the item on failure. Messages of
// the roles system and developer stay in their places with `system_turns`, which means that the chat template renders
// them. Otherwise they join the message before them, or become a turn of the user after an answer.
enum status responses_input_add(json_t *messages, const json_t *input, bool system_turns);
