// SPDX-License-Identifier: Apache-2.0
// The tools of the Responses API as functions of /v1/chat/completions:
//
//   function   the same function
//   custom     a function with one argument, the text `input`
//   namespace  its functions and custom tools, each with the namespace's name before its own: NAMESPACE__NAME
//   others     tools that only OpenAI's servers have, such as web_search: left out if another tool remains
//
// Any thread may read struct responses_tools.
#pragma once

#include <jansson.h>

#include "lib/base/status.h"

struct responses_tools {
    // {OFFERED_NAME: {"name", "custom", "namespace"}} for the tools that the model knows in another form. "namespace"
    // is missing if the tool has none. Owned; NULL: no such tools.
    json_t *renamed;
    json_t *offered; // {NAME: OFFERED_NAME} for all tools; a namespace's tool only if its name is not taken. Owned
    // List of the types that were left out, each once. Owned; NULL: none.
    json_t *left_out;
};
void responses_tools_fini(struct responses_tools *tools);

// Translates the list `from` to a new list of functions. Call responses_tools_fini() whatever the status.
enum status responses_tools_read(const json_t *from, struct responses_tools *tools, json_t **functions_p);

// Translates tool_choice to the form of /v1/chat/completions. The caller owns *choice_p.
enum status responses_tool_choice_read(const json_t *choice, const struct responses_tools *tools, json_t **choice_p);

// Returns the name under which the model knows a tool. `space` is the namespace or NULL. The caller frees the name.
char *responses_offered_name(const char *space, const char *name);

// Returns the arguments of a call of a custom tool, as the model writes them. The caller owns the string.
json_t *responses_custom_arguments(const json_t *input);
