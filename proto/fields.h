// SPDX-License-Identifier: Apache-2.0
// Looking at a protobuf message before it is unpacked: a bound on its fields, and the text of one field.
#pragma once

#include <protobuf-c/protobuf-c.h>
#include <stdbool.h>

// Whether a message of this type has at most `limit` fields, including those of its sub-messages. Unpacking allocates
// memory for every field, and an empty sub-message takes two bytes: without a bound a message of 64 MiB costs gigabytes
// and seconds. Malformed bytes pass, since unpacking refuses them.
bool proto_fields_at_most(const ProtobufCMessageDescriptor *type, const uint8_t *bytes, size_t size, size_t limit);

// The text of string field `number` of the message itself, cut to fit `text` [room]; "" when it is not among the first
// 64 fields or in `bytes`, which may be the start of a message. Not checked: it may contain any byte but NUL.
void proto_field_text(const uint8_t *bytes, size_t size, uint32_t number, char *text, size_t room);
