// SPDX-License-Identifier: Apache-2.0
// Reads structured output from a JSON body: OpenAI's response_format, and vLLM's guided_json, guided_regex,
// guided_grammar, guided_choice and structured_outputs. A schema with `strict` is closed (schema_close.h). Any thread
// may call.
#pragma once

#include <jansson.h>

#include "lib/text/grammar_spec.h"

// Reads the grammar that the body asks for, or GRAMMAR_NONE. The caller frees it. Returns INVALID with the name of the
// field if a value has the wrong type or the body has more than one of these fields.
enum status grammar_from_json(const json_t *body, struct grammar_spec *spec);

// Returns true if grammar_from_json() reads the field.
bool grammar_json_knows(const char *name);
