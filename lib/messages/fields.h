// SPDX-License-Identifier: Apache-2.0
// Looking at a protobuf message before it is unpacked: the text of one field.
#pragma once

#include <stddef.h>
#include <stdint.h>

// The text of string field `number` of the message itself, cut to fit `text` [room]; "" when it is not among the first
// 64 fields or in `bytes`, which may be the start of a message. Not checked: it may contain any byte but NUL.
void proto_field_text(const uint8_t *bytes, size_t size, uint32_t number, char *text, size_t room);
