// SPDX-License-Identifier: Apache-2.0
// The input of the Responses API, a list of items, as messages of /v1/chat/completions. Any thread.
#pragma once

#include <jansson.h>

#include "lib/base/status.h"

// Adds the messages of `input`, a string or a list of items. status_message() names the item on failure.
enum status responses_input_add(json_t *messages, const json_t *input);
