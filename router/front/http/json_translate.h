// SPDX-License-Identifier: Apache-2.0
// Functions for the APIs that are translated to /v1/chat/completions: their bodies become bodies of that endpoint, so
// that all are checked and served in one way. Their streams consist of named events. Any thread.
#pragma once

#include <jansson.h>

#include "router/front/http/json_writer.h"

// Returns a copy of the object without the members `without`, names that end with NULL. Values are shared. The caller
// owns the copy.
json_t *json_copy_without(const json_t *object, const char *const *without);

// Adds one turn of a chat: {"role", "content": [{"type": "text", "text"}, ...]}. `content` is a string or a list of
// blocks. Blocks must have one of the given types, which end with NULL. UNSUPPORTED and INVALID name `where`, the place
// of the content in the body.
enum status json_turn_add(json_t *messages, const char *role, const json_t *content, const char *const *block_types,
                          const char *where);

// Sets structured output in the form of /v1/chat/completions, from {"type": "json_schema", "schema": ...} or another
// type. `format` may be NULL or null.
void json_set_response_format(json_t *chat, const json_t *format);

// Begin and end a server-sent event whose data repeats its name: "event: NAME\ndata: {"type":"NAME" ... }\n\n". In
// between the caller appends members, each with a comma before it.
void json_event_begin(struct bytes *out, const char *name);
void json_event_end(struct bytes *out);
