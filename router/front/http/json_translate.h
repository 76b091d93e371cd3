// SPDX-License-Identifier: Apache-2.0
// What the APIs beside /v1/chat/completions share: their bodies become bodies of that endpoint, which then are checked
// and served in one way, and their streams consist of named events. Any thread.
#pragma once

#include <jansson.h>

#include "router/front/http/json_writer.h"

// A copy of the object without `without`, names that end with NULL. Values are shared. The caller owns it.
json_t *json_copy_without(const json_t *object, const char *const *without);

// One turn of a chat: {"role", "content": [{"type": "text", "text"}, ...]}. `content` is a string or a list of blocks,
// of which only those of the given types, which end with NULL, are allowed. UNSUPPORTED and INVALID name `where`, the
// place of the content in the body.
enum status json_turn_add(json_t *messages, const char *role, const json_t *content, const char *const *block_types,
                          const char *where);

// Structured output as /v1/chat/completions has it, from {"type": "json_schema", "schema": ...} or another type.
// `format` may be NULL or null.
void json_set_response_format(json_t *chat, const json_t *format);

// A server-sent event whose data repeats its name: "event: NAME\ndata: {"type":"NAME" ... }\n\n". In between the caller
// appends members, each with a comma before it.
void json_event_begin(struct bytes *out, const char *name);
void json_event_end(struct bytes *out);
