// SPDX-License-Identifier: Apache-2.0
// Structured output in a JSON body: OpenAI's response_format, and vLLM's guided_json, guided_regex, guided_grammar,
// guided_choice and structured_outputs. Any thread.
#pragma once

#include <jansson.h>

#include "lib/text/grammar_spec.h"

// The grammar that the body asks for; the caller frees it. GRAMMAR_NONE: the body asks for none. INVALID, with the name
// of the field: a value of the wrong type, or more than one of the fields.
enum status grammar_from_json(const json_t *body, struct grammar_spec *spec);
