// SPDX-License-Identifier: Apache-2.0
// Variables of the chat template that fields of an API stand for: reasoning_effort, verbosity, and switches of
// reasoning. A template that does not use a variable renders the same prompt with it. Any thread may call.
#pragma once

#include <jansson.h>
#include <stdbool.h>

#include "lib/base/status.h"

// Checks a field such as reasoning_effort: a word of at most 32 bytes. Models have words of their own, so any word is
// accepted.
enum status json_variable_check(const char *name, const char *word);

// Sets the variable unless `variables` has it. Takes ownership of `value`.
void json_variable_set(json_t *variables, const char *name, json_t *value);

// Sets the two variables that templates use to switch reasoning on or off, unless `variables` has them.
void json_variables_set_thinking(json_t *variables, bool on);
