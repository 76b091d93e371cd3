// SPDX-License-Identifier: Apache-2.0
// Reads the text of one field of a protobuf message before the message is unpacked.
#pragma once

#include <stddef.h>
#include <stdint.h>

// Copies the text of string field `number` of the top-level message, cut to fit `text` [room]. `bytes` may be only the
// start of the message. The text is "" if the field is not in `bytes` or not among the first 64 fields. The text is not
// checked: it may contain any byte except NUL.
void proto_field_text(const uint8_t *bytes, size_t size, uint32_t number, char *text, size_t room);
