// SPDX-License-Identifier: Apache-2.0
// Makes the grammar of an answer that must call a tool (tool_choice `required`, or a named function), and of an answer
// that either calls tools or is JSON in the format that the client asks for.
#pragma once

#include <jansson.h>

#include "lib/text/grammar_spec.h"
#include "lib/text/output_parser.h"

struct tool_choice {
    const json_t *tools; // OpenAI's list of functions, checked
    const char *name;    // name of the only function that may be called; NULL: any
    bool single;         // exactly one call
    bool close;          // close the schemas of all tools (schema_close.h), not only of tools with `strict`
    // JSON schema of the answer if it has no calls; NULL: a call is required. The arguments of calls that are not
    // required are JSON objects, and the tools' schemas do not limit them.
    const char *format;
};

// Creates the grammar. `marker` is the special token that starts calls in Mistral's form, or -1 if the marker is text.
// The caller frees the spec. INVALID: no tool has the name. UNSUPPORTED: the form of calls is not known, or a tool's
// schema has a reference that is not to a part of itself.
enum status tool_grammar_create(enum output_calls form, int32_t marker, const struct tool_choice *choice,
                                struct grammar_spec *spec_p);
