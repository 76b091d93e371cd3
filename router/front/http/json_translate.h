// SPDX-License-Identifier: Apache-2.0
// Functions for APIs whose bodies are translated to bodies of /v1/chat/completions, so that all bodies are checked and
// served in one way. The streams of these APIs consist of named events. Any thread may call.
#pragma once

#include <jansson.h>
#include <stdbool.h>

#include "router/front/http/json_writer.h"

// Returns the member's text, or NULL if there is no such member or it is no string.
static inline const char *json_string_member(const json_t *object, const char *member)
{
    return json_string_value(json_object_get(object, member));
}

// Returns a copy of the object without the members that `without` [NULL-terminated] names. The copy shares the values.
// The caller owns the copy.
json_t *json_copy_without(const json_t *object, const char *const *without);

// Adds one turn of a chat: {"role", "content": [{"type": "text", "text"}, ...]}. `content` is a string or a list of
// blocks. Each block must have one of `block_types` [NULL-terminated]. Returns UNSUPPORTED or INVALID on failure.
// `where` is the place of the content in the body, for status_message().
enum status json_turn_add(json_t *messages, const char *role, const json_t *content, const char *const *block_types,
                          const char *where);

// Returns the turn's content as a list of parts. A string is replaced by such a list in the turn.
json_t *json_turn_parts(json_t *turn);

// Sets the field response_format of `chat` from `format`: {"type": "json_schema", "schema": ...} is converted, other
// types are copied. No effect if `format` is NULL or null.
void json_set_response_format(json_t *chat, const json_t *format);

enum { TOOL_NAME_BYTES_MAX = 128 };

// Returns true for 1 to TOOL_NAME_BYTES_MAX letters, digits, '_' and '-'. NULL is allowed.
bool json_tool_name_valid(const char *name);

// Begin and end a server-sent event whose data repeats its name: "event: NAME\ndata: {"type":"NAME" ... }\n\n". Between
// the two calls, the caller appends members, each with a leading comma.
void json_event_begin(struct bytes *out, const char *name);
void json_event_end(struct bytes *out);
